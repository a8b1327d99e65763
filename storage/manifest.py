"""The manifest: what a published partition consists of. Every reader takes its file list from here, never from a listing.

The manifest file is the one atomic step of publishing: files are written under names no manifest holds yet, and the
replacement of `_MANIFEST.json` makes them the partition. What other people's readers see follows: hard links in the partition's
folder (storage.hard_links), or a Delta log where there are none (storage.delta_log); whoever finds the partition up to date mends it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from typing import Any

from conf.errors import DataError
from storage import delta_log, file_io, format_versions, hard_links
from storage.lineage import NOT_RECORDED, DatasetVersion, LineageRecorder
from storage.paths import Partition

MANIFEST_NAME = "_MANIFEST.json"


@dataclass(frozen=True)
class FileEntry:
    """One data file. `path` is relative to the partition's folder, which it leaves (`../../_data/…`) but in a raw log and in tables
    of early releases; `row_groups` holds rows per row group, in file order.

    `split` says which split the file's rows belong to, in partitions cut into splits; otherwise it is None.
    """

    path: str
    rows: int
    bytes: int
    row_groups: tuple[int, ...]
    split: str | None = None


@dataclass(frozen=True)
class Manifest:
    """One published partition.

    Attributes:
        table, partition: the table's path below the lake's root, and the ISO date.
        files: the data files, sorted by path.
        schema: (column, Arrow type) in order.
        inputs: name → digest of everything the rows were computed from.
        rows_in: rows read to make it; rows_in = rows + sum(dropped), where the table maps rows one to one.
        dropped: reason → rows that were left out.
        facts: what else the job wants its readers to know (JSON values; enters no digest).
        created_at: when it was published (UTC; enters no digest).
        lineage: the OpenLineage event of its publication (storage.lineage; enters no digest): job, run, datasets read; empty
            where no job published it.
    """

    table: str
    partition: str
    files: tuple[FileEntry, ...]
    schema: tuple[tuple[str, str], ...]
    inputs: Mapping[str, str]
    rows_in: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    created_at: str = ""
    lineage: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.files)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.files)

    def split_files(self, split: str | None) -> tuple[FileEntry, ...]:
        """The files of one split; all of them for None."""
        return tuple(each for each in self.files if split is None or each.split == split)

    @property
    def digest(self) -> str:
        """Digest of the content: equal for a rerun over equal inputs, whatever the files are called."""
        rows_of_split: dict[str, int] = {}
        for each in self.files:
            name = each.split or ""
            rows_of_split[name] = rows_of_split.get(name, 0) + each.rows
        return digest_of(
            {
                "table": self.table,
                "partition": self.partition,
                "schema": [list(pair) for pair in self.schema],
                "inputs": dict(self.inputs),
                "rows": rows_of_split,
                "dropped": dict(self.dropped),
            }
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "rows": self.rows, "digest": self.digest}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Manifest:
        known = {key: value for key, value in values.items() if key not in ("rows", "digest")}
        files = tuple(
            FileEntry(**{**each, "row_groups": tuple(each["row_groups"])}) for each in values["files"]
        )
        schema = tuple((name, kind) for name, kind in values["schema"])
        return cls(**{**known, "files": files, "schema": schema})


def digest_of(value: Any) -> str:
    """16 hex digits of the SHA-256 of a JSON value, independent of key order."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def is_published(partition: Partition) -> bool:
    return file_io.exists(partition.file(MANIFEST_NAME))


def read_manifest(partition: Partition) -> Manifest:
    """The manifest of a published partition.

    Raises:
        DataError: the partition is not published, or its manifest is damaged.
    """
    path = partition.file(MANIFEST_NAME)
    try:
        values = file_io.read_json(path)
    except FileNotFoundError as error:
        raise DataError(
            f"{partition.table} has no published partition dt={partition.dt} ({path} does not exist)",
            f"run the job that writes {partition.table.split('/')[0]} for {partition.dt} first",
        ) from error
    values = format_versions.MANIFEST.check(values, path)
    try:
        manifest = Manifest.from_json(values)
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{path} is not a manifest: {error}", "delete it and rerun the job that writes it"
        ) from error
    partition.recorder.record_read(partition.path, manifest.digest, manifest.rows, manifest.bytes)
    return manifest


