"""Writes models, and loads them, either to score with them or to start another training run from them."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never

import torch
from torch import Tensor, nn

from conf.errors import ConfigError, DataError, NightrankError
from conf.train_types import Kernels
from conf.types import ModelConfig, MultiHot
from storage import file_io, format_versions
from storage.feature_spec import FeatureSpec
from training.checkpoints.blocks import WEIGHTS, OwnedState, Stateful, StoredBlock, WeightsOnly, owned_state
from training.checkpoints.stored import StateMismatchError, StoredState
from training.checkpoints.tensor_file import require_finite, write_tensors
from training.collectives import Collectives, LocalCollectives, gather_json, raise_on_all_ranks
from training.embeddings.scoring_tables import RowsOnDemand, to_int8
from training.embeddings.table import set_kernels, tables_of
from training.kernels.choice import use_kernels
from training.models import build_model
from training.registry.model_json import (
    MODEL_JSON,
    damage_once,
    entries_of,
    is_complete,
    read_description,
)


@dataclass(frozen=True)
class LoadedModel:
    """A trained model, ready to score.

    Attributes:
        model: the model in evaluation mode.
        spec: the features of the model.
        multi_hot: for features that are lists of ids: how many ids of a list the model uses, and how the
            vectors of these ids are pooled.
        version: the model's version.
        description: the content of the model's model.json.
    """

    model: nn.Module
    spec: FeatureSpec
    multi_hot: MultiHot
    version: str
    description: dict[str, Any]

    def embedding_rows(self, feature: str) -> Tensor:
        """Returns the embedding vectors of all ids of a feature, (cardinality, E) float32.

        Raises:
            ConfigError: the model has no embedding vectors for all ids of the feature.
        """
        names = [one.name for one in self.spec.embedded]
        tables = [one for one in tables_of(self.model).values() if len(one.cardinalities) == len(names)]
        # The vectors are in the widest table. Other tables have one number per id, such as the items' biases.
        table = max(tables, key=lambda one: one.dim, default=None)
        place = names.index(feature)
        cardinality = self.spec.cardinalities[place]
        if table is None or table.dim < 2 or table.cardinalities[place] != cardinality:
            raise ConfigError(
                f"model {self.version} has no vectors of {feature!r}",
                "choose a feature with an embedding, such as the feature of the item",
            )
        first = int(table.router.replicated_places[place])
        return table.weight[first : first + cardinality].detach().float()


def _open_tables(model: nn.Module, stored: StoredState, most_bytes: int) -> None:
    """Opens the files of tables whose rows stay on disk.

    All tables together cache at most `most_bytes` of rows.
    """
    tables = {name: table for name, table in tables_of(model).items() if isinstance(table, RowsOnDemand)}
    row_bytes = sum(table.row_bytes for table in tables.values())
    for name, table in tables.items():
        rows = stored.rows_of(f"{WEIGHTS}{name}", table.cardinalities)
        table.open(rows.read, most_bytes // row_bytes)


def _stored(path: str, description: Mapping[str, Any], spec: FeatureSpec, *, optimizer: bool) -> StoredState:
    """Returns the stored state of a model. Raises DataError if a file's length differs from model.json."""
    for entry in entries_of(description):
        files, inner = file_io.filesystem(f"{path}/{entry.name}")
        size = files.get_file_info(inner).size
        if size is not None and size != entry.bytes:
            raise DataError(
                f"{path}/{entry.name} has {size} bytes, {MODEL_JSON} says {entry.bytes}",
                _train_again(description),
            )
    prefixes = dict.fromkeys(description["weights"], WEIGHTS)
    if optimizer:
        prefixes |= dict.fromkeys(description["optimizer"], "")
    with format_versions.MODEL.parsing(f"{path}/{MODEL_JSON}"):
        rows = {
            name: [StoredBlock.from_json(block) for block in blocks]
            for name, blocks in description.get("rows", {}).items()
            if optimizer or name.startswith(WEIGHTS)
        }
    return StoredState(path, prefixes, rows, spec.cardinalities)


def _checksum_error(
    path: str, description: Mapping[str, Any], names: Collection[str], rank: int = 0, ranks: int = 1
) -> DataError | None:
    """Returns an error that describes the first damaged file; None if no file is damaged.

    A process reads each file only once for this check, even if it loads the model several times. Each rank
    compares the lengths and checksums of only some of the files `names`.
    """
    entries = [entry for entry in entries_of(description) if entry.name in names]
    for entry in entries[rank::ranks]:
        problem = damage_once(path, entry)
        if problem is not None:
            return DataError(problem, _train_again(description))
    return None


