"""Finds the raw files of one day, or of a table without dates, and computes a digest of these files.

A Delta table's current version lists its files, with the values of their partition columns. For a path such
as `/srv/clicks/dt=2026-01-31`, the table is in `/srv/clicks`. Tasks read only the files whose partition
column `dt` has the value 2026-01-31.

Spark copies tables of its catalogue to the lake (etl/spark/copy_tables.py). Tasks read these copies as
Parquet files. A copy has the columns that the configuration lists, with the same names as in the table.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from pyarrow import fs

from conf.errors import ConfigError, DataError
from conf.names import SPARK_TABLE, has_date, scheme_of, with_date
from conf.plugins import READER
from conf.raw_types import Format, Log, RawTable, TableOfRoles, format_settings
from conf.types import Config
from etl.raw.file_splits import read_blocks, split_files
from storage import file_io
from storage.lineage import NOT_RECORDED, LineageRecorder
from storage.manifest import data_files, digest_of, is_published, read_manifest
from storage.other_tools import store_options
from storage.paths import LakePaths, Partition, Table

if TYPE_CHECKING:
    from deltalake import DeltaTable

COPIES = "copies"
ALL_DAYS = "all"  # Name of the partition with the copied rows if the table is not read by day.
# Key in `Manifest.facts` of a copy. Its value is the name of the column with user ids; without such a column,
# the key is missing.
USER_COLUMN = "user"
# Key in `Manifest.facts` of a copy. Its value is the digest of the rows. When erase_user removes rows of the
# copy, it also removes this key.
CONTENT = "content"
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_CHARACTERS = 60


def is_by_day(table: RawTable) -> bool:
    """Returns whether the rows of the table are read by day."""
    return has_date(table.path)


def source_columns(table: RawTable) -> list[str]:
    """Returns the names of a raw table's columns in its files, each name once."""
    names = {column.name: column.source_name for column in table.columns}
    if isinstance(table, TableOfRoles):
        names = {name: names.get(name, name) for name in table.roles}
    return list(dict.fromkeys(names.values()))


def time_column(table: RawTable) -> str | None:
    """Returns the name of the column with the event time in the table; None if there is none."""
    if not isinstance(table, Log) or table.event_time is None:
        return None
    name = table.event_time.column
    return next(column.source_name for column in table.columns if column.name == name)


def copies_of(config: Config, table: RawTable, recorder: LineageRecorder = NOT_RECORDED) -> Table:
    """Returns the table of the data lake that contains the copied rows of `table`.

    The name of the returned table depends on the columns and the path of `table`.
    """
    rules = [table.path, table.time_zone, sorted(source_columns(table)), time_column(table)]
    name = _UNFIT.sub("_", table.path.split("/")[0])[:_NAME_CHARACTERS].lstrip("._-")
    return LakePaths(config.lake, recorder).copies(config.name, f"{name or 'table'}-{digest_of(rules)}")


def copy_of(config: Config, table: RawTable, dt: str, recorder: LineageRecorder = NOT_RECORDED) -> Partition:
    """Returns the partition with the copied rows of a day, or with all rows if the table has no days."""
    return copies_of(config, table, recorder).partition(dt if is_by_day(table) else ALL_DAYS)


# The code below lists the data files in the current version of Delta tables, with the values of their
# partitions.

_FILTER = re.compile(r"([^/=]+)=([^/]*)")
_PARTITION = "partition."  # delta-rs adds this prefix to the names of partition columns
_LOG = "_delta_log"
_MAPPING = "delta.columnMapping.mode"


@dataclass(frozen=True)
class DeltaFile:
    """A data file of a Delta table.

    Attributes:
        path: its full path.
        below: its path relative to the folder of the table.
        bytes: size of the file.
        modified_ms: time of the last change, in ms since 1970-01-01 UTC.
        row: its index in `DeltaVersion.partitions`.
        deleted: a digest of the indices of the rows that a deletion vector deletes; empty without such rows.
    """

    path: str
    below: str
    bytes: int
    modified_ms: int
    row: int
    deleted: str


