"""Publishes the files of a date for sinks that write files: atomic, idempotent, and safe if a job is killed.

A sink only says how its files are written and counted. `publish_files` does the rest: it writes to new names,
counts the records, flushes the files to disk and replaces the manifest of the date.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from conf.errors import InfrastructureError
from scoring.delivery.published_lists import PublishedLists
from storage import file_io
from storage.leftovers import delete_leftovers
from storage.manifest import (
    FileEntry,
    Manifest,
    current_manifest,
    data_files,
    is_published,
    read_manifest,
    replace_manifest,
)
from storage.paths import Partition
from storage.publish import new_attempt


@dataclass(frozen=True)
class Files:
    """The files of one date, which a sink can write.

    Attributes:
        write: writes the files into the folder that is its argument. The folder does not exist yet. Nobody
            reads it before the manifest names its files.
        count: reads the files of this folder, and returns the number of records of each file by file name.
        ending: the ending of the names of these files. Files with other endings are not published.
        records: the number of records that all files together must have.
        layout: a text that describes the format. If it differs from that of the published files, the files
            are written again.
        schema: (name, type) of each column, for the manifest.
        facts: JSON values for readers of the manifest.
    """

    write: Callable[[str], None]
    count: Callable[[str], Mapping[str, int]]
    ending: str
    records: int
    layout: str
    schema: tuple[tuple[str, str], ...]
    facts: Mapping[str, Any] = field(default_factory=dict)


def publish_files(sink: str, path: str, lists: PublishedLists, files: Files) -> Partition:
    """Publishes the files of a date in the folder `<path>/dt=<date>`, whose manifest names them.

    If the folder already has the files of the same lists in the same layout, nothing changes. If the process
    is killed, the manifest names either the old files or the new files. Files that no manifest names are
    deleted when they are older than `lists.grace_hours`.

    Args:
        sink: the name of the sink.
        path: the folder of the sink: a local path or a URI.
        lists: the published lists of the date.
        files: how to write the files.

    Returns:
        The partition that has the files.

    Raises:
        InfrastructureError: the files do not have exactly `files.records` records. The old files remain
            published.
    """
    partition = Partition(
        sink, lists.run_date, f"{path.rstrip('/')}/dt={lists.run_date}", recorder=lists.recorder
    )
    inputs = {"recommendations": lists.manifest.digest, "layout": files.layout}
    if current_manifest(partition, inputs) is None:
        attempt = new_attempt(partition)
        files.write(partition.file(attempt))
        _replace(partition, lists, files, _written(partition, attempt, files), inputs)
    return partition


def _written(partition: Partition, attempt: str, files: Files) -> tuple[FileEntry, ...]:
    """Returns the written files in the order of their names, with their counted records."""
    folder = partition.file(attempt)
    sizes = {
        entry.base_name: entry.size
        for entry in file_io.list_files(folder)
        if entry.base_name.endswith(files.ending)
    }
    counts = files.count(folder)
    records = sum(count for name, count in counts.items() if name in sizes)
    if records != files.records:
        raise InfrastructureError(
            f"{folder} has {records} lines, but {files.records} users have a list",
            "rerun the job: the lists changed while they were delivered. If that does not help, this is an "
            "internal error, please report",
        )
    return tuple(
        FileEntry(f"{attempt}/{name}", counts[name], size, (counts[name],))
        for name, size in sizes.items()
        if name in counts
    )


def _replace(
    partition: Partition,
    lists: PublishedLists,
    files: Files,
    entries: tuple[FileEntry, ...],
    inputs: Mapping[str, str],
) -> None:
    """Makes the files durable, replaces the manifest, and deletes old files."""
    manifest = Manifest(
        table=partition.table,
        partition=partition.dt,
        files=entries,
        schema=files.schema,
        inputs=inputs,
        rows_in=lists.manifest.rows,
        facts=files.facts,
        created_at=file_io.utc_now(),
    )
    previous = read_manifest(partition) if is_published(partition) else None
    file_io.make_durable(data_files(partition, manifest), partition.root)
    replace_manifest(partition, manifest)
    delete_leftovers(partition, [manifest, previous], lists.grace_hours)
