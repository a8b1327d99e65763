"""The `arrow` engine of the parse: lines to typed columns in the Python worker, column by column.

It gives the rows and reasons the expressions of the `sql` engine (etl/raw/parse.py) give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from conf.raw_types import Column, RawTable
from etl.raw import quotes
from storage.feature_spec import FLOAT32_MAX

# Integers of up to 18 digits fit 64 bits whatever they are; the few longer ones are looked at one by one.
_SHORT_INTEGER = r"^-?[0-9]{1,18}$"
_LONG_INTEGER = r"^[+-]?[0-9]{1,19}$"
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"

_SPARK_TYPES = {"int": T.LongType(), "float": T.DoubleType(), "string": T.StringType()}


def parse_lines(
    lines: DataFrame, table: RawTable, positions: Sequence[int], width: int, line: str, reason: str
) -> DataFrame:
    """Adds the table's typed columns to a frame of lines, and fills in the reason of lines that do not parse.

    Args:
        positions: where each of the table's columns stands in a line.
        width: how many fields a line must have.
        line, reason: names of the column that holds the line, and of the one with the reason found so far.
    """
    added = [T.StructField(column.name, _SPARK_TYPES[column.type]) for column in table.columns]
    schema = T.StructType([*lines.schema.fields, *added])
    return lines.mapInArrow(_parser(table, tuple(positions), width, line, reason), schema)


def _parser(
    table: RawTable, positions: tuple[int, ...], width: int, line: str, reason: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    quoted = table.format == "csv"

    def parse(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            text = batch.column(batch.schema.get_field_index(line))
            fields, unsplit = split_fields(text, table.separator, width, quoted)
            at = batch.schema.get_field_index(reason)
            reasons = pc.coalesce(batch.column(at), unsplit)
            columns = []
            for column, position in zip(table.columns, positions, strict=True):
                values, why = typed_column(fields[position], column)
                columns.append(values)
                if why is not None:
                    reasons = pc.coalesce(reasons, why)
            found = [reasons if i == at else kept for i, kept in enumerate(batch.columns)]
            yield pa.RecordBatch.from_arrays([*found, *columns], [*batch.schema.names, *table.names])

    return parse


def split_fields(text: pa.Array, separator: str, width: int, quoted: bool) -> tuple[list[pa.Array], pa.Array]:
    """(`width` arrays of n strings, n reasons): the fields of each line; null, with a reason, where it has no such fields."""
    lists = pc.split_pattern(text, separator)
    if quoted and pc.any(pc.match_substring(text, '"')).as_py():
        lists = _split_quoted(text, separator)
    whole = pc.fill_null(pc.equal(pc.list_value_length(lists), width), False)
    nothing = pa.scalar(None, pa.string())
    why = pc.if_else(pc.is_null(lists), quotes.REASON, pc.if_else(whole, nothing, "field_count"))
    flat = pc.list_flatten(pc.filter(lists, whole))
    count = len(flat) // width
    # Lines that are not whole take the null behind the last field.
    of_line = np.where(np.asarray(whole), np.cumsum(np.asarray(whole)) - 1, -1)
    base = pa.array(np.where(of_line >= 0, of_line * width, 0), mask=of_line < 0) if count else None
    if base is None:
        return [pa.nulls(len(text), pa.string()) for _ in range(width)], why
    return [pc.take(flat, pc.add(base, index)) for index in range(width)], why


def _split_quoted(text: pa.Array, separator: str) -> pa.Array:
    """Lines one by one; a line that breaks the rule of quotes is null."""
    return pa.array([quotes.split_line(line, separator) for line in text.to_pylist()], pa.list_(pa.string()))


def typed_column(raw: pa.Array, column: Column) -> tuple[pa.Array, pa.Array | None]:
    """(typed values, reason or null by row): an empty field is null, a malformed one null with a reason."""
    nothing = pa.scalar(None, pa.string())
    text = pc.if_else(pc.equal(raw, ""), nothing, raw)
    if column.type == "string":
        return text, None
    values = _integers(text) if column.type == "int" else floats(text)
    bad = pc.and_(pc.is_valid(text), pc.is_null(values))
    if not pc.any(bad).as_py():
        return values, None
    kind = "integer" if column.type == "int" else "number"
    return values, pc.if_else(bad, f"{kind}:{column.name}", nothing)


def _integers(text: pa.Array) -> pa.Array:
    short = pc.fill_null(pc.match_substring_regex(text, _SHORT_INTEGER), False)
    values = pc.if_else(short, text, pa.scalar(None, pa.string())).cast(pa.int64())
    long = pc.and_(pc.invert(short), pc.fill_null(pc.match_substring_regex(text, _LONG_INTEGER), False))
    if not pc.any(long).as_py():
        return values
    found = [
        int(t) if is_long and -(2**63) <= int(t) < 2**63 else v
        for t, is_long, v in zip(text.to_pylist(), long.to_pylist(), values.to_pylist(), strict=True)
    ]
    return pa.array(found, pa.int64())


def floats(text: pa.Array) -> pa.Array:
    """Doubles of texts; null where a text is no number within float32's range."""
    fits = pc.fill_null(pc.match_substring_regex(text, _NUMBER), False)
    plain = pc.if_else(fits, pc.utf8_ltrim(text, "+"), pa.scalar(None, pa.string()))
    values = plain.cast(pa.float64())
    return pc.if_else(pc.less_equal(pc.abs(values), FLOAT32_MAX), values, pa.scalar(None, pa.float64()))
