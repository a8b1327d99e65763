"""`model.json` describes a model: its training, metrics and files. A folder without it is not a model."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from conf.errors import DataError
from conf.train_types import ScoreKind
from conf.types import Config
from storage import file_io, format_versions

log = logging.getLogger("nightrank.training")
MODEL_JSON = "model.json"

# Metrics of probabilities. They are None for a model whose scores only order rows.
OF_PROBABILITIES = ("log_loss", "normalized_entropy", "calibration")


def is_described(path: str) -> bool:
    """Returns whether a folder has a model.json. The other files are not checked."""
    return file_io.exists(f"{path}/{MODEL_JSON}")


def is_complete(path: str, *, checksums: bool = False) -> bool:
    """Returns whether a folder has a complete model: model.json and all listed files with the listed lengths.

    If there is a model.json, but a listed file is missing or does not have the listed length, the model is
    damaged, and a warning gives the reason.

    Args:
        path: the model's folder.
        checksums: whether to compare the checksums of the files too, which reads all files completely.
    """
    if not is_described(path):
        return False
    problem = damage_of_model(path, checksums=checksums)
    if problem is not None:
        log.warning("the model in %s is damaged and has to be trained again: %s", path, problem)
    return problem is None


def score_kind(description: Mapping[str, Any], config: Config) -> ScoreKind:
    """Returns the kind of a model's scores.

    The model.json of an earlier release does not contain the kind. Then `config` decides.
    """
    return cast(ScoreKind, description.get("scores", config.score_kind))


def entries_of(description: Mapping[str, Any]) -> list[ModelFile]:
    """Returns the lengths and checksums of a model's tensor files.

    The list is empty for models that early versions of this code saved.
    """
    return [ModelFile(**entry) for entry in description.get("files", ())]


def names_of(description: Mapping[str, Any]) -> set[str]:
    """Returns the names of the tensor files that a model.json lists."""
    return {*description.get("weights", ()), *description.get("optimizer", ())}


def damage_of_model(path: str, *, checksums: bool = True) -> str | None:
    """Describes the damage of a model that has a model.json; None if it is intact.

    For `checksums`, see `is_complete`.
    """
    try:
        description = read_description(path)
        entries, names = entries_of(description), names_of(description)
    except (DataError, ValueError, TypeError, AttributeError) as error:
        return f"{MODEL_JSON} cannot be read: {error}"
    sizes = {info.base_name: info.size for info in file_io.list_files(path) if info.is_file}
    for name in sorted(names - sizes.keys()):
        return f"{name} is missing"
    for entry in entries:
        if sizes.get(entry.name) != entry.bytes:
            return f"{entry.name} has {sizes.get(entry.name)} bytes, {MODEL_JSON} says {entry.bytes}"
    problems = (damage(path, entry) for entry in entries if checksums)
    return next(filter(None, problems), None)


def read_description(path: str) -> dict[str, Any]:
    """Reads the model.json of a model's folder.

    Raises:
        DataError: the folder has no model.json, it is damaged, or a newer release wrote it.
    """
    try:
        return format_versions.MODEL.load(f"{path}/{MODEL_JSON}", _checked)
    except FileNotFoundError as error:
        raise DataError(
            f"{path} has no complete model ({MODEL_JSON} is missing)", "run train_model first"
        ) from error


def _checked(description: dict[str, Any]) -> dict[str, Any]:
    """Returns a description whose files are in the folder of the model.

    Raises:
        KeyError, TypeError, ValueError: the description is damaged.
    """
    for name in {*names_of(description), *(entry.name for entry in entries_of(description))}:
        if file_io.leaves(name):
            raise ValueError(f"it names {name!r}, which is not in the folder of the model")
    return description


# Lengths and checksums of model and checkpoint files. This module does not import torch.

_CHUNK_BYTES = 1 << 26


@dataclass(frozen=True)
class ModelFile:
    """A file as it was written: its name in its folder, its length, and the CRC-32 of its bytes."""

    name: str
    bytes: int
    crc32: int


def damage(folder: str, entry: ModelFile) -> str | None:
    """Returns how a file differs from its entry; None if it does not differ. Reads the complete file."""
    path = f"{folder}/{entry.name}"
    files, inner = file_io.filesystem(path)
    length, crc = 0, 0
    try:
        with files.open_input_stream(inner, compression=None) as stream:
            while part := stream.read(_CHUNK_BYTES):
                length, crc = length + len(part), zlib.crc32(part, crc)
    except FileNotFoundError:
        return f"{path} is missing"
    if length != entry.bytes:
        return f"{path} has {length} bytes, {entry.bytes} were written"
    return None if crc == entry.crc32 else f"{path} was changed after it was written (its CRC-32 differs)"
