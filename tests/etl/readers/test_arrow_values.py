"""Each declared type accepts what it can hold, refuses other types, and rejects values that do not fit."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from conf.errors import ConfigError, DataError, NightrankError
from conf.raw_types import Column
from etl.readers.arrow_values import (
    VALUE_TYPES,
    NoTextError,
    convert,
    malformed_rows,
    null_values,
    require_type,
)
from tests.etl.readers.blocks import plain

D = decimal.Decimal


def column_of(declared: str) -> Column:
    """A column of this type; its type may be newer than the configuration."""
    return Column.model_construct(name="c", type=declared, source="source", optional=False)


def nanoseconds(*values: int | None, zone: str | None = None) -> pa.Array:
    return pa.array(values, pa.timestamp("ns", zone))


NOON = 1_767_268_800 * 10**9  # 2026-01-01 12:00 UTC, in ns
LATE = NOON + 11 * 3600 * 10**9 + 1500  # 23:00, and 1500 ns

# (declared type, stored values, expected values, rows that do not fit)
FITS: list[tuple[str, pa.Array, list[Any], list[int]]] = [
    ("bool", pa.array([True, None, False]), [1, None, 0], []),
    ("bool", pa.array([0, 1, 2, None]), [0, 1, None, None], [2]),
    ("bool", pa.array([0.0, 1.0, 0.5, math.nan, -0.0]), [0, 1, None, None, 0], [2]),
    ("date", pa.array([dt.date(1970, 1, 2), None, dt.date(1969, 12, 31)]), [1, None, -1], []),
    ("date", pa.array([dt.date(2026, 1, 1)]).cast(pa.date64()), [20454], []),
    ("date", nanoseconds(0, -1, LATE), [0, -1, 20454], []),
    ("date", nanoseconds(LATE, zone="America/New_York"), [20454], []),
    ("timestamp", nanoseconds(1999, -1, None, NOON), [1, -1, None, NOON // 1000], []),
    ("timestamp", nanoseconds(NOON, zone="Asia/Tokyo"), [NOON // 1000], []),
    ("timestamp", pa.array([1, -1], pa.timestamp("s")), [10**6, -(10**6)], []),
    ("timestamp", pa.array([2**62, 5], pa.timestamp("s")), [None, 5 * 10**6], []),
    ("timestamp", pa.array([dt.date(1970, 1, 2)]), [86_400 * 10**6], []),
    (
        "decimal",
        pa.array([D("0.1"), D("-12345678901234567890.12"), None]),
        [0.1, -12345678901234567890.12, None],
        [],
    ),
    ("decimal", pa.array([1.5, math.nan, math.inf, 1e39]), [1.5, None, None, None], [2, 3]),
    ("decimal", pa.array([True, False]), [1.0, 0.0], []),
    ("float", pa.array([2**64 - 1, 3], pa.uint64()), [float(2**64), 3.0], []),
    ("int", pa.array([2**63, 3], pa.uint64()), [None, 3], [0]),
    ("int", pa.array(["1", "x", "", None, "17.0"]), [1, None, None, None, 17], [1]),
    ("int", pa.array([b"1", b"1.5"]), [1, None], [1]),
    ("int", pa.array([D("3.0"), D("3.5"), D("1E20")], pa.decimal128(30, 1)), [3, None, None], [1, 2]),
    ("string", pa.array([D("3.00"), None]), ["3", None], []),
    ("string", pa.array(["", "a", None]), [None, "a", None], []),
    ("string", pa.array([1, None, -7], pa.int8()), ["1", None, "-7"], []),
    ("list<int>", pa.array([[1, None, 2], None, []]), [[1, 2], None, []], []),
    ("list<int>", pa.array([[1.0, math.nan], [1.5, 2.0], [3.0]]), [[1], None, [3]], [1]),
    (
        "list<int>",
        pa.array([[2**63], [1], [2, 2**63, 2**63]], pa.list_(pa.uint64())),
        [None, [1], None],
        [0, 2],
    ),
    ("list<int>", pa.array([[1, 2]], pa.list_(pa.int8(), 2)), [[1, 2]], []),
    ("list<int>", pa.array([[], None, [None]]), [[], None, []], []),
    ("list<string>", pa.array([["a", "", None], None, []]), [["a"], None, []], []),
    ("list<string>", pa.array([["a"]], pa.large_list(pa.large_string())), [["a"]], []),
    ("list<string>", pa.array([[1, 20], [None]]), [["1", "20"], []], []),
    ("list<string>", pa.array([[1.0], [math.nan]]), [["1"], []], []),
]


@pytest.mark.parametrize("declared, stored, expected, bad", FITS)
def test_values_are_converted_or_rejected(
    declared: str, stored: pa.Array, expected: list[Any], bad: list[int]
) -> None:
    column = column_of(declared)
    require_type("file", column, stored.type, is_time=False)
    twice = pa.chunked_array([stored.slice(0, 1), stored.slice(1), stored])
    converted = convert(twice, column)
    assert plain(converted.values) == expected * 2
    rows = [*bad, *(row + len(stored) for row in bad)]
    assert converted.malformed.tolist() == rows
    assert malformed_rows(twice, column).tolist() == rows
    assert null_values(column, 2).type == converted.values.type
    kind = converted.values.type
    assert (kind.value_type if pa.types.is_dictionary(kind) else kind) == VALUE_TYPES[declared]


@pytest.mark.parametrize("declared", VALUE_TYPES)
def test_no_values_and_nulls(declared: str) -> None:
    column = column_of(declared)
    for stored in (pa.nulls(3), pa.chunked_array([], pa.null())):
        converted = convert(stored, column)
        assert plain(converted.values) == [None] * len(stored)
        assert len(converted.malformed) == 0
    assert plain(null_values(column, 2)) == [None, None]


def test_times_without_a_zone_are_in_the_time_zone_of_the_table() -> None:
    local = nanoseconds(NOON, None)
    hour = 3600 * 10**6
    assert plain(convert(local, column_of("timestamp"), None, "Europe/Berlin").values) == [
        NOON // 1000 - hour,
        None,
    ]
    seconds = convert(local, column_of("int"), "s", "Europe/Berlin").values
    assert plain(seconds) == [NOON // 10**9 - 3600, None]
    with_zone = nanoseconds(LATE, zone="UTC")
    assert plain(convert(with_zone, column_of("timestamp"), None, "Europe/Berlin").values) == [LATE // 1000]
    assert plain(convert(with_zone, column_of("date"), None, "Europe/Berlin").values) == [20455]
    assert plain(convert(nanoseconds(LATE), column_of("date"), None, "Europe/Berlin").values) == [20454]
    date = pa.array([dt.date(2026, 1, 1)])
    midnight = NOON // 1000 - 12 * hour
    assert plain(convert(date, column_of("timestamp"), None, "Europe/Berlin").values) == [midnight - hour]


@pytest.mark.parametrize(
    "declared, stored, row, count",
    [
        ("string", pa.array([1.0, 1.5, 2.5]), 1, 2),
        ("string", pa.array([b"a", b"\xff"]), 1, 1),
        ("list<string>", pa.array([["a"], ["b"]], pa.list_(pa.string())), None, 0),
        ("list<string>", pa.array([[b"a"], [], [b"a", b"\xff"]]), 2, 1),
        ("list<string>", pa.array([None, [1.0], [0.5]]), 2, 1),
    ],
)
def test_a_value_without_text_is_named(declared: str, stored: pa.Array, row: int | None, count: int) -> None:
    if row is None:
        convert(stored, column_of(declared))
        return
    with pytest.raises(NoTextError) as caught:
        convert(stored, column_of(declared))
    assert (caught.value.row, caught.value.count) == (row, count)
    error = caught.value.error("a.parquet", 100)
    assert error.problem.startswith(f"a.parquet, row {101 + row}: the value ")


@pytest.mark.parametrize(
    "declared, kind, error, remedy",
    [
        ("int", pa.list_(pa.int64()), ConfigError, "type: list<int>"),
        ("string", pa.list_(pa.string()), ConfigError, "type: list<string>"),
        ("string", pa.bool_(), ConfigError, "type: int"),
        ("int", pa.timestamp("us"), ConfigError, "type: timestamp"),
        ("timestamp", pa.int64(), ConfigError, "type: int"),
        ("date", pa.float64(), ConfigError, "type: float"),
        ("int", pa.date32(), ConfigError, "type: date"),
        ("list<int>", pa.int64(), ConfigError, "type: int"),
        ("list<int>", pa.list_(pa.string()), ConfigError, "type: list<string>"),
        ("int", pa.struct([("a", pa.int64())]), DataError, "one value in each row"),
        ("int", pa.time64("us"), ConfigError, "type: time"),
        ("time", pa.int64(), ConfigError, "type: int"),
        ("float", pa.duration("us"), DataError, "remove it from `columns`"),
        ("int", pa.decimal256(50, 0), DataError, "store it as text"),
    ],
)
def test_other_types_are_refused(
    declared: str, kind: pa.DataType, error: type[NightrankError], remedy: str
) -> None:
    for one in (kind, pa.dictionary(pa.int32(), kind)):
        with pytest.raises(error) as caught:
            require_type("a.parquet", column_of(declared), one, is_time=False)
        assert "a.parquet: the column 'source'" in str(caught.value)
        assert remedy in str(caught.value)


def test_the_column_of_the_time_may_store_timestamps() -> None:
    require_type("a.parquet", column_of("int"), pa.timestamp("ns"), is_time=True)
    assert plain(convert(nanoseconds(1_999_999_999, -1), column_of("int"), "s").values) == [1, -1]


@pytest.mark.parametrize("seed", range(5))
def test_random_numbers_equal_those_of_duckdb_and_pandas(seed: int) -> None:
    draw = np.random.default_rng(seed)
    scaled = draw.integers(-(10**15), 10**15, 500)
    decimals = pa.array(
        [None if value % 7 == 0 else D(int(value)).scaleb(-5) for value in scaled], pa.decimal128(20, 5)
    )
    rows = pa.table({"d": decimals})
    expected = duckdb.from_arrow(rows).select("d::varchar::double").fetchall()
    assert plain(convert(decimals, column_of("float")).values) == [value for (value,) in expected]
    floats = np.where(
        draw.random(500) < 0.1, np.nan, np.round(draw.normal(size=500) * 100) / draw.choice([1, 4], 500)
    )
    whole = pd.Series(floats).where(floats == np.round(floats))
    converted = convert(pa.array(floats), column_of("int"))
    assert plain(converted.values) == [None if pd.isna(value) else int(value) for value in whole]
    assert converted.malformed.tolist() == np.flatnonzero(~np.isnan(floats) & whole.isna()).tolist()
    times = pd.Series(draw.integers(-(2**60), 2**60, 500)).astype("datetime64[ns]")
    assert (
        plain(convert(pa.array(times), column_of("timestamp")).values)
        == (times.astype("int64") // 1000).tolist()
    )
    days = (times.dt.floor("D").astype("int64") // (86_400 * 10**9)).tolist()
    assert plain(convert(pa.array(times), column_of("date")).values) == days
