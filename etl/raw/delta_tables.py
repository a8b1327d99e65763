"""Lists the data files in the current version of Delta tables, with the values of their partitions.

For a path such as `/srv/clicks/dt=2026-01-31`, the table is in `/srv/clicks`. Tasks read only the files with
this value of the partition column `dt`.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from conf.errors import ConfigError, DataError
from storage import file_io
from storage.other_tools import store_options

if TYPE_CHECKING:
    from deltalake import DeltaTable

_FILTER = re.compile(r"([^/=]+)=([^/]*)")
_PARTITION = "partition."  # delta-rs adds this prefix to the names of partition columns
_LOG = "_delta_log"
_MAPPING = "delta.columnMapping.mode"


@dataclass(frozen=True)
class DeltaFile:
    """A data file of a Delta table.

    Attributes:
        path: its full path.
        below: its path below the folder of the table.
        bytes: size of the file.
        modified_ms: time of the last change, in ms since 1970-01-01 UTC.
        row: its index in `DeltaVersion.partitions`.
    """

    path: str
    below: str
    bytes: int
    modified_ms: int
    row: int


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
    """Returns the folder of a table, and the (column, pattern of values) of each partition in a path."""
    root = path.rstrip("/")
    filters: list[tuple[str, str]] = []
    while match := _FILTER.fullmatch(root.rsplit("/", 1)[-1]):
        filters.insert(0, (match[1], match[2]))
        root = root.rpartition("/")[0]
    return root, filters


def files_at(path: str) -> list[DeltaFile]:
    """Returns the files of a table's current version that have the partition values in the path.

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
            f"{path}: {unknown} are not partition columns of the Delta table {root}, which has {names}",
            "write only partition columns and their values after the folder of the table",
        )
    texts = {name: [_text(value) for value in version.partitions[name].to_pylist()] for name, _ in filters}
    return [
        file
        for file in version.files
        if all(_matches(texts[name][file.row], pattern) for name, pattern in filters)
    ]


def version_of(file: str) -> DeltaVersion:
    """Returns the current version of the table of a data file.

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

    If an array has fewer elements than the file has rows, all rows after its end are kept.

    Raises:
        DataError: a deletion vector cannot be read.
    """
    if not version.may_delete_rows:
        return {}
    by_name = {path.rpartition("/")[2]: path for path in paths}
    try:
        reader = _open(version.root).deletion_vectors()
        vectors = _table(reader)
    except Exception as error:  # delta-rs raises exceptions of many types
        raise DataError(
            f"{version.root}: the deletion vectors of the Delta table cannot be read: {error}",
            "remove them, for example with `REORG TABLE … APPLY (PURGE)` of Spark, and run the job again",
        ) from error
    masks = {}
    for uri, mask in zip(*(vectors.column(index).to_pylist() for index in (0, 1)), strict=True):
        path = by_name.get(unquote(uri.rpartition("/")[2]))
        if path is not None:
            masks[path] = mask
    return masks


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
            "check the table with the tool that writes it; a feature that is not supported must be removed "
            "from the table, or its rows be exported as Parquet",
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
            f"the Delta table {root} has {_MAPPING}, so its files have other names of columns than the table",
            "write the table without column mapping, or export its rows as Parquet",
        )
    actions = _table(table.get_add_actions(flatten=True))
    names = [name for name in actions.column_names if name.startswith(_PARTITION)]
    partitions = pa.table({name.removeprefix(_PARTITION): actions[name] for name in names})
    files = []
    columns = (actions[name].to_pylist() for name in ("path", "size_bytes", "modification_time"))
    for row, (below, size, modified) in enumerate(zip(*columns, strict=True)):
        plain = unquote(below)
        if "://" in plain or plain.startswith("/"):
            raise DataError(
                f"the Delta table {root} has the file {plain} of another folder, as shallow clones have",
                "give the folder of the original table, or make a deep clone",
            )
        files.append(DeltaFile(f"{root}/{plain}", plain, size, modified, row))
    ordered = tuple(sorted(files, key=lambda file: (file.modified_ms, file.below)))
    fields = tuple(field.name for field in table.schema().fields)
    features = table.protocol().reader_features or []
    return DeltaVersion(root, number, fields, ordered, partitions, "deletionVectors" in features)


def _table(stream: Any) -> pa.Table:
    """Converts rows that delta-rs returns to a table of the installed version of Arrow."""
    return pa.RecordBatchReader._import_from_c_capsule(stream.__arrow_c_stream__()).read_all()


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _matches(text: str | None, pattern: str) -> bool:
    return text is not None and (text == pattern or fnmatch.fnmatchcase(text, pattern))