@dataclass(frozen=True)
class DeltaVersion:
    """One version of a Delta table.

    Attributes:
        root: the folder of the table.
        number: the number of the version.
        columns: the names of all columns.
        files: the data files, ordered by the time at which they were written, and then by path.
        partitions: the values of the partition columns, one row for each file.
        may_delete_rows: whether files may have deletion vectors, which list deleted rows.
    """

    root: str
    number: int
    columns: tuple[str, ...]
    files: tuple[DeltaFile, ...]
    partitions: pa.Table
    may_delete_rows: bool


def split_location(path: str) -> tuple[str, list[tuple[str, str]]]:
    """Returns the folder of a table, and a pair (column, pattern of values) for each filter in the path."""
    root = path.rstrip("/")
    filters: list[tuple[str, str]] = []
    while match := _FILTER.fullmatch(root.rsplit("/", 1)[-1]):
        filters.insert(0, (match[1], match[2]))
        root = root.rpartition("/")[0]
    return root, filters


def files_at(path: str) -> list[DeltaFile]:
    """Returns the files of a table's current version whose partition values match the path.

    The result is empty if there is no folder at the path.

    Raises:
        ConfigError: the folder is not a Delta table, or a column of the path is not a partition column.
        DataError: the table has a feature that is not supported.
    """
    root, filters = split_location(path)
    version = current_version(root)
    if version is None:
        return []
    names = version.partitions.column_names
    unknown = [name for name, _ in filters if name not in names]
    if unknown:
        raise ConfigError(
            f"{path}: {unknown} are not partition columns of the Delta table {root}, whose partition columns "
            f"are {names}",
            "write only partition columns and their values after the folder of the table",
        )
    texts = {name: [_text(value) for value in version.partitions[name].to_pylist()] for name, _ in filters}
    return [
        file
        for file in version.files
        if all(_text_matches(texts[name][file.row], pattern) for name, pattern in filters)
    ]


def version_of(file: str) -> DeltaVersion:
    """Returns the current version of the Delta table to which a data file belongs.

    Raises:
        DataError: the file is not in a Delta table.
    """
    root = file.rpartition("/")[0]
    while root.strip("/") and not root.endswith(":/"):
        if file_io.exists(f"{root}/{_LOG}"):
            version = current_version(root)
            if version is not None:
                return version
        root = root.rpartition("/")[0]
    raise DataError(
        f"no folder above {file} contains a {_LOG}, so the file is not part of a Delta table",
        "give the folder of a Delta table as `path`; files of shallow clones cannot be read",
    )


def kept_rows(version: DeltaVersion, paths: set[str]) -> dict[str, list[bool]]:
    """Returns, for each file of `paths` with a deletion vector, whether each of its rows is kept.

    If a file has more rows than the returned list has elements, the other rows are kept.

    Raises:
        DataError: a deletion vector cannot be read.
    """
    if not version.may_delete_rows:
        return {}
    by_name = {path.rpartition("/")[2]: path for path in paths}
    masks = _masks(version.root, _open(version.root))
    return {by_name[name]: mask for name, mask in masks.items() if name in by_name}


def _masks(root: str, table: DeltaTable) -> dict[str, list[bool]]:
    """Returns the mask of kept rows (`kept_rows`) of each file with a deletion vector, by the file's name."""
    try:
        vectors = _table(table.deletion_vectors())
    except Exception as error:  # delta-rs raises exceptions of many types
        raise DataError(
            f"{root}: the deletion vectors of the Delta table cannot be read: {error}",
            "remove them, for example with `REORG TABLE … APPLY (PURGE)` of Spark, and run the job again",
        ) from error
    files, masks = (vectors.column(index).to_pylist() for index in (0, 1))
    return {unquote(uri.rpartition("/")[2]): mask for uri, mask in zip(files, masks, strict=True)}


