"""Removes dates from a table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from storage import file_io
from storage.leftovers import delete_empty_folders, delete_leftovers
from storage.manifest import is_published, read_manifest, withdraw
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
    """Deletes a partition: its manifest, and its data files that are older than `grace_hours`.

    The manifest is deleted first, so no job uses an incomplete partition. Hard links and the entries of a
    Delta log follow, so other tools do not find files that are deleted after that. If the removal is killed,
    the next one continues, because `written_dates` lists the date as long as it has a folder of data files.
    Data files of another job that is writing this date are younger, and remain.
    """
    withdraw(partition)
    if is_published(partition):
        return  # another job has published the partition again
    delete_leftovers(partition, [], grace_hours)
    if not file_io.is_local(partition.path):  # release 0.1.0 kept data files beside the manifest
        for info in file_io.list_files(partition.path, recursive=True):
            if info.is_file:
                file_io.filesystem(partition.path)[0].delete_file(info.path)
    for folder in (partition.path, partition.file(partition.data)):
        delete_empty_folders(folder)