def _train_again(description: Mapping[str, Any]) -> str:
    run_date = description.get("run_date", "its run date")
    job = "refit_model" if description.get("refit_of") else "train_model"
    return f"run {job} for {run_date} again, which replaces the damaged model; or roll back to another model"


def open_trained(path: str, collectives: Collectives | None = None) -> tuple[StoredState, FeatureSpec]:
    """Returns a model's final training state, from which another training run can start, and its features.

    Args:
        path: the model's folder.
        collectives: the collectives of the ranks; None for a single rank. All ranks must call this function,
            and each rank compares the checksums of some of the files.

    Raises:
        DataError: the folder has no complete model, or the model is damaged or has no optimizer state.
    """
    description = read_description(path)
    if "optimizer" not in description:
        raise DataError(
            f"{path}/{MODEL_JSON} lists no optimizer state, because an early release wrote it",
            "train once from fresh weights with --set train.retrain.start=fresh",
        )
    with format_versions.MODEL.parsing(f"{path}/{MODEL_JSON}"):
        spec = FeatureSpec.from_json(description["feature_spec"])
    stored = _stored(path, description, spec, optimizer=True)
    ranks = collectives or LocalCollectives()
    names = {*description["weights"], *description["optimizer"]}
    raise_on_all_ranks(ranks, _checksum_error(path, description, names, ranks.rank, ranks.size))
    return stored, spec


def load_model(
    path: str,
    device: torch.device,
    embeddings: Literal["stored", "int8", "on_demand"] = "stored",
    kernels: Kernels = "auto",
    rows_mib: int = 1024,
) -> LoadedModel:
    """Loads the model in a folder `models/<name>/<version>`.

    Args:
        path: the model's folder.
        device: the device to load the model to.
        embeddings: `stored` keeps the dtype in which the table rows were saved. `int8` quantizes the rows in
            host memory, so that the device stores one byte per number. `on_demand` leaves the rows in the
            files until a lookup needs them. With each of these three values, a process reads each file once
            to compare its checksum. A file of a model never changes, so one check is enough.
        kernels: the value of the setting `score.kernels`: `auto`, `triton` or `torch`.
        rows_mib: with `on_demand`, memory for rows that were read, in MiB.

    Raises:
        ConfigError: `kernels` is `triton`, but Triton's kernels cannot run on this machine.
        DataError: the folder has no complete model, or the model is damaged, or its weights do not fit its
            architecture.
    """
    with_kernels = use_kernels(kernels, device, "score.kernels")
    description = read_description(path)
    with format_versions.MODEL.parsing(f"{path}/{MODEL_JSON}"):
        spec = FeatureSpec.from_json(description["feature_spec"])
        config = ModelConfig(**description["model"])
    on_demand = embeddings == "on_demand"
    model = build_model(config, spec, on_demand=on_demand)
    if embeddings != "int8":
        model = model.to(device)
    weights = WeightsOnly(model)
    stored = _stored(path, description, spec, optimizer=False)
    damaged = _checksum_error(path, description, description["weights"])
    if damaged is not None:
        raise damaged
    try:
        stored.load(weights.state(), weights.row_state())
    except StateMismatchError as error:
        raise DataError(
            f"{path}: the weights do not fit architecture {description['architecture']}: {error}",
            "train the model again with this release",
        ) from error
    if embeddings == "int8":
        to_int8(model)
        model = model.to(device)
    elif embeddings != "stored" and embeddings != "on_demand":
        assert_never(embeddings)
    _open_tables(model, stored, rows_mib << 20)
    set_kernels(model, with_kernels)
    return LoadedModel(model.eval(), spec, config.multi_hot, description["version"], description)


# The code below writes models. A model is a folder of safetensors files and a `model.json`, which is written
# last.
#
# Each rank writes its table rows to `embeddings-<rank>-<attempt>` and their optimizer state to
# `optimizer-<rank>-…`. Rank 0 also writes `dense-…` and `optimizer-dense-…`, which contain the tensors that
# are equal on all ranks. model.json lists the files and the blocks of rows in them.
#
# Two attempts may train the same version at the same time. If a scheduler loses contact with a worker, it
# starts another worker, while the first may still be running. So the name of an attempt is part of the names
# of its files, and an attempt deletes only its own files. model.json is created only once. The attempt that
# ends second uses the model of the attempt that ended first. Both models are the same, because training is
# deterministic. `training.registry.training_leftovers` deletes old files that no model.json lists.

log = logging.getLogger("nightrank.training")


def save_model(path: str, model: nn.Module, description: Mapping[str, Any]) -> None:
    """Writes a model whose rows are all in this process, without optimizer state.

    The saved model can score, but no training can start from it.
    """
    save_trained(path, WeightsOnly(model), description, LocalCollectives())


