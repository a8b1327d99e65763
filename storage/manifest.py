"""The manifest of a partition: it lists the published data files.

Readers take the list of files from the manifest, never from a listing of a folder.

Publishing has one atomic step. The data files are written under new names, which no manifest contains yet.
Then `_MANIFEST.json` is replaced. Readers that open the new manifest use the new files.

Other tools do not read manifests. If other tools may read the table, the partition's folder has hard links to
the data files, or the table has a Delta log (storage.other_tools). Links and log are updated after the
manifest. A job may be killed after it has replaced the manifest, but before it has updated the links or the
log. In this case, the next job that finds the partition up to date updates the links or the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from typing import Any

from conf.errors import DataError, InfrastructureError
from storage import file_io, format_versions, other_tools
from storage.format_versions import FileValues
from storage.lineage import NOT_RECORDED, DatasetVersion, LineageRecorder
from storage.paths import Partition

MANIFEST_NAME = "_MANIFEST.json"


@dataclass(frozen=True)
class FileEntry:
    """One data file of a manifest.

    Attributes:
        path: relative to the partition's folder. The file is outside this folder (`../../_data/…`), except in
            a raw log and in tables of early releases.
        row_groups: number of rows of each row group, in file order.
        split: the split of the file's rows if the partition is divided into splits, otherwise None.
        digest: XXH3-128 of the bytes of the file, as 32 hex digits (storage.file_digests); None for
            raw logs, and in manifests of releases before format version 3.
    """

    path: str
    rows: int
    bytes: int
    row_groups: tuple[int, ...]
    split: str | None = None
    digest: str | None = None


@dataclass(frozen=True)
class Manifest:
    """The content of a manifest: one published partition.

    Attributes:
        table, partition: the table's path below the lake's root, and the ISO date.
        files: the data files, sorted by path.
        schema: (name, Arrow type) of each column, in the order of the columns.
        inputs: maps the name of each input from which the rows were computed to the digest of the input.
        rows_in: number of rows read. If each input row gives one row, rows_in = rows + sum(dropped).
        dropped: maps each reason for leaving out rows to the number of rows.
        facts: further JSON values for readers; not part of the digest.
        created_at: time of publication in UTC; not part of the digest.
        lineage: the OpenLineage event of the publication (storage.lineage), with the job, the run and the
            datasets that it read; empty if no job published the partition. Not part of the digest.
        damaged: the paths of the files that a job or `nightrank fsck --repair` found to differ from the
            manifest. If there are such files, the partition is not up to date, so the next run of its job
            rewrites it. Not part of the digest.
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
    damaged: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Returns the number of rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """Returns the number of bytes of all files."""
        return sum(file.bytes for file in self.files)

    def split_files(self, split: str | None) -> tuple[FileEntry, ...]:
        """Returns the files of one split, or all files if `split` is None."""
        return tuple(file for file in self.files if split is None or file.split == split)

    @property
    def digest(self) -> str:
        """Returns the digest of the content, which does not depend on file names.

        A rerun on equal inputs gives the same digest.
        """
        rows_of_split: dict[str, int] = {}
        for file in self.files:
            name = file.split or ""
            rows_of_split[name] = rows_of_split.get(name, 0) + file.rows
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
        """Returns the values of the manifest file, without its format version. `facts` is not copied."""
        values = {**vars(self), "files": [asdict(file) for file in self.files]}
        return {**values, "rows": self.rows, "digest": self.digest}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Manifest:
        """Converts the result of `to_json` back to a manifest.

        Raises:
            KeyError, TypeError, ValueError: a key is missing, or a value is wrong (parse_manifest).
        """
        known = {key: value for key, value in values.items() if key not in ("rows", "digest")}
        files = tuple(
            FileEntry(**{**entry, "row_groups": tuple(entry["row_groups"])}) for entry in values["files"]
        )
        schema = tuple((name, kind) for name, kind in values["schema"])
        manifest = cls(
            **{**known, "files": files, "schema": schema, "damaged": tuple(values.get("damaged", ()))}
        )
        _require_types(manifest)
        return manifest


