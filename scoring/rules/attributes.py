"""Reads an item attribute from a configured table.

The result has one value code per candidate item, in the order of the candidate items.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from conf.errors import ConfigError, DataError
from conf.messages import counted
from conf.raw_types import Column, RawTable
from etl.raw.files import find_files
from scoring.rules.item_rule import NO_VALUE, ItemAttribute
from scoring.rules.request import AttributeTable
from storage import file_io
from storage.manifest import digest_of

SECTION = "score.rules.attributes"  # the section of the configuration that messages name


def read_attribute(table: AttributeTable) -> pa.Table:
    """Reads the rows of a table that have both a key and a value.

    Returns a table with the columns key and value. Both are strings.

    Raises:
        ConfigError: there is no file at the path of the table, or the declared type of a column cannot
            represent its stored type.
        DataError: a file of the table cannot be read or lacks a column, a row cannot be parsed, or an item
            has several rows.
    """
    # These modules import pyspark. A process without attributes may run without pyspark.
    from etl.prepare.attributes import read_whole_table

    of_roles, names = typed_table(table)
    read, _ = read_whole_table(of_roles, tuple(files_of(table)), SECTION)
    columns = {column.name: column for column in of_roles.columns}
    values = {
        new: _texts(read.column(names[role]), columns[names[role]])
        for new, role in (("key", table.key), ("value", table.column))
    }
    rows = pa.table(values).drop_null().combine_chunks()
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


def typed_table(table: AttributeTable) -> tuple[RawTable, dict[str, str]]:
    """Returns the table's schema, and the schema's names for the columns `table.key` and `table.column`."""
    return table.attribute.typed({table.key: "string", table.column: "string"})


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
    """Returns a digest of the keys and values in `rows` that does not depend on their order."""
    ordered = rows.sort_by("key")
    return digest_of([ordered.column("key").to_pylist(), ordered.column("value").to_pylist()])


def files_of(table: AttributeTable) -> list[str]:
    """Returns the paths of a table's files, in the order of their names.

    Raises:
        ConfigError: there is no file.
    """
    path, form = table.path, table.attribute.format
    source, inner = file_io.filesystem(path)
    if form != "delta" and source.get_file_info(inner).type == fs.FileType.Directory:
        path = f"{path.rstrip('/')}/*"
    paths = find_files(path, form)
    if not paths:
        raise ConfigError(f"{SECTION}: there is no file at {table.path}", "correct `path` of this attribute")
    return list(paths)


def _texts(values: pa.ChunkedArray, column: Column) -> pa.Array:
    """Converts the values of a column to texts, which rules compare."""
    encoded = values.combine_chunks()
    encoded = encoded.chunk(0) if isinstance(encoded, pa.ChunkedArray) else encoded
    distinct = encoded.dictionary
    if column.type == "bool":
        distinct = distinct.cast(pa.bool_())
    elif column.type == "date":
        distinct = distinct.cast(pa.int32()).cast(pa.date32())
    return distinct.cast(pa.string()).take(encoded.indices)
