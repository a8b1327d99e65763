"""Writes models. A model is a folder of safetensors files and a `model.json`, which is written last.

Each rank writes its table rows to `embeddings-<rank>-<attempt>` and their optimizer state to
`optimizer-<rank>-…`. Rank 0 also writes `dense-…` and `optimizer-dense-…`, which contain the tensors that are
equal on all ranks. model.json lists the files and the blocks of rows in them.

Two attempts may train the same version at the same time: if a scheduler loses contact with a worker, it
starts another worker, while the first may still be running. Each attempt therefore makes its own name part of
the names of its files, and deletes no other files. model.json is created only once. The attempt that ends
second uses the model of the first attempt. Both models are the same, because training is deterministic.
`training.registry.training_leftovers` deletes old files that no model.json lists.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor, nn

from conf.errors import NightrankError
from storage import file_io, format_versions
from training.checkpoints.blocks import OwnedState, StoredBlock, owned_state
from training.checkpoints.finite import require_finite
from training.checkpoints.rank_agreement import gather_json, raise_on_all_ranks
from training.checkpoints.stateful import WEIGHTS, Stateful, WeightsOnly
from training.checkpoints.tensor_file import write_tensors
from training.distributed.collectives import Collectives, LocalCollectives
from training.registry.model_json import MODEL_JSON, is_complete, read_description

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
        The model.json of the folder, on all ranks. If another attempt has already published this version,
        this is the model.json of that attempt.

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
    if file_io.is_local(path):  # an object store's model.json may have listed them for a moment
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
    entry = write_tensors(path, name, tensors)
    prefix = WEIGHTS if kind == "weights" else ""
    rows = {
        tensor: [StoredBlock(name, block).to_json() for block in owned.blocks[prefix + tensor]]
        for tensor in tensors
        if prefix + tensor in owned.blocks
    }
    return {**asdict(entry), "kind": kind, "rows": rows}


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
    entries = [{key: file[key] for key in ("name", "bytes", "crc32")} for file in files]
    return {**kinds, "files": entries, "rows": rows}
