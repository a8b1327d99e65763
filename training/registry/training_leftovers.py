"""Deletes old files that attempts at a training run left behind.

A file that no model.json lists was written by an attempt at a training run. Either this attempt was killed,
or it ended after another attempt had published the same model, or it is still running. The files on disk do
not show which of these cases is true, so this module deletes only old files.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import suppress

from pyarrow import fs

from conf.errors import DataError
from storage import file_io
from storage.paths import LakePaths
from training.registry.model_json import is_complete, names_of, read_description

log = logging.getLogger("nightrank.training")

_TENSORS = re.compile(r"(dense|embeddings-\d+|optimizer-(dense|\d+))-[0-9a-f]{8}\.safetensors")
# The name of a temporary file, which remains if the process that writes it is killed.
_SCRATCH = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")


def delete_training_leftovers(lake: LakePaths, name: str, grace_hours: float) -> int:
    """Deletes unused files in the folders of models and of their checkpoints; returns the number of files.

    Folders without model.json are skipped, because an attempt may still be writing to them.

    Args:
        lake: the lake.
        name: the name of the models.
        grace_hours: only files older than this are deleted. This time must be longer than the time it takes
            to write a model.
    """
    limit = time.time() - grace_hours * 3600
    deleted = 0
    try:
        for path in (*_unlisted_files(lake, name, limit), *_old_checkpoint_files(lake, name, limit)):
            with suppress(FileNotFoundError):  # another run may have deleted the file
                file_io.delete_file(path)
                deleted += 1
    except OSError as error:
        log.warning("files that killed trainings left in %s could not be deleted: %s", lake.root, error)
    _remove_empty_folders(lake, name)
    return deleted


def is_older(info: fs.FileInfo, limit: float) -> bool:
    """Returns whether a file's last change was before the time `limit`, which is in seconds since 1970."""
    return info.mtime is not None and info.mtime.timestamp() < limit


def _unlisted_files(lake: LakePaths, name: str, limit: float) -> Iterator[str]:
    """Yields the old files in model folders, except those that a model.json lists."""
    attempts: dict[str, list[fs.FileInfo]] = {}
    for info in file_io.list_files(lake.models(name), recursive=True):
        if _TENSORS.fullmatch(info.base_name) or _SCRATCH.fullmatch(info.base_name):
            attempts.setdefault(info.path.split("/")[-2], []).append(info)
    for version, infos in attempts.items():
        # If all files are from the same attempt, they belong to the model, and model.json need not be read.
        if len({info.base_name.rsplit("-", 1)[-1] for info in infos}) < 2:
            continue
        folder = f"{lake.models(name)}/{version}"
        try:
            named = names_of(read_description(folder))
        except DataError:  # skip the folder, because its model.json is missing or damaged
            continue
        yield from (
            f"{folder}/{info.base_name}"
            for info in infos
            if info.base_name not in named and is_older(info, limit)
        )


def _old_checkpoint_files(lake: LakePaths, name: str, limit: float) -> Iterator[str]:
    for folder in _checkpoint_folders(lake, name):
        for info in file_io.list_files(folder):
            if info.is_file and is_older(info, limit):
                yield f"{folder}/{info.base_name}"


def _checkpoint_folders(lake: LakePaths, name: str) -> list[str]:
    """Returns the checkpoint folders of complete training runs."""
    root = lake.checkpoints("")
    versions = [info.base_name for info in file_io.list_files(root) if not info.is_file]
    return [
        lake.checkpoints(version) for version in versions if is_complete(f"{lake.models(name)}/{version}")
    ]


def _remove_empty_folders(lake: LakePaths, name: str) -> None:
    for folder in _checkpoint_folders(lake, name):
        file_io.delete_empty_folder(folder)
