"""`model.json` describes a model: its training, metrics and files. A folder without it is not a model."""

from __future__ import annotations

import fcntl
import logging
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from conf.errors import DataError
from conf.train_types import ScoreKind
from conf.types import Config
from storage import file_io, format_versions
from storage.format_versions import require_names
from storage.manifest import digest_of

log = logging.getLogger("nightrank.training")
MODEL_JSON = "model.json"

# Metrics of probabilities. They are None for a model whose scores only order rows.
OF_PROBABILITIES = ("log_loss", "normalized_entropy", "calibration")


def is_described(path: str) -> bool:
    """Returns whether a folder has a model.json. The other files are not checked."""
    return file_io.exists(f"{path}/{MODEL_JSON}")


def is_complete(path: str, *, checksums: bool = False) -> bool:
    """Returns whether a folder has a complete model: model.json and all listed files with the listed lengths.

    If a listed file is missing or has another length, the model is damaged, and a warning gives the reason.

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
    """Returns what a model's scores are: probabilities, or numbers that only order items.

    A model.json that an earlier release wrote does not say what they are. Then the function uses `config`.
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
    """Describes how a model with a model.json is damaged; returns None if it is intact.

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
    """Checks that all files that a model.json names are in its own folder; returns its content.

    Raises:
        KeyError, TypeError, ValueError: the description is damaged.
    """
    names = names_of(description)
    for name in {*names, *(entry.name for entry in entries_of(description))}:
        if file_io.leaves(name):
            raise ValueError(f"it names {name!r}, which is not in the folder of the model")
    for blocks in description.get("rows", {}).values():
        for block in blocks:
            if block["file"] not in names:
                raise ValueError(f"it names {block['file']!r}, which is not a file of the model")
    require_names(*(description.get(key) for key in ("version", "workflow_version", "refit_of")))
    return description


# The code below compares model and checkpoint files with their recorded lengths and checksums. This module
# does not import torch.

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class ModelFile:
    """The recorded length and checksums of a file.

    Attributes:
        name: its name in its folder.
        bytes: its length.
        crc32: the CRC-32 of its bytes.
        sha256: the SHA-256 of its bytes, as 64 hex digits; None for a file of a checkpoint, or of a model
            that an earlier release wrote.
    """

    name: str
    bytes: int
    crc32: int
    sha256: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns name, length and checksums as JSON values. The key `sha256` is left out if it is None."""
        return {name: value for name, value in vars(self).items() if value is not None}


def damage(folder: str, entry: ModelFile) -> str | None:
    """Reads a file, and returns how its length or checksums differ from `entry`; None if they are equal."""
    path = f"{folder}/{entry.name}"
    files, inner = file_io.filesystem(path)
    length, crc, sha = 0, 0, sha256()
    try:
        with files.open_input_stream(inner, compression=None) as stream:
            while part := stream.read(_CHUNK_BYTES):
                length += len(part)
                if entry.sha256 is None:
                    crc = zlib.crc32(part, crc)
                else:
                    sha.update(part)
    except FileNotFoundError:
        return f"{path} is missing"
    if length != entry.bytes:
        return f"{path} has {length} bytes, {entry.bytes} were written"
    if entry.sha256 is None:
        is_equal, kind = crc == entry.crc32, "CRC-32"
    else:
        is_equal, kind = sha.hexdigest() == entry.sha256, "SHA-256"
    return None if is_equal else f"{path} was changed after it was written (its {kind} differs)"


# The files that this process has already compared, by path. The values are the file's entry, its size, and
# the time of its last change in ns. The time is 0 for files of an object store, because it is not known.
_compared: dict[str, tuple[ModelFile, int, int]] = {}


def damage_once(folder: str, entry: ModelFile) -> str | None:
    """Returns the same as `damage`, but reads a file only if this process has not compared it before.

    A process compares a file once. If a Spark application has several Python workers on a machine, only one
    of them reads the file, and the others wait for the result.
    """
    path = f"{folder}/{entry.name}"
    state = _state_of(path)
    if state is not None and _compared.get(path) == (entry, *state):
        return None
    marker = None if state is None else _marker([path, entry.to_json(), *state])
    if marker is None:
        problem = damage(folder, entry)
    else:
        # The lock ends with the process that holds it, so a killed worker does not block the others.
        with marker.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            problem = None if marker.exists() else damage(folder, entry)
            if problem is None:
                marker.touch()
    if problem is None and state is not None:
        _compared[path] = (entry, *state)
    return problem


def _marker(identity: list[Any]) -> Path | None:
    """Returns the path of an empty file that marks a file as compared; None outside Spark's workers.

    The file is in Spark's local directory of this machine, which Spark deletes when the application ends.
    """
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    if not folder or not os.access(folder, os.W_OK):
        return None
    return Path(folder) / f"nightrank-model-{digest_of(identity)}"


def _state_of(path: str) -> tuple[int, int] | None:
    """Returns the size of a file and the time of its last change in ns; None if it does not exist."""
    files, inner = file_io.filesystem(path)
    info = files.get_file_info(inner)
    if not info.is_file:
        return None
    return info.size, info.mtime_ns if file_io.is_local(path) else 0


def weights_digest(description: Mapping[str, Any]) -> str | None:
    """Returns a digest of the bytes of all files with weights, as 64 hex digits.

    The digest does not depend on the names of the files, which differ if a model is trained again. Returns
    None if the files have no SHA-256, because an earlier release wrote the model.
    """
    names = set(description.get("weights", ()))
    digests = [entry.sha256 for entry in entries_of(description) if entry.name in names]
    if not digests or None in digests or len(digests) != len(names):
        return None
    return sha256(" ".join(sorted(map(str, digests))).encode()).hexdigest()
