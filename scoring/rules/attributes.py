"""Reads an item attribute from a configured table.

The result has one value code per candidate item, in the order of the candidate items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import fs

from conf.counted import counted
from conf.errors import ConfigError, DataError
from etl.raw.value_text import id_texts, nan_to_null
from scoring.rules.request import AttributeTable
from storage import file_io
from storage.manifest import digest_of

# The code of an item without a value.
NO_VALUE = -1


@dataclass(frozen=True)
class ItemAttribute:
    """The values of one attribute of all items.

    Attributes:
        codes: (N,) int64: for each item index, the index of the item's value in `values`; NO_VALUE for an
            item without a value.
        values: the distinct attribute values.
    """

    codes: NDArray[np.int64]
    values: list[str]


def read_attribute(table: AttributeTable) -> pa.Table:
    """Reads the rows of a table that have both a key and a value.

    Returns a table with the columns key and value. Both are strings; other types are cast to strings.

    Raises:
        ConfigError: there is no file at the path of the table, or a file lacks a column.
        DataError: a file of the table cannot be read, or an item has several rows.
    """
    parts = [_columns(table, path) for path in files_of(table)]
    rows = pa.concat_tables(parts).drop_null().combine_chunks()
    counts = pc.value_counts(rows.column("key").combine_chunks())
    repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        verb = "has" if len(repeated) == 1 else "have"
        raise DataError(
            f"{table.path}: {table.key} is not unique: {counted(len(repeated), 'item')} {verb} several rows, "
            f"such as {repeated[0].as_py()!r}",
            "keep one row per item",
        )
    return rows


def align(table: AttributeTable, rows: pa.Table, items: pa.Array) -> ItemAttribute:
    """Returns the attribute values of the candidate items, in the order of these items.

    Args:
        table: the table that the rows come from, for error messages.
        rows: the result of read_attribute.
        items: (N,) keys of the candidate items.

    Raises:
        DataError: none of the items has a value, so the keys of the table are probably not the item ids of
            the log.
    """
    row_of_item = pc.index_in(items, value_set=rows.column("key").combine_chunks())
    encoded = rows.column("value").combine_chunks().dictionary_encode()
    codes = (
        encoded.indices.take(row_of_item).fill_null(NO_VALUE).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    if len(items) and not (codes != NO_VALUE).any():
        example = rows.column("key")[0].as_py() if rows.num_rows else "none"
        raise DataError(
            f"{table.path}: none of the {len(items)} candidate items, such as {items[0].as_py()!r}, "
            f"has a value of {table.column}; the keys of the table look like {example!r}",
            f"check that {table.key} has the item ids of the log",
        )
    return ItemAttribute(codes, [str(value) for value in encoded.dictionary.to_pylist()])


def digest_of_table(rows: pa.Table) -> str:
    """Returns a digest (hash) of the keys and values in `rows`. It does not depend on the order of `rows`."""
    ordered = rows.sort_by("key")
    return digest_of([ordered.column("key").to_pylist(), ordered.column("value").to_pylist()])


def files_of(table: AttributeTable) -> list[str]:
    """Returns the paths of a table's files.

    Raises:
        ConfigError: there is no file.
    """
    source, inner = file_io.filesystem(table.path)
    info = source.get_file_info(inner)
    if info.type == fs.FileType.File:
        return [inner]
    entries = file_io.list_files(table.path)
    paths = [entry.path for entry in entries if entry.is_file and not _hidden(entry.path)]
    if not paths:
        raise ConfigError(
            f"score.rules.attributes: there is no file at {table.path}", "correct `path` of this attribute"
        )
    return paths


def _hidden(path: str) -> bool:
    """Returns whether Spark ignores a file because of its name."""
    return path.rsplit("/", 1)[1].startswith((".", "_"))


def _columns(table: AttributeTable, path: str) -> pa.Table:
    """Reads the key column and the attribute column of one file.

    Returns a table with the string columns key and value, including nulls.
    """
    source = file_io.filesystem(table.path)[0]
    names = [table.key, table.column]
    try:
        if table.format == "parquet":
            with source.open_input_file(path) as opened:
                file = pq.ParquetFile(opened)
                _require_columns(table, file.schema_arrow.names)
                rows = file.read(columns=list(dict.fromkeys(names)))
        elif table.format == "csv":  # read as text, because an id such as 007 would be read as the number 7
            strings = pa_csv.ConvertOptions(
                column_types={name: pa.string() for name in names}, strings_can_be_null=True
            )
            with source.open_input_stream(path) as opened:
                rows = pa_csv.read_csv(opened, convert_options=strings)
            _require_columns(table, rows.column_names)
        else:
            assert_never(table.format)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{path} cannot be read as {table.format}: {error}", "correct the file or its `format`"
        ) from error
    try:
        keys = id_texts(table.key, rows.column(table.key).combine_chunks())
    except ValueError as error:
        raise DataError(f"{path}: {error}", "store the keys as texts or integers") from error
    values = rows.column(table.column)
    if pa.types.is_floating(values.type):
        values = nan_to_null(values)
    return pa.table({"key": keys, "value": values.cast(pa.string())})


def _require_columns(table: AttributeTable, names: list[str]) -> None:
    """Raises ConfigError if the key column or the attribute column is not among `names`."""
    missing = [name for name in (table.key, table.column) if name not in names]
    if missing:
        raise ConfigError(
            f"score.rules.attributes: {table.path} has no columns {missing}; it has {names}",
            "correct `key` and `column`",
        )