def current_version(root: str) -> DeltaVersion | None:
    """Returns the current version of a table; None if there is no folder.

    Raises:
        ConfigError: the folder is not a Delta table.
        DataError: the table has a feature that is not supported, or its log cannot be read.
    """
    if not file_io.list_files(f"{root}/{_LOG}"):
        if file_io.exists(root):
            raise ConfigError(
                f"{root} is not a Delta table: it has no folder {_LOG}",
                "correct `path` and `format` of this table in the configuration",
            )
        return None
    table = _open(root)
    version = table.version()
    return _version(root, version, table.metadata().id)


def _open(root: str) -> DeltaTable:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        return DeltaTable(root, storage_options=store_options(root))
    except (DeltaError, OSError) as error:
        raise DataError(
            f"the Delta table {root} cannot be read: {error}",
            "check the table with the tool that writes it; remove the feature that is not supported from "
            "the table, or export its rows as Parquet",
        ) from error


@lru_cache(maxsize=8)
def _version(root: str, number: int, table_id: str) -> DeltaVersion:
    """Returns a version of a table.

    `table_id` distinguishes the table from an earlier one at the same path.
    """
    del table_id
    table = _open(root)
    if number != table.version():
        table.load_as_version(number)
    if table.metadata().configuration.get(_MAPPING, "none") != "none":
        raise DataError(
            f"the Delta table {root} uses column mapping ({_MAPPING}): its columns have other names in the "
            "files than in the table",
            "write the table without column mapping, or export its rows as Parquet",
        )
    actions = _table(table.get_add_actions(flatten=True))
    features = table.protocol().reader_features or []
    may_delete_rows = "deletionVectors" in features
    masks = _masks(root, table) if may_delete_rows else {}
    names = [name for name in actions.column_names if name.startswith(_PARTITION)]
    partitions = pa.table({name.removeprefix(_PARTITION): actions[name] for name in names})
    files = []
    columns = (actions[name].to_pylist() for name in ("path", "size_bytes", "modification_time"))
    for row, (below, size, modified) in enumerate(zip(*columns, strict=True)):
        plain = unquote(below)
        if "://" in plain or plain.startswith("/"):
            raise DataError(
                f"the Delta table {root} lists the file {plain} of another folder; such a table (a shallow "
                "clone) cannot be read",
                "give the folder of the original table, or make a deep clone",
            )
        deleted = _digest_of_deleted(masks.get(plain.rpartition("/")[2], []))
        files.append(DeltaFile(f"{root}/{plain}", plain, size, modified, row, deleted))
    ordered = tuple(sorted(files, key=lambda file: (file.modified_ms, file.below)))
    fields = tuple(field.name for field in table.schema().fields)
    return DeltaVersion(root, number, fields, ordered, partitions, may_delete_rows)


def _digest_of_deleted(mask: list[bool]) -> str:
    """Returns a digest of the indices of the rows that a mask does not keep; empty if it keeps all."""
    rows = np.flatnonzero(~np.asarray(mask, bool)).astype("<i8")
    return sha256(rows.tobytes()).hexdigest()[:16] if len(rows) else ""


def _table(stream: Any) -> pa.Table:
    """Converts the rows from delta-rs, which has its own version of Arrow, to a table of pyarrow."""
    return pa.RecordBatchReader._import_from_c_capsule(stream.__arrow_c_stream__()).read_all()


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _text_matches(text: str | None, pattern: str) -> bool:
    return text is not None and (text == pattern or fnmatch.fnmatchcase(text, pattern))


# The code below finds the raw files of one day, or of a table without dates, and computes a digest of them.

_WILDCARD = re.compile(r"[*?\[]")
_SUFFIX = re.compile(r"\.\w+$")

