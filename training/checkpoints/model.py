"""Models on disk: a folder of safetensors files and `model.json`, which is written last.

Each rank writes the rows it owns: `embeddings-<rank>-<attempt>`, and `optimizer-<rank>-…` with what optimisers keep of
them; rank 0 adds `dense-…` and `optimizer-dense-…`. model.json lists the files and the blocks of rows in them.

Two attempts may train one version at the same time: a scheduler that has lost a worker starts another one, and the first
may still be running. So each attempt writes files of its own names and deletes no others, and model.json is created once.
The attempt that comes second uses the model of the first. Both models are the same, because training is deterministic.
`training.registry.leftovers` deletes files that no model.json names, when they are old enough.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from conf.errors import DataError, NightrankError
from conf.train_types import Kernels
from conf.types import ModelConfig, MultiHot
from storage import file_io, format_versions
from storage.feature_spec import FeatureSpec
from training.checkpoints.blocks import Owned, StoredBlock, owned
from training.checkpoints.finite import require_finite
from training.checkpoints.rank_agreement import raise_together, share
from training.checkpoints.stored import Misfit, StoredState
from training.checkpoints.tensor_file import write_tensors
from training.distributed.collectives import Collectives, LocalCollectives
from training.embeddings.int8 import to_int8
from training.embeddings.rows import RowBlock
from training.embeddings.table import set_kernels, tables_of
from training.kernels.choice import use_kernels
from training.models import build_model
from training.registry.model_json import MODEL_JSON, entries_of, is_complete, read_description
from training.registry.written_file import damage

log = logging.getLogger("nightrank.training")

_WEIGHTS = "model."  # what the names of weights begin with in a trainer's state


class Trained(Protocol):
    """What is saved: a `Trainer`."""

    def state(self) -> dict[str, Tensor]: ...

    def row_state(self) -> dict[str, tuple[RowBlock, ...]]: ...


@dataclass(frozen=True)
class LoadedModel:
    """A trained model, ready to score: `model` is in evaluation mode, `description` is its model.json.

    `multi_hot` says how the model takes lists of ids.
    """

    model: nn.Module
    spec: FeatureSpec
    multi_hot: MultiHot
    version: str
    description: dict[str, Any]


@dataclass(frozen=True)
class _Untrained:
    """A model without optimisers, all of its rows in this process."""

    model: nn.Module

    def state(self) -> dict[str, Tensor]:
        return {f"{_WEIGHTS}{name}": value for name, value in self.model.state_dict().items()}

    def row_state(self) -> dict[str, tuple[RowBlock, ...]]:
        return {f"{_WEIGHTS}{name}": table.blocks for name, table in tables_of(self.model).items()}


def save_model(path: str, model: nn.Module, description: Mapping[str, Any]) -> None:
    """Writes a model that this process holds wholly. It can score, and no training can start from it."""
    save_trained(path, _Untrained(model), description, LocalCollectives())


def save_trained(
    path: str, trainer: Trained, description: Mapping[str, Any], collectives: Collectives
) -> dict[str, Any]:
    """Writes a model's folder with the optimisers' state; every rank calls this and writes its own rows.

    Returns:
        The model.json of the folder, on all ranks. It is another attempt's where that has published this version before.

    Raises:
        InfrastructureError: a rank could not write; there is no model then.
        DataError: the state holds numbers that are not finite.
    """
    leads = collectives.rank == 0
    attempt = share(collectives, uuid.uuid4().hex[:8])[0]
    mine = owned(trainer.state(), trainer.row_state(), leads=leads)
    written: list[dict[str, Any]] = []
    failed: NightrankError | None = None
    try:
        require_finite(
            {name: [value] for name, value in mine.equal.items()} | mine.rows, "after the last step"
        )
        written = [_write(path, mine, *each) for each in _files(mine, collectives.rank, attempt)]
    except NightrankError as error:
        failed = error
    raise_together(collectives, failed)
    files = [each for theirs in share(collectives, written) for each in theirs]
    published: dict[str, Any] | None = None
    try:
        published = _publish(path, description, files) if leads else None
    except NightrankError as error:
        failed = error
    raise_together(collectives, failed)
    return dict(share(collectives, published)[0])


def _publish(path: str, description: Mapping[str, Any], files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Creates model.json, or takes the whole model that another attempt has published; what model.json holds then."""
    made = {**description, **_listed(files)}
    model_json = f"{path}/{MODEL_JSON}"
    if file_io.create_json(model_json, format_versions.MODEL.stamp(made)):
        return made
    if not is_complete(path, checksums=True):
        file_io.replace_json(model_json, format_versions.MODEL.stamp(made))
        return made
    log.info(
        "another attempt has published a whole model in %s; it is used, and this attempt's files are not",
        path,
    )
    if file_io.is_local(path):  # on an object store model.json may have named them for a moment
        for each in files:
            file_io.delete_file(f"{path}/{each['name']}")
    return read_description(path)


def _files(mine: Owned, rank: int, attempt: str) -> list[tuple[str, str, dict[str, list[Tensor]]]]:
    """(kind, file name, tensors by their names in the file) of a rank's files that hold anything."""
    equal = {name: [value] for name, value in mine.equal.items()}
    names = {
        ("weights", "dense"): _weights(equal),
        ("weights", f"embeddings-{rank:05d}"): _weights(mine.rows),
        ("optimizer", "optimizer-dense"): _others(equal),
        ("optimizer", f"optimizer-{rank:05d}"): _others(mine.rows),
    }
    return [
        (kind, f"{stem}-{attempt}.safetensors", tensors) for (kind, stem), tensors in names.items() if tensors
    ]


