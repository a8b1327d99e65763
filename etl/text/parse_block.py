"""A block of lines to typed, dictionary-encoded columns, and the lines that are no rows with their reasons.

The compiled scanner (etl/native/scan.py) finds the fields. Types are checked here, each distinct value once. Rows and reasons are
those of the sql engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.native.scan import scan
from etl.raw import ids
from etl.raw.arrow_parse import floats, split_fields, typed_column
from etl.raw.value_text import text_array
from etl.text.layout import FileLayout
from storage.feature_spec import EVENT_TIME, LABEL, raw_keys

_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}


@dataclass(frozen=True)
class Block:
    """The parse of one block.

    Attributes:
        bytes: of its text.
        lines: how many lines it has.
        places: (n,) int64 of the good rows: their line in the block, from 0.
        columns: raw column → dictionary array of n values (int64, double or string), and `label` (float), `user_key`,
            `item_key`, `group_key` (dictionaries of strings), `event_time` (int64 µs) where the log has them.
        counts: raw column → rows of each value of its dictionary, where the scan knows them: in blocks without a bad row.
        bad: (line in the block, reason, text) of every other line, the reason `filter:…` or `dropna:…` included.
    """

    bytes: int
    lines: int
    places: np.ndarray
    columns: Mapping[str, pa.Array]
    counts: Mapping[str, np.ndarray]
    bad: tuple[tuple[int, str, str], ...]


class _Reasons:
    """The first reason of each row, column by column."""

    def __init__(self, rows: int) -> None:
        self.of: dict[int, str] = {}
        self.rows = rows

    def add(self, rows: np.ndarray, reason: str) -> None:
        for row in rows.tolist():
            self.of.setdefault(row, reason)

    @property
    def good(self) -> np.ndarray:
        kept = np.ones(self.rows, bool)
        kept[list(self.of)] = False
        return np.flatnonzero(kept)


def parse_block(block: bytes | memoryview, layout: FileLayout, wanted: Sequence[str], header: bool) -> Block:
    """Parses a block of whole lines.

    Args:
        wanted: the raw columns of strings to return; numbers are always parsed, because each must be one.
        header: whether the first line is a header, and no row.
    """
    named = [column for column in layout.columns if column.type != "string" or column.name in wanted]
    position = dict(zip((column.name for column in layout.columns), layout.positions, strict=True))
    found = scan(
        block,
        layout.separator,
        layout.width,
        [position[column.name] for column in named],
        layout.quoted,
        lambda lines: split_fields(lines, layout.separator, layout.width, quoted=True),
    )
    reasons = _Reasons(len(found.places))
    reasons.of |= found.unsplit
    columns: dict[str, pa.Array] = {}
    for column in named:
        coded = found.columns[position[column.name]]
        if column.type == "string":
            columns[column.name] = coded
            continue
        distinct, why = typed_column(coded.dictionary, column)
        if why is not None:
            bad = np.flatnonzero(why.is_valid().to_numpy(zero_copy_only=False))
            reason = why.drop_null()[0].as_py()
            reasons.add(_rows_with(coded, bad), reason)
        columns[column.name] = _coded(coded.indices, distinct)
    columns |= _ours(columns, layout, reasons)
    _filter(columns, layout, reasons)
    skipped = 1 if header else 0
    places, counts = found.places, {column.name: found.counts[position[column.name]] for column in named}
    if reasons.of or skipped:
        good = reasons.good
        good = good[places[good] >= skipped]
        places, counts = places[good], {}
        columns = {name: array.take(pa.array(good)) for name, array in columns.items()}
    why = {**found.broken} | {int(found.places[row]): reason for row, reason in reasons.of.items()}
    bad_lines = sorted(place for place in why if place >= skipped)
    texts = _with_texts(block, [(place, why[place]) for place in bad_lines])
    return Block(len(block), found.lines, places, columns, counts, tuple(texts))


def _coded(indices: pa.Array, distinct: pa.Array) -> pa.DictionaryArray:
    """A dictionary array without nulls in its dictionary, which could not be unified with others: their rows are null."""
    if not distinct.null_count:
        return pa.DictionaryArray.from_arrays(indices, distinct)
    there = np.append(distinct.is_valid().to_numpy(zero_copy_only=False), False)
    places = np.cumsum(there, dtype=np.int32) - 1
    codes = indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False)
    found = pa.array(places[codes].astype(np.int32), mask=~there[codes])
    return pa.DictionaryArray.from_arrays(found, distinct.drop_null())


def unify(parts: Sequence[pa.DictionaryArray]) -> pa.DictionaryArray:
    """One dictionary array of several, in order."""
    if len(parts) == 1:
        return parts[0]
    chunks = pa.chunked_array(parts).unify_dictionaries().chunks
    indices = pa.concat_arrays([chunk.indices for chunk in chunks])
    return pa.DictionaryArray.from_arrays(indices, chunks[-1].dictionary)


def _rows_with(coded: pa.DictionaryArray, codes: np.ndarray) -> np.ndarray:
    """Rows whose value is one of some distinct ones."""
    marked = np.zeros(len(coded.dictionary) + 1, bool)
    marked[codes] = True
    return np.flatnonzero(
        marked[coded.indices.fill_null(len(coded.dictionary)).to_numpy(zero_copy_only=False)]
    )


def _nulls(array: pa.Array) -> np.ndarray:
    if isinstance(array, pa.DictionaryArray):
        of_distinct = np.append(array.dictionary.is_null().to_numpy(zero_copy_only=False), True)
        codes = array.indices.fill_null(len(array.dictionary)).to_numpy(zero_copy_only=False)
        return of_distinct[codes]
    return array.is_null().to_numpy(zero_copy_only=False)


def _over_distinct(coded: pa.DictionaryArray, of_distinct: pa.Array) -> pa.Array:
    return of_distinct.take(coded.indices)


def _ours(columns: Mapping[str, pa.Array], layout: FileLayout, reasons: _Reasons) -> dict[str, pa.Array]:
    """label, keys and event_time; what keeps a row from having one becomes its reason."""
    name, least = layout.label.column, layout.label.positive_at_least
    coded = columns[name]
    numbers = _numbers(coded.dictionary)
    known = pc.is_in(numbers, value_set=pa.array([0.0, 1.0])) if least is None else numbers.is_valid()
    positive = pc.greater_equal(numbers, 1.0 if least is None else float(least))
    label = _over_distinct(coded, positive.cast(pa.float32()))
    good = pc.fill_null(_over_distinct(coded, known), False).to_numpy(zero_copy_only=False)
    reasons.add(np.flatnonzero(~good), f"label:{name}")
    found = {LABEL: label}
    for key, column in raw_keys(layout.keys).items():
        coded = columns[column]
        texts = text_array(coded.dictionary)
        found[key] = pa.DictionaryArray.from_arrays(coded.indices, texts)
        reasons.add(np.flatnonzero(_nulls(coded)), f"missing_key:{column}")
        if pa.types.is_string(coded.dictionary.type):  # numbers always obey the rule of ids
            bad = np.flatnonzero(np.asarray(ids.are_bad_keys(texts)))
            reasons.add(_rows_with(coded, bad), ids.reason(column))
    if layout.event_time:
        column, scale = layout.event_time.column, _MICROSECONDS[layout.event_time.unit]
        coded = columns[column]
        instants = coded.dictionary.cast(pa.int64(), safe=False)
        last = (2**63 - 1) // scale
        inside = pc.and_(pc.less_equal(instants, last), pc.greater_equal(instants, -last))
        scaled = pc.multiply(pc.if_else(inside, instants, pa.scalar(None, pa.int64())), scale)
        found[EVENT_TIME] = _over_distinct(coded, scaled)
        missing = _nulls(coded)
        reasons.add(np.flatnonzero(missing), f"missing_time:{column}")
        beyond = ~pc.fill_null(_over_distinct(coded, inside), True).to_numpy(zero_copy_only=False)
        reasons.add(np.flatnonzero(beyond & ~missing), f"time_range:{column}")
    return found


def _numbers(values: pa.Array) -> pa.Array:
    """Doubles of a label column's distinct values; a text that is no number is null."""
    return floats(values) if pa.types.is_string(values.type) else values.cast(pa.float64(), safe=False)


def _filter(columns: Mapping[str, pa.Array], layout: FileLayout, reasons: _Reasons) -> None:
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
    """A dictionary array without its dictionary."""
    return array.dictionary.take(array.indices) if isinstance(array, pa.DictionaryArray) else array


def _with_texts(block: bytes | memoryview, found: Sequence[tuple[int, str]]) -> list[tuple[int, str, str]]:
    if not found:
        return []
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == 10)
    ends = ends if block[-1] == 10 else np.append(ends, len(block))
    texts = []
    for place, reason in found:
        start = int(ends[place - 1]) + 1 if place else 0
        text = bytes(block[start : int(ends[place])]).decode("utf-8", errors="replace")
        texts.append((place, reason, text))
    return texts