# Suffixes of compressed text that no engine can read. etl.raw.file_splits has the supported suffixes.
_UNREADABLE = (".zip", ".7z", ".xz", ".lzma", ".lz4", ".lzo", ".snappy", ".zstd", ".Z")

# A compressed file whose text is empty has fewer bytes than this: gzip needs 20 bytes and the name of the
# file.
_EMPTY_BYTES = 512


@dataclass(frozen=True)
class RawFiles:
    """The raw files of one table and day. Names of files with earlier rows must come first alphabetically.

    Attributes:
        dt: the day as an ISO date. For a table without dates, it is the run date.
        paths: paths of the files, ordered by name. Files of a Delta table are ordered by the time at which
            they were written.
        bytes: total size of the files.
        digest: if the folder of the files has a manifest, the digest in this manifest. Otherwise, a digest of
            the files' names, sizes and modification times. For a Delta table, the deleted rows of files are
            used instead of modification times. The digest changes if a file arrives late or is replaced. The
            names in this digest are paths relative to the last folder before a wildcard.
        recorder: records other inputs of the run that are read with these files, such as tables of
            attributes.
    """

    dt: str
    paths: tuple[str, ...]
    bytes: int
    digest: str
    recorder: LineageRecorder = field(default=NOT_RECORDED, compare=False, repr=False)


def raw_path(config: Config, table: RawTable, dt: str) -> str:
    """Returns the table's path or glob pattern for one day."""
    return with_date(table.path.replace("{lake}", config.lake).replace("{data}", config.data), dt)


def find_raw(
    config: Config, table: RawTable, dt: str, recorder: LineageRecorder = NOT_RECORDED
) -> RawFiles | None:
    """Returns the raw files of one day; None if there are no files.

    `recorder` records the files as inputs of the run.

    If the folder of the raw files has a manifest, only files that the manifest lists are returned. So the
    files of an interrupted or replaced delivery are ignored. Otherwise, all files that match the table's path
    are returned. Wildcards are also allowed in the folders of this path. A wildcard does not match names that
    begin with a dot or an underscore. For a table of Spark's catalogue, the files are the files of its copy.

    Raises:
        DataError: a file is compressed in a format that no engine can read, or an entry of a local folder
            matches the path, but cannot be read as a file.
    """
    pattern = raw_path(config, table, dt)
    if table.format == "delta":
        return _find_delta(pattern, dt, recorder)
    if table.format == SPARK_TABLE:
        copy = copy_of(config, table, dt, recorder)
        copied = _of_manifest(copy, dt) if is_published(copy) else None
        return copied if copied is not None and copied.paths else None
    folder = Partition("raw", dt, pattern.rsplit("/", 1)[0], recorder=recorder)
    if is_published(folder):
        return _of_manifest(folder, dt)
    matches = _list_matches(pattern)
    if not matches:
        return None
    _require_readable(matches, table.format)
    digest = digest_of([[below, info.size, info.mtime_ns] for _, below, info in matches])
    extension = READER.find_in_package(table.format)
    if extension is not None:  # an installed package reads this format, so the rows depend on its code
        digest = digest_of([digest, extension.digest()])
    size = sum(info.size for _, _, info in matches)
    recorder.record_read(pattern, digest, size_bytes=size)
    return RawFiles(dt, tuple(path for path, _, _ in matches), size, digest, recorder)


def _of_manifest(folder: Partition, dt: str) -> RawFiles:
    manifest = read_manifest(folder)
    paths = tuple(_absolute(path) for path in data_files(folder, manifest))
    return RawFiles(dt, paths, manifest.bytes, manifest.digest, folder.recorder)


def _find_delta(path: str, dt: str, recorder: LineageRecorder) -> RawFiles | None:
    """Returns the raw files of one day of a Delta table; None if there are no files.

    The files are ordered by the time at which they were written.
    """
    files = files_at(path)
    if not files:
        return None
    # A deletion vector changes the rows of a day, but not its files.
    digest = digest_of(
        [[file.below, file.bytes, *([file.deleted] if file.deleted else [])] for file in files]
    )
    size = sum(file.bytes for file in files)
    recorder.record_read(path, digest, size_bytes=size)
    return RawFiles(dt, tuple(_absolute(file.path) for file in files), size, digest, recorder)


