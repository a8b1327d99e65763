"""Summaries of value counts compared with plain Python. The sum of the parts is the summary of the whole."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.quality.column_summary import (
    TOP,
    ColumnSummary,
    Kind,
    Values,
    compare_counts,
    most_frequent,
    summarise,
    summarise_values,
)
from metrics.psi import bin_bounds

CELLS: dict[Kind, Any] = {
    "int": st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1)),
    "float": st.one_of(
        st.sampled_from([0.0, 1.5, -2.25, 1e300, 5e-324]), st.floats(allow_nan=False, allow_infinity=False)
    ).map(lambda value: value + 0.0),
    "string": st.one_of(st.sampled_from(["a", "é", "日本", "\uffee", "\U0001f600", ""]), st.text(max_size=4)),
}


def _summary(cells: list[Any], kind: Kind) -> ColumnSummary:
    counted = Counter(cells)
    texts = pa.array(list(counted), {"int": pa.int64(), "float": pa.float64(), "string": pa.string()}[kind])
    return summarise(texts.cast(pa.string()), pa.array(list(counted.values()), pa.int64()), kind)


@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("kind", ["int", "float", "string"])
@given(data=st.data())
def test_a_summary_is_what_plain_python_counts(kind: Kind, data: st.DataObject) -> None:
    cells = data.draw(st.lists(st.one_of(st.none(), CELLS[kind]), max_size=60))
    summary = _summary(cells, kind)
    valid = [cell for cell in cells if cell is not None]
    assert (summary.nulls, summary.cells, summary.distinct) == (
        cells.count(None),
        len(valid),
        len(set(valid)),
    )
    key = (lambda v: v.encode()) if kind == "string" else (lambda v: v)
    ranked = sorted(Counter(valid).items(), key=lambda entry: (-entry[1], key(entry[0])))
    assert list(summary.top) == ranked[:TOP]
    if kind == "string" or not valid:
        assert (summary.low, summary.high, summary.mean, summary.bins) == (None, None, None, None)
        return
    assert (summary.low, summary.high) == (min(valid), max(valid))
    assert summary.mean == float(sum(map(Fraction, valid)) / len(valid))
    assert summary.bins is not None
    assert sum(summary.bins.values()) == len(valid)
    for bin_key, count in summary.bins.items():
        low, high = bin_bounds(bin_key)
        if abs(low) > 1e-300:
            inside = [v for v in valid if (low <= float(v) < high if bin_key > 0 else low < float(v) <= high)]
            assert len(inside) == count


@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("kind", ["int", "float", "string"])
@given(data=st.data())
def test_parts_add_up_to_the_whole_in_any_order(kind: Kind, data: st.DataObject) -> None:
    cells = data.draw(st.lists(st.one_of(st.none(), CELLS[kind]), max_size=60))
    cuts = data.draw(st.lists(st.integers(0, 3), min_size=len(set(cells)), max_size=len(set(cells))))
    part_of = dict(zip(dict.fromkeys(cells), cuts, strict=True))  # all cells of a value are in one part
    parts = [_summary([cell for cell in cells if part_of[cell] == part], kind) for part in range(4)]
    whole = _summary(cells, kind)
    for order in (parts, parts[::-1]):
        total = ColumnSummary()
        for part in order:
            total += ColumnSummary.from_json(part.to_json())
        assert total == whole


def test_numbers_beyond_a_double_keep_their_extremes() -> None:
    summary = _summary([2**63 - 1, 2**53 + 1, -(2**63)], "int")
    assert (summary.low, summary.high) == (-(2**63), 2**63 - 1)
    assert [value for value, _ in summary.top] == [-(2**63), 2**53 + 1, 2**63 - 1]


def _values(rows: list[tuple[str, int, int]]) -> Values:
    train, day = (np.array([row[place] for row in rows], np.int64) for place in (1, 2))
    return compare_counts(pa.array([row[0] for row in rows], pa.string()), train, day)


ROWS = st.dictionaries(
    st.text(max_size=2), st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(any), max_size=60
).map(lambda counts_of: [(value, *counts) for value, counts in counts_of.items()])


@given(ROWS)
def test_values_are_compared_as_plain_python_does(rows: list[tuple[str, int, int]]) -> None:
    values = _values(rows)
    new = [row for row in rows if row[1] == 0]
    assert values.new_cells == sum(day for _, _, day in new)
    assert values.new_distinct == len(new)
    assert values.day_cells == sum(day for _, _, day in rows)
    assert values.train_cells == sum(train for _, train, _ in rows)
    assert values.train_distinct == len(rows) - len(new)
    known = [row for row in rows if row[1] > 0]
    assert list(values.top) == sorted(known, key=lambda row: (-row[1], row[0].encode()))[:TOP]
    assert list(values.new_top) == sorted(new, key=lambda row: (-row[2], row[0].encode()))[:TOP]
    assert Values.from_json(_values(rows[::2]).to_json()) + _values(rows[1::2]) == values


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 4), max_size=60))
@settings(deadline=None)
def test_the_most_frequent_values_are_those_of_plain_python(counted: dict[str, int]) -> None:
    """Many values have equal counts, also more than fit into the list, and some have the count 0."""
    values, counts = list(counted), np.array([*counted.values()], np.int64)
    places = most_frequent(pa.array(values, pa.string()), counts)
    occurring = [(count, value) for value, count in counted.items() if count]
    expected = sorted(occurring, key=lambda entry: (-entry[0], entry[1].encode()))[:TOP]
    assert [(int(counts[place]), values[place]) for place in places] == expected


@pytest.mark.parametrize("kind", ["string", "int"])
def test_values_that_do_not_occur_are_not_in_a_summary(kind: Kind) -> None:
    texts = pa.array(["1", "7", "3"])
    assert summarise_values(texts, np.array([2, 0, 1]), kind) == summarise(
        pa.array(["1", "3"]), pa.array([2, 1]), kind
    )
    assert summarise_values(texts, np.zeros(3, np.int64), kind) == ColumnSummary()
