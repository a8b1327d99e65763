"""Removes dates from a table that only jobs read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from storage import file_io
from storage.leftovers import delete_leftovers
from storage.manifest import MANIFEST_NAME, is_published, read_manifest
from storage.paths import Partition, Table


def written_dates(table: Table) -> list[str]:
    """Returns the dates of a table that have data files, published or not, in ascending order."""
    partition = table.partition("")
    folder = partition.file(partition.data).rpartition("/")[0]
    names = (info.base_name for info in file_io.list_files(folder))
    return sorted(name.removeprefix("dt=") for name in names if name.startswith("dt="))


def is_younger(partition: Partition, hours: float) -> bool:
    """Returns whether a partition is published, and was published less than `hours` hours ago."""
    if not is_published(partition):
        return False
    published = datetime.fromisoformat(read_manifest(partition).created_at)
    return datetime.now(UTC) - published < timedelta(hours=hours)


def remove(partition: Partition, grace_hours: float) -> None:
    """Deletes the manifest of an internal partition, and its data files that are older than `grace_hours`.

    The manifest is deleted first, so no job uses an incomplete partition. If the removal is killed, the next
    one continues, because `written_dates` lists the date as long as it has a folder of data files. Data files
    of another job that is writing this date are younger, and remain.
    """
    if is_published(partition):
        file_io.delete_file(partition.file(MANIFEST_NAME))
    delete_leftovers(partition, [], grace_hours)
    for folder in (partition.path, partition.file(partition.data)):
        files, inner = file_io.filesystem(folder)
        entries = file_io.list_files(folder, recursive=True)
        if file_io.exists(folder) and not any(entry.is_file for entry in entries):
            files.delete_dir(inner)