def _require_types(manifest: Manifest) -> None:
    """Raises TypeError or ValueError if a value of the manifest has a wrong type or is negative."""
    texts = [manifest.table, manifest.partition, manifest.created_at]
    texts += [*manifest.damaged, *manifest.inputs.values()]
    for entry in manifest.files:
        texts += [entry.path, entry.split or "", entry.digest or ""]
    texts += [text for pair in manifest.schema for text in pair]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a name, a path, a type or a digest is not a string")
    numbers = [manifest.rows_in, *manifest.dropped.values()]
    for entry in manifest.files:
        numbers += [entry.rows, entry.bytes, *entry.row_groups]
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise ValueError("a number of rows or bytes is not an integer, or it is negative")
    if not all(isinstance(value, Mapping) for value in (manifest.facts, manifest.lineage)):
        raise TypeError("`facts` or `lineage` is not an object")


def digest_of(value: Any) -> str:
    """Returns 16 hex digits of the SHA-256 of a JSON value. The order of keys does not change the digest."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def is_published(partition: Partition) -> bool:
    """Returns whether the partition has a manifest."""
    return file_io.exists(partition.file(MANIFEST_NAME))


def read_manifest(partition: Partition) -> Manifest:
    """Reads the manifest of a published partition. The partition is recorded as an input of the run.

    Raises:
        DataError: the partition is not published, or its manifest is damaged.
    """
    try:
        manifest = load_manifest(partition)
    except FileNotFoundError as error:
        raise DataError(
            f"{partition.table} has no published partition dt={partition.dt} "
            f"({partition.file(MANIFEST_NAME)} does not exist)",
            f"run the job that writes {partition.table.split('/')[0]} for {partition.dt} first",
        ) from error
    partition.recorder.record_read(partition.path, manifest.digest, manifest.rows, manifest.bytes)
    return manifest


def load_manifest(partition: Partition) -> Manifest:
    """Reads the manifest of a partition without recording it as an input of the run.

    Raises:
        FileNotFoundError: the partition is not published.
        DataError: the manifest is damaged, or a newer release wrote it, or it names a file outside the lake.
    """
    path = partition.file(MANIFEST_NAME)
    manifest = format_versions.MANIFEST.load(path, Manifest.from_json)
    for entry in manifest.files:
        if file_io.leaves(entry.path, partition.depth):
            raise DataError(
                f"{path} names {entry.path!r}, which is not below the root of the lake",
                "delete this manifest and rerun the job that writes it",
            )
    facts = FileValues.of_file(manifest.facts, path, format_versions.MANIFEST.name)
    return replace(manifest, facts=facts)


def data_files(partition: Partition, manifest: Manifest, split: str | None = None) -> list[str]:
    """Returns the full paths of the data files of a partition, or of one of its splits.

    The paths are in the order of the manifest.
    """
    return [partition.file(entry.path) for entry in manifest.split_files(split)]


def current_manifest(partition: Partition, inputs: Mapping[str, str]) -> Manifest | None:
    """Returns the manifest of a partition that is complete and was built from exactly these inputs.

    Returns None if a job must build the partition. If a job was killed before it had updated the partition's
    hard links or Delta log, this function updates them.
    """
    if not is_published(partition):
        return None
    manifest = read_manifest(partition)
    if dict(manifest.inputs) != dict(inputs) or not is_whole(partition, manifest):
        return None
    _update_views(partition, manifest)
    return manifest


def require_manifest(partition: Partition, inputs: Mapping[str, str]) -> Manifest:
    """Returns the manifest of a partition that this run has published or found up to date.

    Raises:
        InfrastructureError: the manifest has other inputs, because another run has replaced the partition.
    """
    manifest = read_manifest(partition)
    if dict(manifest.inputs) != dict(inputs):
        raise InfrastructureError(
            f"{partition.path} was replaced while this run used it: a run of another configuration wrote "
            "it, or the raw log has changed",
            "run the job again; if two configurations use this lake, give each one a lake of its own",
        )
    return manifest


def is_whole(partition: Partition, manifest: Manifest) -> bool:
    """Returns whether each file has the size in the manifest, and the manifest marks no file as damaged."""
    sizes = file_io.sizes(data_files(partition, manifest))
    return not manifest.damaged and sizes == [entry.bytes for entry in manifest.files]


def replace_manifest(partition: Partition, manifest: Manifest) -> None:
    """Publishes a partition in one atomic step.

    All files of the manifest must already be verified and durable.
    """
    published = DatasetVersion(
        partition.path, manifest.digest, manifest.rows, manifest.bytes, manifest.schema
    )
    event = partition.recorder.record_publication(
        published, manifest.inputs.values(), manifest.created_at or file_io.utc_now()
    )
    if event:
        manifest = replace(manifest, lineage=event)
    file_io.replace_json(partition.file(MANIFEST_NAME), format_versions.MANIFEST.stamp(manifest.to_json()))
    _update_views(partition, manifest)


def withdraw(partition: Partition) -> None:
    """Deletes the manifest of a partition, and then its hard links or its entries in the Delta log.

    The data files remain. If this function was interrupted, call it again: it continues.
    """
    file_io.delete_if_present(partition.file(MANIFEST_NAME))
    if not file_io.is_local(partition.path) or file_io.exists(partition.path):
        _update_views(partition, _without_files(partition))


def _without_files(partition: Partition) -> Manifest:
    return Manifest(partition.table, partition.dt, files=(), schema=(), inputs={})


def _update_views(partition: Partition, manifest: Manifest) -> None:
    """Updates the hard links or the Delta log of a partition, through which other tools find its files.

    If another job has replaced the manifest in the meantime, the links or the log get the files of the newer
    manifest.
    """
    if partition.internal:
        return
    if any(not entry.path.startswith(f"{partition.data}/") for entry in manifest.files):
        return  # A raw log or a table of an early release: the files are already in the partition's folder.

    def newest_manifest() -> Manifest:
        try:
            return load_manifest(partition)
        except FileNotFoundError:  # another job has deleted the manifest
            return _without_files(partition)

    if file_io.is_local(partition.path):
        folder, data = (
            file_io.filesystem(path)[1] for path in (partition.path, partition.file(partition.data))
        )
        other_tools.show_links(
            folder,
            data,
            _links(partition, manifest).keys(),
            lambda: _links(partition, newest_manifest()),
        )
        return
    table, content = partition.file(partition.data).rpartition("/")[0], _content(partition, manifest)
    has_log = partition.path.endswith(f"/dt={partition.dt}") and other_tools.log_can_hold(manifest.schema)
    if has_log and other_tools.log_says(table, partition.dt, content):
        return
    for info in file_io.list_files(partition.path, recursive=True):
        if info.is_file and info.base_name != MANIFEST_NAME:  # early releases kept data files here
            file_io.filesystem(partition.path)[0].delete_file(info.path)
    if has_log:
        other_tools.show_log(table, partition.dt, lambda: _content(partition, newest_manifest()))


def _content(partition: Partition, manifest: Manifest) -> other_tools.LogContent:
    table = f"{partition.data.rpartition('/')[0]}/"
    files = [(entry.path.removeprefix(table), entry.rows, entry.bytes) for entry in manifest.files]
    return other_tools.LogContent(files, manifest.schema)


def _links(partition: Partition, manifest: Manifest) -> dict[str, str]:
    """Maps the name of each hard link in the partition's folder to the path of its file.

    The link's name contains the name of the attempt, so two attempts have different links. Names of JSON
    lines files end in .jsonl, because the pattern `*.json` would also match the manifest.
    """
    names = [entry.path.removeprefix(f"{partition.data}/").replace("/", "-") for entry in manifest.files]
    links = [f"{name}l" if name.endswith(".json") else name for name in names]
    paths = [file_io.filesystem(path)[1] for path in data_files(partition, manifest)]
    return dict(zip(links, paths, strict=True))


def combined_digest(digests: Iterable[str], recorder: LineageRecorder = NOT_RECORDED) -> str:
    """Combines digests into one, which does not depend on their order.

    `recorder` records which digests were combined.
    """
    parts = sorted(digests)
    digest = digest_of(parts)
    recorder.record_combined(digest, parts)
    return digest
