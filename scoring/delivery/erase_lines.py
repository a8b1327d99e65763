"""Erases users from the files of the sink of JSON lines."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace

from scoring.delivery.erase_request import EraseRequest
from storage import file_io
from storage.leftovers import delete_leftovers
from storage.manifest import FileEntry, Manifest, data_files, is_published, read_manifest, replace_manifest
from storage.paths import Partition
from storage.publish import new_attempt, own_path

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
    files, inner = file_io.filesystem(partition.file(path))
    if file_io.is_local(partition.path):
        files.create_dir(inner.rsplit("/", 1)[0], recursive=True)
    with files.open_output_stream(inner, compression=None) as target:
        target.write(content)
    return FileEntry(path, len(lines), len(content), (len(lines),))
