"""Parses a block of lines into typed, dictionary-encoded columns. Rejected lines get a reason.

The compiled scanner (etl/native/scan.py) finds the fields. This module checks types, once per distinct value.
With `workflow.engine: sql`, Spark parses the log instead, and returns the same rows and reasons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.types import Column
from etl.native.scan import scan
from etl.raw.arrow_parse import split_fields, typed_column
from etl.raw.erased_rows import ERASED, has_erased_field
from etl.raw.row_rules import row_rules
from etl.text.file_layout import FileLayout
from storage.erased_users import ErasedUsers
from storage.feature_spec import USER_KEY


@dataclass(frozen=True)
class ParsedBlock:
    """The n valid rows and the rejected lines of one block.

    Attributes:
        bytes: size of the block's text.
        lines: number of lines in the block.
        row_lines: (n,) int64: for each row, the index of its line in the block, from 0.
        columns: maps each raw column to a dictionary array of n values (int64, double or string). It also has
            `label` (float) and, if the log has them, `user_key`, `item_key`, `group_key` (dictionaries of
            strings) and `event_time` (int64 µs).
        counts: maps each raw column to an array. Entry i of the array is the number of rows with the value i
            of the column's dictionary. The mapping is empty if rows or a header line were removed after the
            scan, because the scanner counted them.
        rejected: for every line that is not a valid row: (index of the line in the block, reason), ascending.
            This includes lines that the operators `filter` and `dropna` drop.
    """

    bytes: int
    lines: int
    row_lines: np.ndarray
    columns: Mapping[str, pa.Array]
    counts: Mapping[str, np.ndarray]
    rejected: tuple[tuple[int, str], ...]


class _RowReasons:
    """The first reason for rejecting each rejected row, by the index of the row."""

    def __init__(self, rows: int) -> None:
        self.by_row: dict[int, str] = {}
        self.rows = rows

    def add(self, rows: np.ndarray, reason: str) -> None:
        for row in rows.tolist():
            self.by_row.setdefault(row, reason)

    @property
    def good(self) -> np.ndarray:
        """Returns the indices of the rows that are not rejected, ascending."""
        kept = np.ones(self.rows, bool)
        kept[list(self.by_row)] = False
        return np.flatnonzero(kept)


def parse_block(
    block: bytes | memoryview,
    layout: FileLayout,
    wanted: Sequence[str],
    header: bool,
    erased: ErasedUsers | None = None,
) -> ParsedBlock:
    """Parses a block of whole lines.

    Args:
        block: lines that end with LF. The last line may lack the LF.
        layout: the layout of the log.
        wanted: the string columns to return. Numeric columns are always parsed, to check their values.
        header: whether the first line is a header and not a row.
        erased: users whose rows are rejected with the reason ERASED; None if there are none.
    """
    places = {
        column: place
        for column, place in zip(layout.columns, layout.positions, strict=True)
        if column.type != "string" or column.name in wanted
    }
    position = {column.name: place for column, place in places.items() if place is not None}
    parsed = [column for column in places if column.name in position]
    scanned = scan(
        block,
        layout.separator,
        layout.width,
        [position[column.name] for column in parsed],
        layout.quoted,
        lambda lines: split_fields(lines, layout.separator, layout.width, quoted=True),
    )
    reasons = _RowReasons(len(scanned.row_lines))
    reasons.by_row |= scanned.unsplit
    columns: dict[str, pa.Array] = {}
    counts: dict[str, np.ndarray] = {}
    for column in parsed:
        encoded = scanned.columns[position[column.name]]
        if column.type == "string" and len(layout.null_values) == 1:  # the scanner knows empty fields
            columns[column.name], counts[column.name] = encoded, scanned.counts[position[column.name]]
            continue
        distinct, malformed = typed_column(encoded.dictionary, column, layout.null_values)
        if malformed is not None:
            codes = np.flatnonzero(malformed.is_valid().to_numpy(zero_copy_only=False))
            reasons.add(_rows_with(encoded, codes), malformed.drop_null()[0].as_py())
        columns[column.name] = _without_null_values(encoded.indices, distinct)
        of_values = scanned.counts[position[column.name]]
        is_value = distinct.is_valid().to_numpy(zero_copy_only=False)
        counts[column.name] = of_values[is_value] if distinct.null_count else of_values
    for column in places:
        if column.name not in position:
            columns[column.name] = _nulls_of(column, len(scanned.row_lines))
    columns |= _derived_columns(columns, layout, reasons)
    _apply_filters(columns, layout, reasons)
    if erased is not None:
        _leave_out_erased(columns[USER_KEY], erased, reasons)
    skipped = 1 if header else 0
    row_lines = scanned.row_lines
    if reasons.by_row or skipped:
        good = reasons.good
        good = good[row_lines[good] >= skipped]
        row_lines, counts = row_lines[good], {}
        columns = {name: array.take(pa.array(good)) for name, array in columns.items()}
    by_line = {**scanned.broken} | {
        int(scanned.row_lines[row]): reason for row, reason in reasons.by_row.items()
    }
    if erased is not None:
        _hide_erased(block, layout.separator, erased, by_line)
    rejected = tuple(sorted((line, reason) for line, reason in by_line.items() if line >= skipped))
    return ParsedBlock(len(block), scanned.lines, row_lines, columns, counts, rejected)


def _leave_out_erased(users: pa.DictionaryArray, erased: ErasedUsers, reasons: _RowReasons) -> None:
    """Gives the reason ERASED to the rows of erased users, whatever other reason they have."""
    rows = _rows_with(users, np.flatnonzero(erased.are_in(users.dictionary)))
    reasons.by_row |= dict.fromkeys(rows.tolist(), ERASED)


def _hide_erased(
    block: bytes | memoryview, separator: str, erased: ErasedUsers, by_line: dict[int, str]
) -> None:
    """Gives the reason ERASED to rejected lines with a field that is the id of an erased user."""
    lines = sorted(line for line, reason in by_line.items() if reason != ERASED)
    for line, text in zip(lines, texts_of_lines(block, lines), strict=True):
        if has_erased_field(text, separator, erased):
            by_line[line] = ERASED


def texts_of_lines(block: bytes | memoryview, lines: Sequence[int]) -> list[str]:
    """Returns the texts of the lines of a block with these indices, without their line ends."""
    if not lines:
        return []
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
    ends = ends if block[-1] == ord("\n") else np.append(ends, len(block))
    starts = [int(ends[line - 1]) + 1 if line else 0 for line in lines]
    return [
        bytes(block[start : int(ends[line])]).decode("utf-8", errors="replace")
        for start, line in zip(starts, lines, strict=True)
    ]


def _nulls_of(column: Column, rows: int) -> pa.DictionaryArray:
    """Returns the values of an optional column that the files do not have."""
    values, _ = typed_column(pa.array([], pa.string()), column, [""])
    return pa.DictionaryArray.from_arrays(pa.nulls(rows, pa.int32()), values)


def _without_null_values(indices: pa.Array, values: pa.Array) -> pa.DictionaryArray:
    """Returns a dictionary array of these values, without nulls in the dictionary.

    Rows whose value is null become null themselves, because Arrow cannot unify dictionaries with nulls.
    """
    if not values.null_count:
        return pa.DictionaryArray.from_arrays(indices, values)
    valid = np.append(values.is_valid().to_numpy(zero_copy_only=False), False)
    new_codes = np.cumsum(valid, dtype=np.int32) - 1
    codes = indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
    new_indices = pa.array(new_codes[codes].astype(np.int32), mask=~valid[codes])
    return pa.DictionaryArray.from_arrays(new_indices, values.drop_null())


def unify(parts: Sequence[pa.DictionaryArray]) -> pa.DictionaryArray:
    """Concatenates dictionary arrays into one array with one dictionary."""
    if len(parts) == 1:
        return parts[0]
    chunks = pa.chunked_array(parts).unify_dictionaries().chunks
    indices = pa.concat_arrays([chunk.indices for chunk in chunks])
    return pa.DictionaryArray.from_arrays(indices, chunks[-1].dictionary)


def _rows_with(encoded: pa.DictionaryArray, codes: np.ndarray) -> np.ndarray:
    """Returns the indices of the rows whose dictionary code is one of `codes`."""
    marked = np.zeros(len(encoded.dictionary) + 1, bool)
    marked[codes] = True
    return np.flatnonzero(
        marked[encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)]
    )


def _nulls(array: pa.Array) -> np.ndarray:
    """Returns, for each of n rows, whether its value is null: (n,) bool."""
    if isinstance(array, pa.DictionaryArray):
        null_codes = np.append(array.dictionary.is_null().to_numpy(zero_copy_only=False), True)
        codes = array.indices.fill_null(len(array.dictionary)).to_numpy(zero_copy_only=False)
        return null_codes[codes]
    return array.is_null().to_numpy(zero_copy_only=False)


def _derived_columns(
    columns: Mapping[str, pa.Array], layout: FileLayout, reasons: _RowReasons
) -> dict[str, pa.Array]:
    """Computes label, keys and event_time (etl/raw/row_rules.py). A row that a check rejects gets a reason.

    Rules are applied to distinct values. Keys remain dictionary arrays, the others are plain arrays.
    """
    derived = {}
    for rule in row_rules(layout.types, layout.label, layout.keys, layout.event_time):
        encoded = columns[rule.column]
        distinct = encoded.dictionary
        values = rule.in_arrow(distinct)
        is_key = pa.types.is_string(values.type)
        derived[rule.output] = (
            pa.DictionaryArray.from_arrays(encoded.indices, values)
            if is_key
            else values.take(encoded.indices)
        )
        with_null = pa.concat_arrays([distinct, pa.nulls(1, distinct.type)])
        for check in rule.checks:
            rejected = pc.fill_null(check.in_arrow(with_null), False).to_numpy(zero_copy_only=False)
            if rejected[:-1].any() or (rejected[-1] and encoded.indices.null_count):
                codes = encoded.indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False)
                reasons.add(np.flatnonzero(rejected[codes]), check.reason)
    return derived


def _apply_filters(columns: Mapping[str, pa.Array], layout: FileLayout, reasons: _RowReasons) -> None:
    for reason, not_null, text in layout.filters:
        for name in not_null:
            reasons.add(np.flatnonzero(_nulls(columns[name])), reason)
        if text is not None:
            formula = layout.formula(text)
            decoded = {name: plain(columns[name]) for name in formula.columns}
            kept = formula.to_array(decoded, reasons.rows)
            passed = pc.fill_null(kept, False).to_numpy(zero_copy_only=False)
            reasons.add(np.flatnonzero(~passed), reason)


def plain(array: pa.Array) -> pa.Array:
    """Converts a dictionary array to a plain array. An array without a dictionary is returned unchanged."""
    return array.dictionary.take(array.indices) if isinstance(array, pa.DictionaryArray) else array
