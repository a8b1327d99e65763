"""Converts an Arrow table of stored rows to a block of typed rows, for readers of binary formats."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from conf.raw_types import EventTime, RawTable
from etl.raw.parquet_columns import missing_columns
from etl.readers.arrow_values import (
    NoTextError,
    convert,
    instants,
    malformed_rows,
    null_values,
    reason_of,
    require_type,
    time_zone_of,
)
from etl.readers.base import RawBlock
from etl.readers.row_json import row_texts


def check_schema(path: str, schema: pa.Schema, table: RawTable, event_time: EventTime | None) -> list[str]:
    """Checks that a file has the listed columns, and that the declared types can hold their values.

    Args:
        path: the file, for error messages.
        schema: the columns of the file. A name that occurs twice counts as missing.
        table: names and types of the columns.
        event_time: the section `log.event_time`; None for a table without times.

    Returns:
        For each column of the table that is in the file, its name in the file.

    Raises:
        DataError: the file lacks a column, or has a column of a type that cannot be read.
        ConfigError: a column has a type that its declared type cannot hold.
    """
    names = [name for name in schema.names if schema.names.count(name) == 1]
    missing = [
        column.source_name
        for column in table.columns
        if column.source_name not in names and not column.optional
    ]
    if missing:
        raise missing_columns(path, missing, schema.names)
    stored = [column for column in table.columns if column.source_name in names]
    for column in stored:
        is_time = event_time is not None and column.name == event_time.column
        require_type(path, column, schema.field(column.source_name).type, is_time)
    return list(dict.fromkeys(column.source_name for column in stored))


def typed_block(
    rows: pa.Table,
    table: RawTable,
    event_time: EventTime | None,
    wanted: Collection[str],
    path: str,
    rows_before: Callable[[], int],
) -> RawBlock:
    """Returns n stored rows as a block, with the values converted to the declared types.

    Args:
        rows: the columns of the table that are in the file, by their names in the file. Other columns of the
            table are null.
        table: names and types of the columns.
        event_time: the section `log.event_time`; None for a table without times.
        wanted: the columns to return. The values of other columns are only checked.
        path: the file, for error messages.
        rows_before: returns the number of rows of the file before `rows`, for error messages.

    Raises:
        DataError: a value has no exact text.
    """
    is_time = event_time.column if event_time else None
    columns: dict[str, pa.Array] = {}
    malformed: dict[int, str] = {}
    exact_time = None
    time_zone = time_zone_of(table)
    for column in table.columns:
        is_wanted = column.name in wanted or column.name == is_time
        if column.source_name not in rows.column_names:
            if is_wanted:
                columns[column.name] = null_values(column, len(rows))
            continue
        values = rows.column(column.source_name)
        unit = None
        if column.name == is_time and column.type == "int" and event_time is not None:
            unit = event_time.unit
            exact_time = instants(values, "us", time_zone) if pa.types.is_timestamp(values.type) else None
        try:
            if is_wanted:
                converted = convert(values, column, unit, time_zone)
                columns[column.name], bad = converted.values, converted.malformed
            else:
                bad = malformed_rows(values, column, time_zone)
        except NoTextError as error:
            raise error.error(path, rows_before()) from None
        for row in bad.tolist():
            malformed.setdefault(row, reason_of(column))
    return RawBlock(
        bytes=int(rows.nbytes),
        lines=len(rows),
        row_lines=np.arange(len(rows), dtype=np.int64),
        columns=columns,
        counts={},
        broken={},
        malformed=malformed,
        texts=partial(_texts, rows),
        exact_time=exact_time,
    )


def _texts(rows: pa.Table, lines: Sequence[int]) -> list[str]:
    """Returns rows as JSON, by the indices of the rows."""
    taken = rows.take(pa.array(lines, pa.int64()))
    return row_texts(dict(zip(taken.column_names, taken.columns, strict=True)), len(taken))