def data_files(partition: Partition, manifest: Manifest, split: str | None = None) -> list[str]:
    """Full paths of a partition's data files, in manifest order; of one split where one is named."""
    return [partition.file(each.path) for each in manifest.split_files(split)]


def current_manifest(partition: Partition, inputs: Mapping[str, str]) -> Manifest | None:
    """The manifest of a partition that was made of exactly these inputs and is whole; None where it must be made.

    What other people's readers see of it is mended, where a job was killed before it had shown it.
    """
    if not is_published(partition):
        return None
    manifest = read_manifest(partition)
    if dict(manifest.inputs) != dict(inputs) or not is_whole(partition, manifest):
        return None
    _show(partition, manifest)
    return manifest


def is_whole(partition: Partition, manifest: Manifest) -> bool:
    """Whether each file is there with the bytes that the manifest says."""
    return file_io.sizes(data_files(partition, manifest)) == [each.bytes for each in manifest.files]


def replace_manifest(partition: Partition, manifest: Manifest) -> None:
    """Publishes: the one atomic step. Everything the manifest names must be durable and verified already."""
    published = DatasetVersion(
        partition.path, manifest.digest, manifest.rows, manifest.bytes, manifest.schema
    )
    event = partition.recorder.record_publication(
        published, manifest.inputs.values(), manifest.created_at or file_io.utc_now()
    )
    if event:
        manifest = replace(manifest, lineage=event)
    file_io.replace_json(partition.file(MANIFEST_NAME), format_versions.MANIFEST.stamp(manifest.to_json()))
    _show(partition, manifest)


def _show(partition: Partition, manifest: Manifest) -> None:
    """Makes what other people's readers see the files of the manifest, or of the one that has replaced it meanwhile."""
    if any(not each.path.startswith(f"{partition.data}/") for each in manifest.files):
        return  # files in the partition's folder: a raw log, or a table that an early release wrote

    def now() -> Manifest:
        path = partition.file(MANIFEST_NAME)
        return Manifest.from_json(format_versions.MANIFEST.check(file_io.read_json(path), path))

    if file_io.is_local(partition.path):
        folder, data = (
            file_io.filesystem(path)[1] for path in (partition.path, partition.file(partition.data))
        )
        hard_links.show(folder, data, _links(partition, manifest).keys(), lambda: _links(partition, now()))
        return
    table, content = partition.file(partition.data).rpartition("/")[0], _content(partition, manifest)
    logged = partition.path.endswith(f"/dt={partition.dt}") and delta_log.can_hold(manifest.schema)
    if logged and delta_log.says(table, partition.dt, content):
        return
    for info in file_io.list_files(partition.path, recursive=True):
        if info.is_file and info.base_name != MANIFEST_NAME:  # of an early release, which kept attempts here
            file_io.filesystem(partition.path)[0].delete_file(info.path)
    if logged:
        delta_log.show(table, partition.dt, lambda: _content(partition, now()))


def _content(partition: Partition, manifest: Manifest) -> delta_log.Content:
    table = f"{partition.data.rpartition('/')[0]}/"
    files = [(each.path.removeprefix(table), each.rows, each.bytes) for each in manifest.files]
    return delta_log.Content(files, manifest.schema)


def _links(partition: Partition, manifest: Manifest) -> dict[str, str]:
    """Name in the partition's folder → the file it stands for. No two attempts have a name in common.

    Lines of JSON are shown as .jsonl: `*.json` would find the manifest too.
    """
    names = [each.path.removeprefix(f"{partition.data}/").replace("/", "-") for each in manifest.files]
    shown = [f"{name}l" if name.endswith(".json") else name for name in names]
    paths = [file_io.filesystem(path)[1] for path in data_files(partition, manifest)]
    return dict(zip(shown, paths, strict=True))


def combined_digest(digests: Iterable[str], recorder: LineageRecorder = NOT_RECORDED) -> str:
    """One digest of several, independent of their order. `recorder` notes of which digests it consists."""
    parts = sorted(digests)
    digest = digest_of(parts)
    recorder.record_combined(digest, parts)
    return digest
