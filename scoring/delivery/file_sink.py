"""Publishes the files of a date for sinks that write files. The publication is atomic and idempotent.

A sink only defines how its files are written, counted and parsed. `publish_files` writes to new names, counts
the records, flushes the files to disk and replaces the manifest of the date. `erase_records` removes users.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field

from conf.errors import InfrastructureError
from conf.messages import counted
from conf.names import NewFolder
from conf.types import PositiveInt, SinkSettings
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


class FileSinkSettings(SinkSettings):
    """The keys of every sink that writes text files."""

    path: NewFolder = Field(
        description="Folder of the lists: a local path or a URI. `{lake}` and `{data}` are replaced by the "
        "values of these keys. The folder must not be a table of the lake, or the folder of another sink."
    )
    compression: Literal["none", "gzip"] = Field(
        default="gzip", description="Compression of the files. `none`: plain text. `gzip`: gzip files."
    )
    users_per_file: PositiveInt = Field(default=1_000_000, description="Largest number of users in a file.")


def folders_of(sink: FileSinkSettings) -> list[str]:
    """Returns the folder of the sink."""
    return [sink.path]


@dataclass(frozen=True)
class Files:
    """The files of one date, which a sink can write.

    Attributes:
        write: receives a folder that does not exist yet, and writes the files into it.
            Readers ignore its files until the manifest names them.
        count: reads the files of this folder, and returns a mapping of file names to numbers of records.
        ending: the end of the names of these files. Files with another ending are not published.
        records: the number of records that all files together must have.
        layout: a string that describes the format. If it differs from the layout of the published files, the
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

    If the folder already has the files of the same lists in the same layout, the function changes nothing. If
    the process is killed, the manifest names either the old files or the new files. Files that no manifest
    names are deleted when they are older than `lists.grace_hours`.

    Args:
        sink: the name of the sink.
        path: the folder of the sink: a local path or a URI.
        lists: the published lists of the date.
        files: the functions and values that define the files.

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
    """Returns the manifest's entries for the written files, ordered by name, with counted records."""
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
            f"the files in {folder} have {counted(records, 'record')}, but the published lists have "
            f"{files.records}",
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


# The code below erases users from published files.

_GZIP = ".gz"


@dataclass(frozen=True)
class ListRecord:
    """A record of a file: the data of one user, or one entry of the user's list.

    Attributes:
        user: the id of the user.
        entries: number of list entries.
        content: the bytes of the record, with its end of line.
    """

    user: str
    entries: int
    content: bytes


# A function that parses the content of a file. It returns the bytes before the first record, and the records.
Parse = Callable[[bytes], tuple[bytes, list[ListRecord]]]


def erase_records(sink: str, folder: str, request: EraseRequest, parse: Parse) -> int:
    """Removes the records of users from the published files of all dates.

    The function immediately deletes all files that no manifest names, because they may have such records too.

    Args:
        sink: the name of the sink.
        folder: the folder of the sink, which contains one folder for each date.
        request: the users.
        parse: parses the content of a file, which is not compressed.

    Returns:
        The number of removed records.

    Raises:
        DataError: a manifest is damaged.
        OSError: a file cannot be read or written.
    """
    root = folder.rstrip("/")
    names = [info.base_name for info in file_io.list_files(root) if info.base_name.startswith("dt=")]
    dates = [name.removeprefix("dt=") for name in names]
    return sum(
        _erase_date(Partition(sink, date, f"{root}/dt={date}", recorder=request.recorder), request, parse)
        for date in dates
    )


def _erase_date(partition: Partition, request: EraseRequest, parse: Parse) -> int:
    if not is_published(partition):
        delete_leftovers(partition, [], 0)
        return 0
    manifest = read_manifest(partition)
    attempt, entries, removed = new_attempt(partition), [], list[ListRecord]()
    for entry in manifest.files:
        head, records = parse(_read(partition.file(entry.path)))
        kept = [record for record in records if record.user not in request.users]
        if len(kept) == len(records):
            entries.append(entry)
            continue
        removed += [record for record in records if record.user in request.users]
        content = head + b"".join(record.content for record in kept)
        entries.append(_write(partition, attempt, entry, content, len(kept)))
    changed = _manifest_without(manifest, entries, removed, request)
    if changed != manifest:
        file_io.make_durable(data_files(partition, changed), partition.root)
        replace_manifest(partition, changed)
    delete_leftovers(partition, [changed], 0)
    return len(removed)


def _manifest_without(
    manifest: Manifest, entries: Sequence[FileEntry], removed: Sequence[ListRecord], request: EraseRequest
) -> Manifest:
    inputs = {name: request.digests.get(digest, digest) for name, digest in manifest.inputs.items()}
    list_entries = sum(record.entries for record in removed)
    lost = {"users": len({record.user for record in removed}), "entries": list_entries}
    facts = {name: value - lost[name] if name in lost else value for name, value in manifest.facts.items()}
    rows_in = manifest.rows_in - list_entries
    return replace(manifest, files=tuple(entries), inputs=inputs, facts=facts, rows_in=rows_in)


def _read(path: str) -> bytes:
    files, inner = file_io.filesystem(path)
    with files.open_input_stream(inner, compression=None) as source:
        content: bytes = source.read()
    return gzip.decompress(content) if path.endswith(_GZIP) else content


def _write(partition: Partition, attempt: str, old: FileEntry, content: bytes, records: int) -> FileEntry:
    name = old.path.rsplit("/", 1)[1]
    stem, ending = name.removesuffix(_GZIP).rsplit(".", 1)
    compressed = name.endswith(_GZIP)
    path = own_path(f"{attempt}/{stem}.{ending}") + (_GZIP if compressed else "")
    content = gzip.compress(content, mtime=0) if compressed else content
    with new_file(partition.file(path)) as file:
        file.sink.write(content)
    return FileEntry(path, records, len(content), (records,), digest=file.digest)