def find_files(pattern: str, form: Format) -> tuple[str, ...]:
    """Returns the paths of the files that match a path or glob pattern, ordered as in `RawFiles`.

    Raises:
        DataError: a file is compressed in a format that no engine can read.
    """
    if form == "delta":
        return tuple(_absolute(file.path) for file in files_at(pattern))
    matches = _list_matches(pattern)
    _require_readable(matches, form)
    return tuple(path for path, _, _ in matches)


def has_no_text(table: RawTable, raw: RawFiles) -> bool:
    """Returns whether all files are empty. A compressed file is empty if its decompressed text is empty."""
    if raw.bytes == 0:
        return True
    if not format_settings(table.format).is_text or raw.bytes > _EMPTY_BYTES * len(raw.paths):
        return False
    return not any(len(block) for part in split_files(raw.paths) for block in read_blocks(part))


def require_raw(
    config: Config,
    table: RawTable,
    dt: str,
    key: str = "log.path",
    recorder: LineageRecorder = NOT_RECORDED,
) -> RawFiles:
    """Returns the raw files of one day. There must be at least one file that is not empty.

    Raises:
        DataError: there are no files, or all are empty. The message contains `key`, the configuration key of
            the path.
    """
    raw = find_raw(config, table, dt, recorder)
    pattern = raw_path(config, table, dt)
    if raw is None and table.format == SPARK_TABLE:
        raise DataError(
            f"Spark's table {pattern} (from {key}) has no copy of the rows of {dt} in the lake",
            "run build_features, which copies these rows; if it has already run for this date, the table "
            f"has no such rows: load them into the table, or correct {key}",
        )
    if raw is None:
        raise DataError(
            f"no raw file at {pattern} (from {key})",
            f"deliver the raw files of {dt}, or correct {key} in the configuration or with --set; {{date}} "
            "stands for YYYY-MM-DD, and {date:%Y%m%d} for YYYYMMDD",
        )
    if raw.bytes == 0:
        raise DataError(
            f"the raw files at {pattern} are empty (0 bytes)", f"deliver the raw files of {dt} again"
        )
    return raw


def _require_readable(matches: Sequence[tuple[str, str, fs.FileInfo]], form: Format) -> None:
    """Raises DataError if a text file is compressed in a format that no engine can read."""
    unreadable = [path for path, _, _ in matches if path.endswith(_UNREADABLE)]
    if unreadable and format_settings(form).is_text:
        raise DataError(
            f"{unreadable[0]} is compressed in a format that is not supported",
            "deliver it as .gz, .bz2 or .zst",
        )


def _list_matches(pattern: str) -> list[tuple[str, str, fs.FileInfo]]:
    """Returns the path, the relative path and the file information of each matching file, ordered by path.

    The relative path begins with the first folder that a wildcard matches, or with the file name.
    """
    remote = "" if file_io.is_local(pattern) else f"{scheme_of(pattern)}://"
    *folders, name = file_io.filesystem(pattern)[1].split("/")
    fixed = next((index for index, folder in enumerate(folders) if _WILDCARD.search(folder)), len(folders))
    bases = ["/".join(folders[:fixed])]
    for folder_pattern in folders[fixed:]:
        _require_no_lost_entries(pattern, bases, folder_pattern, is_file=False)
        bases = [
            info.path
            for base in bases
            for info in file_io.list_files(remote + (base or "/"))
            if info.type == fs.FileType.Directory and _matches(info.base_name, folder_pattern)
        ]
    _require_no_lost_entries(pattern, bases, name, is_file=True)
    infos = [
        info
        for base in bases
        for info in file_io.list_files(remote + (base or "/"))
        if info.is_file and _matches(info.base_name, name)
    ]
    matches = [(remote + info.path, "/".join(info.path.split("/")[fixed:]), info) for info in infos]
    return sorted(matches, key=lambda match: match[0])