def save_trained(
    path: str, trainer: Stateful, description: Mapping[str, Any], collectives: Collectives
) -> dict[str, Any]:
    """Writes a model's folder, including the state of the optimizers.

    Every rank must call this function, because each rank writes its own table rows.

    Returns:
        The model.json of the folder, on all ranks. If another attempt has already published this version, the
        result is the model.json of that attempt.

    Raises:
        InfrastructureError: a rank could not write its files. No model is published.
        DataError: the state contains numbers that are not finite.
    """
    leads = collectives.rank == 0
    attempt = gather_json(collectives, uuid.uuid4().hex[:8])[0]
    owned = owned_state(trainer.state(), trainer.row_state(), leads=leads)
    written: list[dict[str, Any]] = []
    failure: NightrankError | None = None
    try:
        require_finite(
            {name: [value] for name, value in owned.equal.items()} | owned.rows, "after the last step"
        )
        written = [_write(path, owned, *file) for file in _files(owned, collectives.rank, attempt)]
    except NightrankError as error:
        failure = error
    raise_on_all_ranks(collectives, failure)
    files = [file for of_rank in gather_json(collectives, written) for file in of_rank]
    published: dict[str, Any] | None = None
    try:
        published = _publish(path, description, files) if leads else None
    except NightrankError as error:
        failure = error
    raise_on_all_ranks(collectives, failure)
    return dict(gather_json(collectives, published)[0])


def _publish(path: str, description: Mapping[str, Any], files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Creates model.json, unless another attempt has published a complete model.

    Returns the model.json that the folder contains afterwards.
    """
    complete = {**description, **_file_list(files)}
    model_json = f"{path}/{MODEL_JSON}"
    if file_io.create_json(model_json, format_versions.MODEL.stamp(complete)):
        return complete
    if not is_complete(path, checksums=True):
        file_io.replace_json(model_json, format_versions.MODEL.stamp(complete))
        return complete
    log.info(
        "another attempt has already published a complete model in %s; this attempt's model is discarded",
        path,
    )
    # On an object store, a model.json that lists this attempt's files may have been readable for a moment
    # (see `create_json`). A process that has read it may still need these files.
    if file_io.is_local(path):
        for file in files:
            file_io.delete_file(f"{path}/{file['name']}")
    return read_description(path)


def _files(owned: OwnedState, rank: int, attempt: str) -> list[tuple[str, str, dict[str, list[Tensor]]]]:
    """Returns the kind, the name and the tensors of each file that this rank writes.

    The kind of a file is `weights` or `optimizer`. Files without tensors are left out.
    """
    equal = {name: [value] for name, value in owned.equal.items()}
    names = {
        ("weights", "dense"): _weights(equal),
        ("weights", f"embeddings-{rank:05d}"): _weights(owned.rows),
        ("optimizer", "optimizer-dense"): _others(equal),
        ("optimizer", f"optimizer-{rank:05d}"): _others(owned.rows),
    }
    return [
        (kind, f"{stem}-{attempt}.safetensors", tensors) for (kind, stem), tensors in names.items() if tensors
    ]


def _weights(tensors: Mapping[str, list[Tensor]]) -> dict[str, list[Tensor]]:
    weights = {name: pieces for name, pieces in tensors.items() if name.startswith(WEIGHTS)}
    return {name.removeprefix(WEIGHTS): pieces for name, pieces in weights.items()}


def _others(tensors: Mapping[str, list[Tensor]]) -> dict[str, list[Tensor]]:
    return {name: pieces for name, pieces in tensors.items() if not name.startswith(WEIGHTS)}


def _write(
    path: str, owned: OwnedState, kind: str, name: str, tensors: Mapping[str, list[Tensor]]
) -> dict[str, Any]:
    entry = write_tensors(path, name, tensors, with_sha256=True)
    prefix = WEIGHTS if kind == "weights" else ""
    rows = {
        tensor: [StoredBlock(name, block).to_json() for block in owned.blocks[prefix + tensor]]
        for tensor in tensors
        if prefix + tensor in owned.blocks
    }
    return {**entry.to_json(), "kind": kind, "rows": rows}


def _file_list(files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the entries of model.json that describe the model's files.

    The entries are the file names by kind, the lengths and checksums of the files, and the blocks of table
    rows in the files.
    """
    rows: dict[str, list[Any]] = {}
    for file in files:
        for name, blocks in file["rows"].items():
            rows.setdefault((WEIGHTS if file["kind"] == "weights" else "") + name, []).extend(blocks)
    kinds = {
        kind: [file["name"] for file in files if file["kind"] == kind] for kind in ("weights", "optimizer")
    }
    entries = [{key: file[key] for key in ("name", "bytes", "crc32", "sha256")} for file in files]
    return {**kinds, "files": entries, "rows": rows}
