"""Value counts conserve every cell through files, buckets and sums; lookups find known values only."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.native import distinct_values as lookups
from etl.native.distinct_values import Lookup, Sums, buckets_of
from etl.quality.column_summary import summarise_values
from etl.statistics import moments
from etl.statistics.value_counts import MAX_BUCKETS, Bucket, buckets_for, read_counts, write_counts
from storage.file_digests import split_name

MANY = settings(max_examples=60, deadline=None, derandomize=True, database=None)
VALUE = st.one_of(st.text(max_size=12), st.sampled_from(["", "12345678", "123456789", "a\0", "a", "é" * 9]))
COUNTED = st.dictionaries(VALUE, st.integers(1, 2**40), max_size=40)


def _arrays(counted: dict[str, int], nulls: int = 0) -> tuple[pa.StringArray, np.ndarray]:
    values = [*counted, *([None] if nulls else [])]
    counts = [*counted.values(), *([nulls] if nulls else [])]
    return pa.array(values, pa.string()), np.array(counts, np.int64)


@MANY
@given(
    columns=st.dictionaries(
        st.sampled_from(["A", "B"]), st.tuples(COUNTED, st.integers(0, 9)), min_size=1, max_size=2
    ),
    written=st.sampled_from([1, 2, 8]),
    asked=st.sampled_from([1, 2, 4, 16]),
)
def test_every_cell_is_in_one_bucket_whatever_the_file_was_cut_into(
    tmp_path_factory: pytest.TempPathFactory,
    columns: dict[str, tuple[dict[str, int], int]],
    written: int,
    asked: int,
) -> None:
    path = str(tmp_path_factory.mktemp("counts") / "part.parquet")
    arrays = {name: _arrays(counted, nulls) for name, (counted, nulls) in columns.items()}
    file, rows = write_counts(path, arrays, written)
    path, _ = split_name(file)
    for name, (counted, nulls) in columns.items():
        assert rows[name] == len(counted) + bool(nulls)
        read: Counter[str] = Counter()
        missing = 0
        for index in range(asked):
            values, counts, of_null = read_counts(path, name, Bucket(index, asked))
            assert values.null_count == 0
            assert not set(values.to_pylist()) & set(read)
            read.update(dict(zip(values.to_pylist(), counts.tolist(), strict=True)))
            missing += of_null
        assert (dict(read), missing) == (counted, nulls)


@MANY
@given(values=st.lists(VALUE, unique=True, max_size=50))
def test_buckets_nest(values: list[str]) -> None:
    array = pa.array(values, pa.string())
    coarse, fine = buckets_of(array, 4), buckets_of(array, 32)
    assert (fine % 4 == coarse).all()
    assert (fine < 32).all()


def test_parts_are_no_larger_than_asked_while_buckets_last() -> None:
    assert [buckets_for(size, 10) for size in (0, 10, 11, 40, 41)] == [1, 1, 2, 4, 8]
    assert buckets_for(10**9, 10) == MAX_BUCKETS


@MANY
@given(parts=st.lists(st.tuples(COUNTED, st.integers(0, 1), st.integers(0, 5)), max_size=6))
def test_sums_by_side_and_last_day(parts: list[tuple[dict[str, int], int, int]]) -> None:
    sums = Sums(sides=2)
    expected: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    last: dict[str, int] = {}
    for counted, side, day in parts:
        values, counts = _arrays(counted)
        sums.add(values, counts, side, day if side else np.full(len(values), day))
        for value, count in counted.items():
            expected[value][side] += count
            last[value] = max(last.get(value, 0), day)
    values, totals, days = sums.result()
    names = values.to_pylist()
    assert names == list(expected), "in order of arrival"
    assert totals.tolist() == list(expected.values())
    assert dict(zip(names, days.tolist(), strict=True)) == last


@pytest.mark.parametrize("built", [True, False])
def test_a_lookup_finds_what_is_there_and_nothing_else(monkeypatch: pytest.MonkeyPatch, built: bool) -> None:
    if not built:
        monkeypatch.setattr(lookups, "is_built", lambda: False)

    @MANY
    @given(known=st.lists(VALUE, unique=True), wanted=st.lists(st.one_of(st.none(), VALUE)))
    def check(known: list[str], wanted: list[str | None]) -> None:
        asked = [*wanted, *known[::2], None]
        lookup = Lookup(pa.array(known, pa.string()))
        # A slice of an array begins behind its buffer's first value.
        array = pa.array(["left out", *asked], pa.string()).slice(1)
        indices = lookup.find(array).tolist()
        assert indices == [known.index(value) if value in known else -1 for value in asked]
        assert lookup.find(array).tolist() == indices

    check()


NUMBER = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 5e-324, -5e-324, 1.0, 1.001]),
)
PROBABILITIES = [0.001, 0.25, 0.5, 0.9, 1.0]


@settings(MANY, max_examples=15)
@given(parts=st.lists(st.lists(st.tuples(NUMBER, st.integers(1, 9)), max_size=20), max_size=4))
def test_quantiles_are_those_of_all_values_also_if_only_some_are_held(
    parts: list[list[tuple[float, int]]],
) -> None:
    def counted() -> Iterator[tuple[pa.Array, np.ndarray]]:
        for part in parts:
            numbers = pa.array([number for number, _ in part], pa.float64())
            yield numbers, np.array([count for _, count in part], np.int64)

    every = sorted(number + 0.0 for part in parts for number, count in part for _ in range(count))
    positions = [max(1, math.ceil(Fraction(str(share)) * len(every))) for share in PROBABILITIES]
    expected = [every[position - 1] for position in positions] if every else []
    for held in (0, 1_000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(moments, "_HELD_VALUES", held)
            assert moments.quantiles_of_counts(counted, PROBABILITIES) == expected


@given(
    cells=st.lists(
        st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 2**40)), min_size=1
    )
)
@settings(MANY, max_examples=60)
def test_the_sum_of_a_column_of_doubles_is_exact(cells: list[tuple[float, int]]) -> None:
    counted = Counter[float]()
    for number, count in cells:
        counted[number + 0.0] += count
    texts = pa.array(counted, pa.float64()).cast(pa.string())
    summary = summarise_values(texts, np.array([*counted.values()], np.int64), "float")
    exact = sum(Fraction(number) * count for number, count in counted.items())
    assert summary.mean == float(exact / counted.total())
