"""Deletes the files of a table that no manifest lists, such as those of killed jobs and of replaced dates."""

from __future__ import annotations

import time
from collections.abc import Sequence

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
            file_io.filesystem(folder)[0].delete_file(info.path)
            deleted += 1
    return deleted
