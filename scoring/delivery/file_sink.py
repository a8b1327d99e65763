"""Publishes the files of a date for sinks that write files: atomic, idempotent, and safe if a job is killed.

A sink only defines how its files are written and counted. `publish_files` does the rest: it writes to new
names, counts the records, flushes the files to disk and replaces the manifest of the date.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from conf.errors import InfrastructureError
from scoring.delivery.published_lists import EraseRequest, PublishedLists
from storage import file_io
from storage.file_digests import digest_of_file, new_file
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
from storage.publish import map_files, new_attempt, own_path
from storage.remove import delete_leftovers


@dataclass(frozen=True)
class Files:
    """The files of one date, which a sink can write.

    Attributes:
        write: writes the files into the folder that is its argument. The folder does not exist yet. Nobody
            reads it before the manifest names its files.
        count: reads the files of this folder, and returns the number of records of each file by file name.
        ending: the ending of the names of these files. Files with other endings are not published.
        records: the number of records that all files together must have.
        layout: a text that describes the format. If it differs from the layout of the published files, the
            files are written again.
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
        _replace(partition, lists, files, _written(partition, attempt, files, lists), inputs)
    return partition


def _written(
    partition: Partition, attempt: str, files: Files, lists: PublishedLists
) -> tuple[FileEntry, ...]:
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
    names = [name for name in sizes if name in counts]
    spark = None if isinstance(lists.rows, pa.Table) else lists.frame.sparkSession
    digests = map_files(spark, digest_of_file, [f"{folder}/{name}" for name in names])
    return tuple(
        FileEntry(f"{attempt}/{name}", counts[name], sizes[name], (counts[name],), digest=digest)
        for name, digest in zip(names, digests, strict=True)
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
    delete_leftovers(partition, [manifest, previous], lists.grace_hours, replaced=previous)


# Erases users from the files of the sink of JSON lines.

_GZIP = ".gz"


def erase_lines(sink: str, folder: str, request: EraseRequest) -> int:
    """Publishes each date without the lines of the users, and deletes all other files of the date at once.

    Args:
        sink: the name of the sink.
        folder: the folder of the sink, which contains one folder for each date.
        request: the users.

    Returns:
        The number of removed lines.

    Raises:
        DataError: a manifest is damaged.
        OSError: a file cannot be read or written.
    """
    root = folder.rstrip("/")
    names = [info.base_name for info in file_io.list_files(root) if info.base_name.startswith("dt=")]
    dates = [name.removeprefix("dt=") for name in names]
    return sum(
        _erase_date(Partition(sink, date, f"{root}/dt={date}", recorder=request.recorder), request)
        for date in dates
    )


def _erase_date(partition: Partition, request: EraseRequest) -> int:
    if not is_published(partition):
        delete_leftovers(partition, [], 0)
        return 0
    manifest = read_manifest(partition)
    attempt, entries, entries_lost = new_attempt(partition), [], 0
    for entry in manifest.files:
        lines = _read(partition.file(entry.path))
        kept = [line for line in lines if json.loads(line)["user_id"] not in request.users]
        if len(kept) == len(lines):
            entries.append(entry)
            continue
        entries_lost += sum(len(json.loads(line)["items"]) for line in lines) - sum(
            len(json.loads(line)["items"]) for line in kept
        )
        entries.append(_write(partition, attempt, entry, kept))
    lost = manifest.rows - sum(entry.rows for entry in entries)
    changed = _manifest_without(manifest, entries, lost, entries_lost, request)
    if changed != manifest:
        file_io.make_durable(data_files(partition, changed), partition.root)
        replace_manifest(partition, changed)
    delete_leftovers(partition, [changed], 0)
    return lost


def _manifest_without(
    manifest: Manifest, entries: Sequence[FileEntry], users: int, list_entries: int, request: EraseRequest
) -> Manifest:
    inputs = {name: request.digests.get(digest, digest) for name, digest in manifest.inputs.items()}
    lost = {"users": users, "entries": list_entries}
    facts = {name: value - lost[name] if name in lost else value for name, value in manifest.facts.items()}
    rows_in = manifest.rows_in - list_entries
    return replace(manifest, files=tuple(entries), inputs=inputs, facts=facts, rows_in=rows_in)


def _read(path: str) -> list[bytes]:
    files, inner = file_io.filesystem(path)
    with files.open_input_stream(inner, compression=None) as source:
        content = source.read()
    return (gzip.decompress(content) if path.endswith(_GZIP) else content).splitlines()


def _write(partition: Partition, attempt: str, old: FileEntry, lines: Sequence[bytes]) -> FileEntry:
    name = old.path.rsplit("/", 1)[1]
    stem, _, ending = name.partition(".json")
    path = f"{own_path(f'{attempt}/{stem}.json')}{ending}"
    content = b"".join(line + b"\n" for line in lines)
    content = gzip.compress(content) if name.endswith(_GZIP) else content
    with new_file(partition.file(path)) as file:
        file.sink.write(content)
    return FileEntry(path, len(lines), len(content), (len(lines),), digest=file.digest)