def _weights(tensors: Mapping[str, list[Tensor]]) -> dict[str, list[Tensor]]:
    return {name.removeprefix(_WEIGHTS): each for name, each in tensors.items() if name.startswith(_WEIGHTS)}


def _others(tensors: Mapping[str, list[Tensor]]) -> dict[str, list[Tensor]]:
    return {name: each for name, each in tensors.items() if not name.startswith(_WEIGHTS)}


def _write(
    path: str, mine: Owned, kind: str, name: str, tensors: Mapping[str, list[Tensor]]
) -> dict[str, Any]:
    entry = write_tensors(path, name, tensors)
    prefix = _WEIGHTS if kind == "weights" else ""
    rows = {
        each: [StoredBlock(name, block).to_json() for block in mine.blocks[prefix + each]]
        for each in tensors
        if prefix + each in mine.blocks
    }
    return {**asdict(entry), "kind": kind, "rows": rows}


def _listed(files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What model.json says of the files: their names by kind, their lengths, and where rows lie."""
    rows: dict[str, list[Any]] = {}
    for file in files:
        for name, blocks in file["rows"].items():
            rows.setdefault((_WEIGHTS if file["kind"] == "weights" else "") + name, []).extend(blocks)
    kinds = {
        kind: [each["name"] for each in files if each["kind"] == kind] for kind in ("weights", "optimizer")
    }
    entries = [{key: each[key] for key in ("name", "bytes", "crc32")} for each in files]
    return {**kinds, "files": entries, "rows": rows}


def _stored(path: str, description: Mapping[str, Any], spec: FeatureSpec, *, optimizer: bool) -> StoredState:
    """The state in a model's folder; DataError when a file has not the length that model.json says."""
    for entry in entries_of(description):
        files, inner = file_io.filesystem(f"{path}/{entry.name}")
        size = files.get_file_info(inner).size
        if size is not None and size != entry.bytes:
            raise DataError(
                f"{path}/{entry.name} has {size} bytes, {MODEL_JSON} says {entry.bytes}",
                _train_again(description),
            )
    prefixes = dict.fromkeys(description["weights"], _WEIGHTS)
    if optimizer:
        prefixes |= dict.fromkeys(description["optimizer"], "")
    rows = {
        name: [StoredBlock.from_json(each) for each in blocks]
        for name, blocks in description.get("rows", {}).items()
        if optimizer or name.startswith(_WEIGHTS)
    }
    return StoredState(path, prefixes, rows, spec.cardinalities)


def _checksum_error(
    path: str, description: Mapping[str, Any], names: Collection[str], rank: int = 0, ranks: int = 1
) -> DataError | None:
    """Reads this rank's share of the named files; the error of the first one that is not as it was written."""
    entries = [each for each in entries_of(description) if each.name in names]
    for entry in entries[rank::ranks]:
        problem = damage(path, entry)
        if problem is not None:
            return DataError(problem, _train_again(description))
    return None


def _train_again(description: Mapping[str, Any]) -> str:
    run_date = description.get("run_date", "its run date")
    return f"run train_model for {run_date} again, which replaces the damaged model; or roll back to another model"


def open_trained(path: str, collectives: Collectives | None = None) -> tuple[StoredState, FeatureSpec]:
    """What a further training starts from: a trainer's state as it was at the model's end, and the model's spec.

    Args:
        collectives: of the ranks that all call this; each compares the checksums of a share of the files.

    Raises:
        DataError: the folder holds no whole model, a damaged one, or one that an older version of this code wrote.
    """
    description = read_description(path)
    if "optimizer" not in description:
        raise DataError(
            f"{path}/{MODEL_JSON} names no optimiser state: an older version of this code wrote it",
            "train afresh once with --set train.retrain.start=fresh",
        )
    spec = FeatureSpec.from_json(description["feature_spec"])
    stored = _stored(path, description, spec, optimizer=True)
    ranks = collectives or LocalCollectives()
    names = {*description["weights"], *description["optimizer"]}
    raise_together(ranks, _checksum_error(path, description, names, ranks.rank, ranks.size))
    return stored, spec


def load_model(
    path: str,
    device: torch.device,
    embeddings: Literal["stored", "int8"] = "stored",
    kernels: Kernels = "auto",
) -> LoadedModel:
    """The model of a folder `models/<name>/<version>`, all of its rows in this process.

    Args:
        embeddings: `int8` makes bytes of the tables' rows in host memory, so that no more of them gets to the device.
        kernels: as `score.kernels`.

    Raises:
        ConfigError: the kernels were asked for and cannot run here.
        DataError: the folder holds no complete model, a damaged one, or weights that are not those of its architecture.
    """
    on_kernels = use_kernels(kernels, device, "score.kernels")
    description = read_description(path)
    spec = FeatureSpec.from_json(description["feature_spec"])
    config = ModelConfig(**description["model"])
    model = build_model(config, spec)
    if embeddings == "stored":
        model = model.to(device)
    whole = _Untrained(model)
    stored = _stored(path, description, spec, optimizer=False)
    damaged = _checksum_error(path, description, description["weights"])
    if damaged is not None:
        raise damaged
    try:
        stored.load(whole.state(), whole.row_state())
    except Misfit as error:
        raise DataError(
            f"{path}: the weights do not fit architecture {description['architecture']}: {error}",
            "train the model again with this code",
        ) from error
    if embeddings == "int8":
        to_int8(model)
        model = model.to(device)
    set_kernels(model, on_kernels)
    return LoadedModel(model.eval(), spec, config.multi_hot, description["version"], description)
