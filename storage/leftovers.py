"""Deletes the files of a table that no manifest lists, such as those of killed jobs and of replaced dates."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress

from storage import file_io
from storage.hard_links import LOCK_NAME
from storage.manifest import Manifest
from storage.paths import Partition


def delete_leftovers(partition: Partition, manifests: Sequence[Manifest | None], grace_hours: float) -> int:
    """Deletes the data files of a partition that no manifest names, if they are older than `grace_hours`.

    Returns the number of deleted files.
    """
    named = {partition.file(entry.path) for manifest in manifests if manifest for entry in manifest.files}
    kept = {file_io.filesystem(path)[1] for path in named}
    limit = time.time() - grace_hours * 3600
    deleted = 0
    folder = partition.file(partition.data)
    for info in file_io.list_files(folder, recursive=True):
        if (
            info.is_file
            and info.path not in kept
            and info.base_name != LOCK_NAME
            and info.mtime is not None
            and info.mtime.timestamp() < limit
        ):
            with suppress(FileNotFoundError):  # another job has deleted it
                file_io.filesystem(folder)[0].delete_file(info.path)
                deleted += 1
    return deleted


def delete_empty_folders(folder: str) -> None:
    """Deletes a folder and those in it, unless there is a file in them. Does nothing if there is no folder.

    The lock of hard links does not count as a file. A file that another job writes meanwhile is not deleted.
    """
    files, inner = file_io.filesystem(folder)
    entries = file_io.list_files(folder, recursive=True)
    if any(entry.is_file and entry.base_name != LOCK_NAME for entry in entries):
        return
    for lock in (entry for entry in entries if entry.is_file):
        with suppress(FileNotFoundError):
            files.delete_file(lock.path)
    if file_io.is_local(folder):
        for path in [*reversed([entry.path for entry in entries if not entry.is_file]), inner]:
            with suppress(OSError):  # it is gone, or another job has written to it
                os.rmdir(path)
    elif file_io.exists(folder):
        files.delete_dir(inner)
