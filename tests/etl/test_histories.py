"""Histories equal a pandas oracle for any order and partitioning of rows, and use nothing from the future."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from conf.types import History
from etl.spark.frame_passes import ARRAY, add_history, as_history, last_clicks, merge_days

FEW = settings(max_examples=3, deadline=None, derandomize=True, database=None)
ROW = st.tuples(
    st.sampled_from("uvw"),
    st.sampled_from("abcdefg"),
    st.sampled_from([0.0, 1.0, 1.0]),
    st.integers(0, 6),  # few times, so that many rows have equal times
)
SCHEMA = "user_key string, item_key string, label float, event_time bigint, row_id bigint"


def _log(rows: list[tuple]) -> pd.DataFrame:
    log = pd.DataFrame(rows, columns=["user_key", "item_key", "label", "event_time"])
    return log.assign(row_id=range(len(log)))


def _frame(spark: SparkSession, log: pd.DataFrame, *, timed: bool, seed: int = 1) -> DataFrame:
    shuffled = log.sample(frac=1, random_state=seed)
    frame = spark.createDataFrame(list(shuffled.itertuples(index=False, name=None)), SCHEMA)
    return (frame if timed else frame.drop("event_time")).repartition(1 + 2 * seed)


def _expected(log: pd.DataFrame, length: int, *, timed: bool) -> dict[int, list[str]]:
    """row_id → the items of the clicks before the row, the most recent first."""
    order = ["event_time", "row_id"] if timed else ["row_id"]
    histories = {}
    for row in log.itertuples():
        mine = log[(log["user_key"] == row.user_key) & (log["label"] == 1)]
        earlier = [
            (tuple(getattr(other, name) for name in order), other.item_key)
            for other in mine.itertuples()
            if tuple(getattr(other, name) for name in order) < tuple(getattr(row, name) for name in order)
        ]
        histories[row.row_id] = [item for _, item in sorted(earlier, reverse=True)][:length]
    return histories


def _histories(rows: DataFrame) -> dict[int, list[str]]:
    return {row["row_id"]: list(row["history"]) for row in rows.select("row_id", "history").collect()}


@FEW
@given(rows=st.lists(ROW, min_size=1, max_size=40), length=st.integers(1, 5), timed=st.booleans())
def test_histories_are_the_clicks_before_the_row(
    spark: SparkSession, rows: list[tuple], length: int, timed: bool
) -> None:
    log, history = _log(rows), History(length=length)
    expected = _expected(log, length, timed=timed)
    for seed in (1, 2):
        with_history = add_history(_frame(spark, log, timed=timed, seed=seed), history)
        assert _histories(with_history) == expected


@FEW
@given(rows=st.lists(ROW, min_size=2, max_size=30), length=st.integers(1, 4))
def test_later_rows_do_not_change_a_history(spark: SparkSession, rows: list[tuple], length: int) -> None:
    """A row's history is the same if the log ends with this row."""
    log = _log(rows).sort_values(["event_time", "row_id"], ignore_index=True)
    history, middle = History(length=length), len(log) // 2
    whole = _histories(add_history(_frame(spark, log, timed=True), history))
    cut = _histories(add_history(_frame(spark, log[: middle + 1], timed=True), history))
    assert cut == {row_id: whole[row_id] for row_id in log["row_id"][: middle + 1]}


@FEW
@given(
    days=st.lists(st.lists(ROW, min_size=1, max_size=15), min_size=2, max_size=4), length=st.integers(1, 4)
)
def test_days_before_count_as_earlier_clicks(
    spark: SparkSession, days: list[list[tuple]], length: int
) -> None:
    """The histories of the last day are those of one log with all days, whose times are ordered by day."""
    history = History(length=length)
    logs, first = [], 0
    for number, rows in enumerate(days):
        log = _log(rows)
        log["event_time"] += 100 * number
        log["row_id"] += first
        first += len(log)
        logs.append(log)
    expected = _expected(pd.concat(logs), length, timed=True)
    earlier = merge_days([last_clicks(_frame(spark, log, timed=True), length) for log in logs[:-1]], length)
    with_history = add_history(_frame(spark, logs[-1], timed=True), history, earlier)
    assert _histories(with_history) == {row_id: expected[row_id] for row_id in logs[-1]["row_id"]}


@FEW
@given(
    rows=st.lists(st.tuples(ROW, st.integers(0, 4)), min_size=10, max_size=40),
    length=st.integers(1, 4),
    timed=st.booleans(),
)
def test_no_row_has_a_click_of_its_group(
    spark: SparkSession, rows: list[tuple[tuple, int]], length: int, timed: bool
) -> None:
    """Groups may overlap in time. Each row has the history of the first row of its user and group."""
    log = _log([row for row, _ in rows])
    groups = {row_id: group for row_id, (_, group) in enumerate(rows)}
    before = _expected(log, length, timed=timed)
    order = ["event_time", "row_id"] if timed else ["row_id"]
    expected: dict[int, list[str]] = {}
    for _, members in log.groupby([log["user_key"], log["row_id"].map(groups)]):
        first = members.sort_values(order)["row_id"].iloc[0]
        expected |= dict.fromkeys(members["row_id"], before[first])
    for seed in (1, 2):
        frame = _frame(spark, log, timed=timed, seed=seed)
        group_of = spark.createDataFrame(list(groups.items()), "row_id bigint, group_key bigint")
        frame = frame.join(group_of, "row_id")
        assert _histories(add_history(frame, History(length=length))) == expected


def test_a_row_with_a_time_of_an_earlier_day_has_only_clicks_before_this_time(spark: SparkSession) -> None:
    rows = _frame(spark, _log([("u", "late", 1.0, 50), ("u", "today", 1.0, 210)]), timed=True)
    clicks = [(40, "a"), (50, "now"), (60, "b")]
    earlier = spark.createDataFrame([("u", clicks)], f"user_key string, clicks {ARRAY}")
    expected = {0: ["a"], 1: ["late", "b", "now", "a"]}
    assert _histories(add_history(rows, History(length=5), earlier)) == expected


@pytest.mark.parametrize("timed", [True, False])
def test_last_clicks_are_the_history_after_the_last_row(spark: SparkSession, timed: bool) -> None:
    log = _log(
        [
            ("u", item, label, time)
            for item, label, time in zip("abcd", [1, 1, 0, 1], [3, 1, 5, 3], strict=True)
        ]
    )
    log["label"] = log["label"].astype(float)
    clicks = last_clicks(_frame(spark, log, timed=timed), 2)
    histories = as_history(clicks, History(length=2)).collect()
    assert [(row["user_key"], row["history"]) for row in histories] == [
        ("u", ["d", "a"] if timed else ["d", "b"])
    ]