def _require_no_lost_entries(pattern: str, bases: Sequence[str], name: str, *, is_file: bool) -> None:
    """Raises DataError if an entry of a local folder matches the pattern, but cannot be read.

    A listing leaves out such entries, for example a symbolic link to a disk that is not mounted. Without this
    check, the job would leave out the rows of the file without an error.

    Args:
        pattern: the complete path or glob pattern, for the message.
        bases: the folders whose entries are checked.
        name: the part of the pattern that entries of these folders match.
        is_file: whether this part is the last one, so that it matches files.
    """
    if not file_io.is_local(pattern):
        return
    for base in bases:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(base or "/") as entries:
            for entry in entries:
                problem = _problem_of(entry, name, is_file=is_file) if _matches(entry.name, name) else None
                if problem:
                    raise DataError(
                        f"{entry.path} matches {pattern}, but {problem}",
                        "correct, rename or delete this entry of the folder, then run again",
                    )


def _problem_of(entry: os.DirEntry[str], name: str, *, is_file: bool) -> str | None:
    try:
        is_folder, is_regular = entry.is_dir(), entry.is_file()
    except OSError:  # the entry is in a loop of symbolic links
        is_folder = is_regular = False
    if not is_folder and not is_regular and entry.is_symlink() and not os.path.exists(entry.path):
        return f"is a symbolic link to {os.readlink(entry.path)!r}, which does not exist"
    if not is_file or is_regular:
        return None
    if not is_folder:
        return "is not a regular file"
    # A pattern such as `*` may also match folders beside the files. This is not an error.
    suffix = _SUFFIX.search(name)
    return "is a folder" if suffix and entry.name.endswith(suffix[0]) else None


def _matches(base_name: str, pattern: str) -> bool:
    hidden = base_name.startswith((".", "_"))
    return base_name == pattern or (not hidden and fnmatch.fnmatchcase(base_name, pattern))


def _absolute(path: str) -> str:
    """Makes a local path absolute, because the JVM may run in another folder."""
    return file_io.filesystem(path)[1] if file_io.is_local(path) else path


# The functions below find the log of the items that were shown to users on one day (`serving.impressions`).
#
# build_features adds positions of this log to the rows of the click log if `row_column` is set. In this case,
# the log of impressions is an input of everything that is computed from these rows.
# etl/readers/impressions.py reads the log of impressions.


def impressions_of(config: Config, raw: RawFiles) -> RawFiles | None:
    """Returns the files with the impressions of the day of a click log.

    Returns None if there are no such files, or if the configuration does not add positions to the rows
    (`row_column`).

    Args:
        config: the configuration, whose section `serving.impressions` has the path.
        raw: the files of the click log. Its recorder records the impressions as an input of the run.
    """
    settings = config.serving.row_positions
    return find_raw(config, settings, raw.dt, raw.recorder) if settings else None


def impression_inputs(config: Config, raw: RawFiles) -> dict[str, str]:
    """Returns the digest of a day's impressions, for manifests of what is computed from the day's rows.

    The digest is `none` if the day has no file with impressions. The result is empty if the configuration
    does not add positions to the rows.
    """
    if config.serving.row_column is None:
        return {}
    logged = impressions_of(config, raw)
    return {"impressions": logged.digest if logged else "none"}


def rows_digest(config: Config, raw: RawFiles) -> str:
    """Returns a digest of the files from which the prepared rows of a day are computed.

    It is the digest of the click log if the configuration does not add positions to the rows.
    """
    inputs = impression_inputs(config, raw)
    return digest_of([raw.digest, inputs]) if inputs else raw.digest
