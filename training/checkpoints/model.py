"""Loads models, either to score with them or to start another training from them.

model_writer.py writes models.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, assert_never

import torch
from torch import nn

from conf.errors import DataError
from conf.train_types import Kernels
from conf.types import ModelConfig, MultiHot
from storage import file_io
from storage.feature_spec import FeatureSpec
from training.checkpoints.blocks import StoredBlock
from training.checkpoints.rank_agreement import raise_on_all_ranks
from training.checkpoints.stateful import WEIGHTS, WeightsOnly
from training.checkpoints.stored import StateMismatchError, StoredState
from training.distributed.collectives import Collectives, LocalCollectives
from training.embeddings.int8 import to_int8
from training.embeddings.rows_on_demand import RowsOnDemand
from training.embeddings.tables_of_model import set_kernels, tables_of
from training.kernels.choice import use_kernels
from training.models import build_model
from training.registry.model_json import MODEL_JSON, entries_of, read_description
from training.registry.written_file import damage


@dataclass(frozen=True)
class LoadedModel:
    """A trained model, ready to score.

    Attributes:
        model: the model in evaluation mode.
        spec: the features of the model.
        multi_hot: how many ids of each list the model uses, and how the vectors of these ids are pooled.
        version: the model's version.
        description: the content of the model's model.json.
    """

    model: nn.Module
    spec: FeatureSpec
    multi_hot: MultiHot
    version: str
    description: dict[str, Any]


def _open_tables(model: nn.Module, stored: StoredState, most_bytes: int) -> None:
    """Lets the tables whose rows stay in files find them. All tables together keep `most_bytes` of rows."""
    tables = {name: table for name, table in tables_of(model).items() if isinstance(table, RowsOnDemand)}
    row_bytes = sum(table.row_bytes for table in tables.values())
    for name, table in tables.items():
        rows = stored.rows_of(f"{WEIGHTS}{name}", table.cardinalities)
        table.open(rows.read, most_bytes // row_bytes)


def _stored(path: str, description: Mapping[str, Any], spec: FeatureSpec, *, optimizer: bool) -> StoredState:
    """Returns the stored state of a model. Raises DataError if a file's length is not that in model.json."""
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

    Each rank compares the lengths and checksums of only some of the files `names`.
    """
    entries = [entry for entry in entries_of(description) if entry.name in names]
    for entry in entries[rank::ranks]:
        problem = damage(path, entry)
        if problem is not None:
            return DataError(problem, _train_again(description))
    return None


def _train_again(description: Mapping[str, Any]) -> str:
    run_date = description.get("run_date", "its run date")
    return (
        f"run train_model for {run_date} again, which replaces the damaged model; "
        "or roll back to another model"
    )


def open_trained(path: str, collectives: Collectives | None = None) -> tuple[StoredState, FeatureSpec]:
    """Returns a model's final training state and its features, so that another training can start from it.

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
            f"{path}/{MODEL_JSON} lists no optimizer state: an older version of this code wrote it",
            "train once from fresh weights with --set train.retrain.start=fresh",
        )
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
            files until a lookup needs them; it does not compare the checksums of the files, because that
            would read them.
        kernels: the value of the setting `score.kernels`: `auto`, `triton` or `torch`.
        rows_mib: with `on_demand`, memory for rows that were read, in MiB.

    Raises:
        ConfigError: `kernels` is `triton`, but Triton's kernels cannot run on this machine.
        DataError: the folder has no complete model, or the model is damaged, or its weights do not fit its
            architecture.
    """
    with_kernels = use_kernels(kernels, device, "score.kernels")
    description = read_description(path)
    spec = FeatureSpec.from_json(description["feature_spec"])
    config = ModelConfig(**description["model"])
    on_demand = embeddings == "on_demand"
    model = build_model(config, spec, on_demand=on_demand)
    if embeddings != "int8":
        model = model.to(device)
    weights = WeightsOnly(model)
    stored = _stored(path, description, spec, optimizer=False)
    damaged = None if on_demand else _checksum_error(path, description, description["weights"])
    if damaged is not None:
        raise damaged
    try:
        stored.load(weights.state(), weights.row_state())
    except StateMismatchError as error:
        raise DataError(
            f"{path}: the weights do not fit architecture {description['architecture']}: {error}",
            "train the model again with this code",
        ) from error
    if embeddings == "int8":
        to_int8(model)
        model = model.to(device)
    elif embeddings != "stored" and embeddings != "on_demand":
        assert_never(embeddings)
    _open_tables(model, stored, rows_mib << 20)
    set_kernels(model, with_kernels)
    return LoadedModel(model.eval(), spec, config.multi_hot, description["version"], description)
