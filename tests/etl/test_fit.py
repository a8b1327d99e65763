"""Statistics of a fit and splits of a log, compared with oracles for any order of rows and partitions."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.errors import ConfigError, DataError
from conf.types import SPLITS, SplitConfig
from etl.fit.row_statistics import add_counts, count_values
from etl.ops import Statistics, operator_from_config
from etl.raw.splits import assign_split, plan_days
from etl.statistics.id_rule import IdRule, assign_ids
from etl.statistics.moments import ExactSums, measure_moments, sums_of_counts
from tests.etl import oracle

FEW = settings(max_examples=2, deadline=None, derandomize=True, database=None)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=2)


def _ids(counts: DataFrame) -> dict[str, dict[str, int]]:
    ids: dict[str, dict[str, int]] = {}
    for row in counts.where(F.col("id").isNotNull()).collect():
        ids.setdefault(row["column"], {})[row["value"]] = row["id"]
    return ids


@FEW
@given(
    first=st.lists(st.tuples(st.none() | TEXT, st.sampled_from("bcd")), min_size=50, max_size=150),
    later=st.lists(st.tuples(st.none() | TEXT, st.sampled_from("cde")), min_size=20, max_size=60),
    partitions=st.integers(1, 5),
)
def test_ids_do_not_depend_on_order_and_an_extension_appends(
    spark: SparkSession, first: list[tuple], later: list[tuple], partitions: int
) -> None:
    minimum = {"x": 2, "y": 3}
    rules = {name: IdRule(least, first_id=3) for name, least in minimum.items()}
    values = [(name, F.col(name), False) for name in minimum]
    expected: dict[str, dict[str, int]] = {"x": {}, "y": {}}
    known: Counter[tuple[str, str]] = Counter()
    frames = [
        spark.createDataFrame(rows, "x string, y string").repartition(partitions) for rows in (first, later)
    ]
    counted = count_values(frames[0], values, F.lit(1)).withColumn("id", F.lit(None).cast("int"))
    for step, rows in enumerate((first, later)):
        known.update(
            (column, row[position])
            for row in rows
            for position, column in enumerate("xy")
            if row[position] is not None
        )
        for column, ids in expected.items():
            oracle.append_ids(
                ids, Counter({v: n for (c, v), n in known.items() if c == column}), minimum[column]
            )
        if step:
            counted = add_counts(assign_ids(counted, rules), count_values(frames[1], values, F.lit(2)))
        assert _ids(assign_ids(counted, rules)) == {column: ids for column, ids in expected.items() if ids}


def _exact(values: list[float]) -> tuple[float, float]:
    """Mean and population std of values rounded to multiples of 2**-24, by exact fractions."""
    # round() of a Fraction rounds halves to even, as IEEE's rint does.
    rounded = [Fraction(round(Fraction(v) * 2**24), 2**24) for v in values]
    mean = sum(rounded, Fraction(0)) / len(rounded)
    return float(mean), math.sqrt(sum(((v - mean) ** 2 for v in rounded), Fraction(0)) / len(rounded))


NUMBERS = st.lists(
    st.floats(-1e9, 1e9)
    | st.floats(-2, 2)
    | st.floats(-5e20, 5e20)
    | st.floats(1.7e12, 1.8e12)
    | st.integers(-(2**63), 2**63 - 1).map(float)
    | st.sampled_from([2.0**38, -(2.0**38), 2.0**38 - 2.0**-15, math.nextafter(2.0**69, 0), -(2.0**68)]),
    min_size=30,
    max_size=200,
)


@FEW
@given(values=NUMBERS, partitions=st.integers(1, 6))
def test_moments_are_exact_in_any_order(spark: SparkSession, values: list[float], partitions: int) -> None:
    rows = spark.createDataFrame([(v, None if v < 0 else v) for v in values], "a double, b double")
    moments = measure_moments(
        rows.repartition(partitions), {"a": F.col("a"), "b": F.col("b"), "none": F.lit(None)}
    )
    assert (moments["a"].mean, moments["a"].std) == _exact(values)
    present = [v for v in values if v >= 0]
    assert moments["b"].rows == len(present)
    assert (moments["b"].mean, moments["b"].std) == (_exact(present) if present else (0.0, 0.0))
    assert moments["none"].rows == 0


@settings(max_examples=10, deadline=None, derandomize=True, database=None)
@given(values=NUMBERS)
def test_sums_of_values_with_their_counts_are_exact(values: list[float]) -> None:
    """As the engine `arrow` adds them, in two parts."""
    counts = np.arange(1, len(values) + 1)
    half = len(values) // 2
    parts = [(values[:half], counts[:half]), (values[half:], counts[half:])]
    summed = sum((sums_of_counts("a", np.array(v), c) for v, c in parts), ExactSums())
    assert (summed.moments().mean, summed.moments().std) == _exact(
        [v for v, count in zip(values, counts, strict=True) for _ in range(count)]
    )


def test_normalize_takes_instants_in_milliseconds_and_any_integer(spark: SparkSession) -> None:
    """1.7e12 was out of range of the exact sums in an earlier version."""
    for values in ([1.7e12, 1.7e12 + 2000], [float(2**63 - 1), -float(2**63)], [1.7e18, 1.8e18]):
        rows = spark.createDataFrame([(value,) for value in values], "a double")
        moments = measure_moments(rows, {"a": F.col("a")})["a"]
        assert (moments.mean, moments.std) == _exact(values)
        assert sums_of_counts("a", np.array(values), np.array([1, 1])).moments() == moments


def test_moments_of_many_large_values_do_not_overflow(spark: SparkSession) -> None:
    for largest, step in ((2.0**38 - 1, 1.0), (2.0**69 - 2.0**17, 2.0**18)):
        rows = spark.range(50_000).select((F.lit(largest) - F.col("id") % 2 * step).alias("a"))
        moments = measure_moments(rows, {"a": F.col("a"), "minus": -F.col("a")})
        assert (moments["a"].mean, moments["a"].std) == (largest - step / 2, step / 2)
        assert (moments["minus"].mean, moments["minus"].std) == (step / 2 - largest, step / 2)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2.0**69, -(2.0**69)])
def test_moments_refuse_what_they_cannot_sum_exactly(spark: SparkSession, value: float) -> None:
    rows = spark.createDataFrame([(1.0,), (value,)], "a double")
    with pytest.raises(DataError, match="the mean of a cannot be computed: 1 values"):
        measure_moments(rows, {"a": F.col("a")})


def test_normalize_needs_a_value() -> None:
    operator = operator_from_config("normalize")
    with pytest.raises(DataError, match="normalize cannot be fitted on a"):
        operator.fit(operator.bind({"a": "int"})[0], Statistics())


@pytest.mark.parametrize(
    "entry, problem",
    [
        ("sqrt", "unknown operator 'sqrt'"),
        ({"clip": {}}, "neither `min` nor `max`"),
        ({"clip": {"min": 2, "max": 1}}, "min=2 is above max=1"),
        ({"clip": {"low": 1}}, "does not take"),
        ({"categorify": {"min_count": 0}}, "min_count=0"),
        ({"clip": {"min": 1}, "fill": {}}, "has 2 operators"),
    ],
)
def test_operators_check_their_parameters(entry: str | dict, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        operator_from_config(entry)


LOG_ROW = st.tuples(
    st.integers(0, 30), st.sampled_from("uvw"), st.sampled_from("abcdef"), st.sampled_from([0.0, 0.0, 1.0])
)


def _log(rows: list[tuple]) -> pd.DataFrame:
    named = pd.DataFrame(rows, columns=["event_time", "user_key", "item_key", "label"])
    return named.assign(row_id=range(len(rows)))


def _split_of(spark: SparkSession, rows: pd.DataFrame, config: SplitConfig) -> list[str]:
    split = assign_split(spark.createDataFrame(rows.sample(frac=1, random_state=1)), config)
    return [row["split"] for row in split.orderBy("row_id").collect()]


@FEW
@given(rows=st.lists(LOG_ROW, min_size=20, max_size=80))
def test_splits_are_the_oracles(spark: SparkSession, rows: list[tuple]) -> None:
    log = _log(rows)
    fraction = SplitConfig(by="fraction", train=0.7, validation=0.2)
    assert _split_of(spark, log, fraction) == oracle.split_by_fraction(log, 0.7, 0.2).tolist()
    # Quarantined rows leave gaps in row_id.
    untimed = log.drop(columns="event_time")[log["label"].cumsum() % 3 != 1]
    assert _split_of(spark, untimed, fraction) == oracle.split_by_fraction(untimed, 0.7, 0.2).tolist()
    last_out = SplitConfig(by="leave_last_out")
    assert _split_of(spark, log, last_out) == oracle.split_leave_last_out(log).tolist()
    assert _split_of(spark, untimed, last_out) == oracle.split_leave_last_out(untimed).tolist()


def test_days_of_a_run_date() -> None:
    config = SplitConfig(by="day", train_days=3, validation_days=1, test_days=1, min_train_days=2)
    logs = {"2026-02-27", "2026-03-01", "2026-03-02", "2026-03-03"}
    assert plan_days(config, "2026-03-03", logs.__contains__) == {
        "train": ["2026-02-27", "2026-03-01"],
        "validation": ["2026-03-02"],
        "test": ["2026-03-03"],
    }
    with pytest.raises(DataError, match=r"no raw log for \['2026-03-02'\]"):
        plan_days(config, "2026-03-03", (logs - {"2026-03-02"}).__contains__)
    with pytest.raises(DataError, match=r"only 1 of the train days 2026-02-27\.\.2026-03-01"):
        plan_days(config, "2026-03-03", (logs - {"2026-03-01"}).__contains__)


def _sizes(spark: SparkSession, rows: DataFrame, **shares: float) -> list[int]:
    split = assign_split(rows, SplitConfig(by="fraction", **shares))  # type: ignore[arg-type]
    assert split.where(F.col("split") == "train").agg(F.max("row_id")).first()[0] < min(  # type: ignore[index]
        split.where(F.col("split") == "test").agg(F.min("row_id")).first()  # type: ignore[arg-type]
    )
    counted = {row["split"]: row["count"] for row in split.groupBy("split").count().collect()}
    return [counted.get(name, 0) for name in SPLITS]


def test_a_log_without_times_is_split_by_the_rank_of_kept_rows(spark: SparkSession) -> None:
    positions = spark.range(1000).withColumnRenamed("id", "row_id")
    # 502 rows, most of them late.
    good = positions.where("row_id >= 506 or (row_id > 0 and row_id % 63 = 0)")
    assert _sizes(spark, good, train=0.8, validation=0.1) == [401, 50, 51]
    assert _sizes(spark, positions.limit(11), train=0.7, validation=0.2) == [8, 2, 1]


@pytest.mark.parametrize("kept", ["row_id % 7 != 0", "row_id < 190000 or row_id % 3 = 0", "row_id >= 70000"])
def test_splits_are_exact_over_many_blocks_of_row_ids(spark: SparkSession, kept: str) -> None:
    rows = spark.range(300_000).withColumnRenamed("id", "row_id").where(kept)
    total = rows.count()
    train, both = (total - 1) * 8 // 10 + 1, (total - 1) * 9 // 10 + 1
    assert _sizes(spark, rows, train=0.8, validation=0.1) == [train, both - train, total - both]
