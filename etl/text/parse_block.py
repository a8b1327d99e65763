"""Applies the rules of a log to the typed blocks that a reader gives. Rejected lines get a reason.

With `workflow.engine: sql`, Spark parses the log instead, and returns the same rows and reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.raw.erased_rows import ERASED, has_erased_field
from etl.raw.file_splits import FileSplit
from etl.raw.row_rules import row_rules
from etl.readers.base import RawBlock
from etl.readers.text import rows_with
from etl.text.file_layout import FileLayout
from storage.erased_users import ErasedUsers
from storage.feature_spec import EVENT_TIME, USER_KEY


@dataclass(frozen=True)
class ParsedBlock:
    """The n valid rows and the rejected lines of one block.

    Attributes:
        bytes: size of the block's text.
        lines: number of lines in the block.
        row_lines: (n,) int64: for each row, the index of its line in the block, from 0.
        columns: maps each raw column to a dictionary array of n values (int64, double or string), or to an
            array of n lists. It also has `label` (float) and, if the log has them, `weight` (float),
            `user_key`, `item_key`, `group_key` (dictionaries of strings) and `event_time` (int64 µs).
        counts: maps each raw column to an array. Entry i of the array is the number of rows with the value i
            of the column's dictionary. The mapping is empty if rows or a header line were removed after the
            scan, because the scanner counted them.
        rejected: for every line that is not a valid row: (index of the line in the block, reason), ascending.
            This includes lines that the operators `filter` and `dropna` drop.
        texts: returns the texts of the lines with these indices.
    """

    bytes: int
    lines: int
    row_lines: np.ndarray
    columns: Mapping[str, pa.Array]
    counts: Mapping[str, np.ndarray]
    rejected: tuple[tuple[int, str], ...]
    texts: Callable[[Sequence[int]], list[str]] = field(default=lambda lines: [""] * len(lines))


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


def read_split(file_split: FileSplit, layout: FileLayout, wanted: Collection[str]) -> Iterator[ParsedBlock]:
    """Yields the blocks of a file split of the log, with the rules of the log applied."""
    erased = layout.erased.get(file_split.path)
    for block in layout.reader.blocks(file_split, wanted):
        yield parse_block(block, layout, erased)


def parse_block(block: RawBlock, layout: FileLayout, erased: ErasedUsers | None = None) -> ParsedBlock:
    """Applies the rules of the log to a block: label, keys, time, filters and erased users.

    Args:
        block: the typed rows of a block, which have the columns of `columns_to_parse`.
        layout: the layout of the log.
        erased: users whose rows are rejected with the reason ERASED; None if there are none.
    """
    reasons = _RowReasons(len(block.row_lines))
    reasons.by_row |= block.malformed
    columns, counts = dict(block.columns), block.counts
    columns |= _derived_columns(columns, layout, reasons)
    if block.exact_time is not None:
        columns[EVENT_TIME] = pc.coalesce(block.exact_time, columns[EVENT_TIME])
    _apply_filters(columns, layout, reasons)
    if erased is not None:
        _leave_out_erased(columns[USER_KEY], erased, reasons)
    row_lines = block.row_lines
    if reasons.by_row:
        good = reasons.good
        row_lines, counts = row_lines[good], {}
        columns = {name: array.take(pa.array(good)) for name, array in columns.items()}
    by_line = {**block.broken} | {int(block.row_lines[row]): reason for row, reason in reasons.by_row.items()}
    if erased is not None:
        _hide_erased(block, layout.table.field_separator, erased, by_line)
    rejected = tuple(sorted(by_line.items()))
    return ParsedBlock(block.bytes, block.lines, row_lines, columns, counts, rejected, block.texts)


def _leave_out_erased(users: pa.DictionaryArray, erased: ErasedUsers, reasons: _RowReasons) -> None:
    """Gives the reason ERASED to the rows of erased users, whatever other reason they have."""
    rows = rows_with(users, np.flatnonzero(erased.are_in(users.dictionary)))
    reasons.by_row |= dict.fromkeys(rows.tolist(), ERASED)


def _hide_erased(block: RawBlock, separator: str, erased: ErasedUsers, by_line: dict[int, str]) -> None:
    """Gives the reason ERASED to rejected lines with a field that is the id of an erased user."""
    lines = sorted(line for line, reason in by_line.items() if reason != ERASED)
    for line, text in zip(lines, block.texts(lines), strict=True):
        if has_erased_field(text, separator, erased):
            by_line[line] = ERASED


def unify(parts: Sequence[pa.Array]) -> pa.Array:
    """Concatenates dictionary arrays into one array with one dictionary. Lists have no dictionary."""
    if len(parts) == 1:
        return parts[0]
    if not isinstance(parts[0], pa.DictionaryArray):
        return pa.concat_arrays(parts)
    chunks = pa.chunked_array(parts).unify_dictionaries().chunks
    indices = pa.concat_arrays([chunk.indices for chunk in chunks])
    # The indices are those of the chunks, so they need no check.
    return pa.DictionaryArray.from_arrays(indices, chunks[-1].dictionary, safe=False)


def _derived_columns(
    columns: Mapping[str, pa.Array], layout: FileLayout, reasons: _RowReasons
) -> dict[str, pa.Array]:
    """Computes label, weight, keys and event_time (etl/raw/row_rules.py).

    A row that a check rejects gets a reason. Rules are applied to distinct values. Keys remain dictionary
    arrays, the others are plain arrays.
    """
    derived = {}
    for rule in row_rules(layout.types, layout.label, layout.keys, layout.event_time, layout.table):
        encoded = columns[rule.column]
        distinct = encoded.dictionary
        values = rule.compute(distinct)
        is_key = pa.types.is_string(values.type)
        derived[rule.output] = (
            pa.DictionaryArray.from_arrays(encoded.indices, values)
            if is_key
            else values.take(encoded.indices)
        )
        with_null = pa.concat_arrays([distinct, pa.nulls(1, distinct.type)])
        for check in rule.checks:
            rejected = pc.fill_null(check.rejects(with_null), False).to_numpy(zero_copy_only=False)
            if rejected[:-1].any() or (rejected[-1] and encoded.indices.null_count):
                codes = encoded.indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False)
                reasons.add(np.flatnonzero(rejected[codes]), check.reason)
    return derived


def _apply_filters(columns: Mapping[str, pa.Array], layout: FileLayout, reasons: _RowReasons) -> None:
    decoded: dict[str, pa.Array] = {}
    for row_filter in layout.filters:
        names = row_filter.inputs(layout.types)
        decoded |= {name: plain(columns[name]) for name in names if name not in decoded}
        inputs = {name: decoded[name] for name in names}
        kept = pc.fill_null(row_filter.keeps_rows(inputs, reasons.rows, layout.types), False)
        reasons.add(np.flatnonzero(~kept.to_numpy(zero_copy_only=False)), row_filter.reason)


def plain(array: pa.Array) -> pa.Array:
    """Converts a dictionary array to a plain array. An array without a dictionary is returned unchanged."""
    return array.dictionary.take(array.indices) if isinstance(array, pa.DictionaryArray) else array
