"""Splits of Arrow tables equal those of Spark and of the oracle, for tasks and file splits of any size."""

from __future__ import annotations

import struct
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from conf.errors import DataError
from conf.types import SplitConfig
from etl.prepare.prepared_rows import assign_split, count_times, position_cuts, time_cuts
from etl.raw import splits
from etl.raw.splits import last_ranks
from tests.etl import oracle
from tests.etl.prepare.tables import FORMS, assert_same_rows, by_user, in_form, records, to_frame

WITH_SPARK = settings(max_examples=3, deadline=None, derandomize=True, database=None)
MANY = settings(max_examples=40, deadline=None, derandomize=True, database=None)
LAST_OUT = SplitConfig(by="leave_last_out")
FRACTION = SplitConfig(by="fraction", train=0.7, validation=0.2)
ROW = st.tuples(st.sampled_from("uvwxyz"), st.integers(-3, 9), st.sampled_from([0.0, 1.0]))
LOG = st.lists(ROW, min_size=1, max_size=70)
Row = tuple[str, int, float]


def _table(rows: list[Row], timed: bool) -> pa.Table:
    users, times, labels = zip(*rows, strict=True)
    columns = {
        # Quarantined rows leave gaps.
        "row_id": pa.array([place + place // 3 for place in range(len(rows))], pa.int64()),
        "user_key": pa.array(users),
        "event_time": pa.array(times, pa.int64()),
        "label": pa.array(labels, pa.float32()),
    }
    return pa.table(columns if timed else {name: columns[name] for name in columns if name != "event_time"})


def _cuts(table: pa.Table, config: SplitConfig, pieces: int) -> tuple[float, float] | None:
    """The cuts of a log that is read in `pieces` file splits, some of which may have no rows."""
    bounds = np.linspace(0, len(table), pieces + 1).astype(int)
    parts = [table[start:end] for start, end in pairwise(bounds)]
    if "event_time" in table.column_names:
        times, counts = zip(*map(count_times, parts), strict=True)
        return time_cuts(np.concatenate(times), np.concatenate(counts), config)
    asked: list[int] = []

    def row_ids(index: int) -> np.ndarray:
        asked.append(index)
        return parts[index].column("row_id").to_numpy()[::-1]

    cuts = position_cuts([len(part) for part in parts], row_ids, config)
    assert len(asked) == len({*asked}) <= 2
    return cuts


@MANY
@given(rows=LOG, timed=st.booleans(), form=st.sampled_from(FORMS), tasks=st.integers(1, 4))
def test_splits_are_the_oracles(rows: list[Row], timed: bool, form: str, tasks: int) -> None:
    table = _table(rows, timed)
    cuts = _cuts(table, FRACTION, pieces=1 + tasks * 2)
    for config, of_oracle in (
        (FRACTION, lambda log: oracle.split_by_fraction(log, 0.7, 0.2)),
        (LAST_OUT, oracle.split_leave_last_out),
    ):
        expected = of_oracle(table.to_pandas()).tolist()
        parts = [assign_split(in_form(part, form), config, cuts) for part in by_user(table, tasks)]
        actual = records(parts)
        assert [actual[row_id]["split"] for row_id in table.column("row_id").to_pylist()] == expected


@WITH_SPARK
@given(rows=st.lists(ROW, min_size=20, max_size=70), timed=st.booleans())
def test_splits_are_those_of_spark(spark: SparkSession, rows: list[Row], timed: bool) -> None:
    table = _table(rows, timed)
    frame = to_frame(spark, table)
    cuts = _cuts(table, FRACTION, pieces=5)
    for config in (FRACTION, LAST_OUT):
        parts = [assign_split(part, config, cuts) for part in by_user(table)]
        assert_same_rows(parts, splits.assign_split(frame, config))


def test_cuts_of_times_are_the_percentiles_of_spark_to_the_bit(spark: SparkSession) -> None:
    """Shares whose positions are rounded, times with and without fractions between them, and huge times."""
    random = np.random.default_rng(3)
    logs = [
        np.sort(random.integers(low, high, size))
        for low, high in (
            (0, 3),
            (-50, 50),
            (1_700_000_000_000_000, 1_700_000_100_000_000),
            (-(2**62), 2**62),
        )
        for size in (1, 2, 3, 10, 11, 97, 500)
    ]
    rows = [(number, time) for number, log in enumerate(logs) for time in log.tolist()]
    frame = spark.createDataFrame(rows, "log int, event_time long").repartition(3).persist()
    for train, validation in ((0.8, 0.1), (0.7, 0.2), (0.333, 0.1), (0.1, 0.2), (0.05, 0.0)):
        config = SplitConfig(by="fraction", train=train, validation=validation)
        shares = F.array(F.lit(train), F.lit(train + validation))
        percentiles = frame.groupBy("log").agg(F.percentile("event_time", shares).alias("cuts")).collect()
        expected = {row["log"]: tuple(row["cuts"]) for row in percentiles}
        for number, log in enumerate(logs):
            times, counts = np.unique(log, return_counts=True)
            order = random.permutation(len(times))
            cuts = time_cuts(times[order], counts[order], config)
            assert cuts is not None
            assert [struct.pack("d", cut) for cut in cuts] == [
                struct.pack("d", cut) for cut in expected[number]
            ], (train, validation, number)


@MANY
@given(
    total=st.integers(1, 10**12),
    train=st.integers(1, 90).map(lambda percent: percent / 100),
    validation=st.integers(0, 9).map(lambda percent: percent / 100),
)
def test_ranks_are_exact(total: int, train: float, validation: float) -> None:
    config = SplitConfig(by="fraction", train=train, validation=validation)
    percent = Fraction(round(train * 100), 100)
    both = percent + Fraction(round(validation * 100), 100)
    assert last_ranks(total, config) == ((total - 1) * percent // 1, (total - 1) * both // 1)


def test_ten_rows_lose_no_row_to_binary_fractions() -> None:
    # 0.7 + 0.2 is 0.8999999999999999.
    assert last_ranks(11, FRACTION) == (7, 9)


@pytest.mark.parametrize("timed", [True, False])
def test_a_log_without_rows_is_an_error(timed: bool) -> None:
    table = _table([("u", 1, 1.0)], timed)[:0]
    cuts = _cuts(table, FRACTION, pieces=2)
    assert cuts is None
    with pytest.raises(DataError, match="the log has no good row"):
        assign_split(table, FRACTION, cuts)
    assert len(assign_split(table, LAST_OUT, None)) == 0


def test_rows_of_one_day_are_not_divided() -> None:
    with pytest.raises(ValueError, match="rows of one day cannot be divided into splits"):
        assign_split(_table([("u", 1, 1.0)], timed=True), SplitConfig(by="day"), None)


def test_later_rows_of_other_users_do_not_change_the_splits_of_a_user() -> None:
    """With leave_last_out, a user's splits depend on this user's rows only."""
    rows: list[Row] = [("u", 1, 1.0), ("u", 2, 0.0), ("u", 2, 1.0), ("u", 5, 1.0), ("u", 7, 0.0)]
    alone = assign_split(_table(rows, timed=True), LAST_OUT, None)
    assert alone.column("split").to_pylist() == ["train", "train", "validation", "test", "test"]
    together = assign_split(_table([*rows, ("v", 9, 1.0)], timed=True), LAST_OUT, None)
    assert together[:5].column("split").to_pylist() == alone.column("split").to_pylist()
