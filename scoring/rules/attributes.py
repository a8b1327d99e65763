"""Attributes of items from a table that the configuration names, as codes in the order of the candidate items."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import fs

from conf.errors import ConfigError, DataError
from scoring.rules.request import AttributeTable
from storage import file_io
from storage.manifest import digest_of

# The code of an item without a value.
NO_VALUE = -1


@dataclass(frozen=True)
class ItemAttribute:
    """`codes` (N,) int64 by item index, places in `values`; NO_VALUE where an item has none."""

    codes: NDArray[np.int64]
    values: list[str]


def read_attribute(table: AttributeTable) -> pa.Table:
    """(key string, value string) of every row with both, whatever the types in the file.

    Raises:
        ConfigError: the table is not there, or lacks a column.
        DataError: a file cannot be read, or an item stands in it twice.
    """
    parts = [_columns(table, path) for path in files_of(table)]
    rows = pa.concat_tables(parts).drop_null().combine_chunks()
    counts = pc.value_counts(rows.column("key").combine_chunks())
    repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        raise DataError(
            f"{table.path}: {table.key} is not unique, {len(repeated)} items stand in it several times, such as "
            f"{repeated[0].as_py()!r}",
            "keep one row an item",
        )
    return rows


def align(table: AttributeTable, rows: pa.Table, items: pa.Array) -> ItemAttribute:
    """The attribute of each of `items` (N keys).

    Raises:
        DataError: none of the items has a value, so the table has other keys.
    """
    places = pc.index_in(items, value_set=rows.column("key").combine_chunks())
    encoded = rows.column("value").combine_chunks().dictionary_encode()
    codes = encoded.indices.take(places).fill_null(NO_VALUE).to_numpy(zero_copy_only=False).astype(np.int64)
    if len(items) and not (codes != NO_VALUE).any():
        raise DataError(
            f"{table.path}: none of the {len(items)} candidate items, such as {items[0].as_py()!r}, has a value of "
            f"{table.column}; keys there are like {rows.column('key')[0].as_py() if rows.num_rows else 'none'!r}",
            f"see that {table.key} holds the item ids of the log",
        )
    return ItemAttribute(codes, [str(each) for each in encoded.dictionary.to_pylist()])


def digest_of_table(rows: pa.Table) -> str:
    """Digest of the content, whatever the order of its rows."""
    ordered = rows.sort_by("key")
    return digest_of([ordered.column("key").to_pylist(), ordered.column("value").to_pylist()])


def files_of(table: AttributeTable) -> list[str]:
    """The files of a table; ConfigError where there is none."""
    source, inner = file_io.filesystem(table.path)
    info = source.get_file_info(inner)
    if info.type == fs.FileType.File:
        return [inner]
    found = [each.path for each in file_io.list_files(table.path) if each.is_file and not _hidden(each.path)]
    if not found:
        raise ConfigError(f"score.rules.attributes: there is no file at {table.path}", "correct the path")
    return found


def _hidden(path: str) -> bool:
    return path.rsplit("/", 1)[1].startswith((".", "_"))


def _columns(table: AttributeTable, path: str) -> pa.Table:
    source = file_io.filesystem(table.path)[0]
    wanted = [table.key, table.column]
    try:
        if table.format == "parquet":
            with source.open_input_file(path) as opened:
                file = pq.ParquetFile(opened)
                _require_columns(table, file.schema_arrow.names)
                found = file.read(columns=list(dict.fromkeys(wanted)))
        else:  # an id such as 007 stays what it is only as text
            strings = pa_csv.ConvertOptions(
                column_types={name: pa.string() for name in wanted}, strings_can_be_null=True
            )
            with source.open_input_stream(path) as opened:
                found = pa_csv.read_csv(opened, convert_options=strings)
            _require_columns(table, found.column_names)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{path} cannot be read as {table.format}: {error}", "correct the file or its `format`"
        ) from error
    return pa.table(
        {
            "key": found.column(table.key).cast(pa.string()),
            "value": found.column(table.column).cast(pa.string()),
        }
    )


def _require_columns(table: AttributeTable, names: list[str]) -> None:
    missing = [name for name in (table.key, table.column) if name not in names]
    if missing:
        raise ConfigError(
            f"score.rules.attributes: {table.path} has no columns {missing}; it has {names}",
            "correct `key` and `column`",
        )
