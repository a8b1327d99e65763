"""Negatives equal the oracle's for any order of rows, and do not depend on held-out rows."""

from __future__ import annotations

import math
import random

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from conf.types import SPLITS, Negatives
from etl.raw.splits import add_negatives, drawn_rows
from tests.etl import oracle

FEW = settings(max_examples=3, deadline=None, derandomize=True, database=None)
PER_POSITIVE, SEED = 3, 5
CONFIG = Negatives(per_positive=PER_POSITIVE, seed=SEED)
LOG_ROW = st.tuples(
    st.sampled_from("uvwxyz"),
    st.sampled_from("abcdefghijklm"),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from(SPLITS),
)


def _log(rows: list[tuple]) -> pd.DataFrame:
    log = pd.DataFrame(rows, columns=["user_key", "item_key", "label", "split"])
    return log.assign(item=log["item_key"], row_id=range(len(log)), event_time=range(len(log)))


def _drawn(spark: SparkSession, log: pd.DataFrame, seed: int = 1) -> pd.DataFrame:
    frame = spark.createDataFrame(log.sample(frac=1, random_state=seed)).repartition(1 + seed)
    return add_negatives(frame, CONFIG, "item").toPandas().sort_values("row_id", ignore_index=True)


def _hashes(spark: SparkSession, rows: int) -> dict[tuple[int, int], int]:
    """(row_id, draw) → Spark's xxhash64. These tests do not check the hash itself."""
    pairs = spark.range(rows).withColumn("draw", F.explode(F.sequence(F.lit(1), F.lit(PER_POSITIVE))))
    hashed = pairs.select("id", "draw", F.xxhash64("id", "draw", F.lit(SEED)))
    return {(row[0], row[1]): row[2] for row in hashed.collect()}


@pytest.mark.parametrize("cut", [True, False])
def test_negatives_of_a_log_are_the_oracles(spark: SparkSession, cut: bool) -> None:
    draw = random.Random(2)
    rows = [(draw.choice("uvwxyz"), draw.choice("abcdefghijklm"), draw.choice([0.0, 1.0])) for _ in range(60)]
    log = _log([(*row, draw.choice(SPLITS)) for row in rows])
    log = log if cut else log.drop(columns="split")
    expected = oracle.add_negatives(log, PER_POSITIVE, _hashes(spark, len(log)))
    pd.testing.assert_frame_equal(_drawn(spark, log), expected, check_dtype=False)


@FEW
@given(rows=st.lists(LOG_ROW, min_size=20, max_size=80), cut=st.booleans())
def test_negatives_are_the_oracles(spark: SparkSession, rows: list[tuple], cut: bool) -> None:
    log = _log(rows) if cut else _log(rows).drop(columns="split")
    expected = oracle.add_negatives(log, PER_POSITIVE, _hashes(spark, len(log)))
    for seed in (1, 2):
        pd.testing.assert_frame_equal(_drawn(spark, log, seed), expected, check_dtype=False)


@FEW
@given(rows=st.lists(LOG_ROW, min_size=30, max_size=80), later=st.sampled_from(["validation", "test"]))
def test_later_rows_do_not_change_earlier_splits(spark: SparkSession, rows: list[tuple], later: str) -> None:
    log = _log([("u", "a", 1.0, "train"), *rows])
    earlier = list(SPLITS[: SPLITS.index(later)])
    frames = [_drawn(spark, rows_of_log) for rows_of_log in (log, log[log["split"].isin(earlier)])]
    before, after = (frame[frame["split"].isin(earlier)].reset_index(drop=True) for frame in frames)
    pd.testing.assert_frame_equal(before, after)


@FEW
@given(rows=st.lists(LOG_ROW, min_size=30, max_size=80))
def test_without_train_only_the_rows_added_for_train_rows_are_missing(
    spark: SparkSession, rows: list[tuple]
) -> None:
    log = _log([("u", "a", 1.0, "train"), *rows])
    frame = spark.createDataFrame(log)
    held_out = CONFIG.model_copy(update={"train": False})
    actual = add_negatives(frame, held_out, "item").toPandas().sort_values("row_id", ignore_index=True)
    complete = _drawn(spark, log)
    added = complete["row_id"] % (PER_POSITIVE + 1) != 0
    expected = complete[~(added & (complete["split"] == "train"))].reset_index(drop=True)
    pd.testing.assert_frame_equal(actual, expected)


def test_held_out_items_are_drawn_for_train_rows_as_often_as_any_other(spark: SparkSession) -> None:
    """150 users and 50 items, each user with one held-out item: hits are a sum of independent draws."""
    draw = random.Random(3)
    rows = []
    for user in range(150):
        *train, validation, test = draw.sample(range(50), 12)
        rows += [(f"u{user}", f"i{item:02}", 1.0, "train") for item in train]
        rows += [
            (f"u{user}", f"i{validation:02}", 1.0, "validation"),
            (f"u{user}", f"i{test:02}", 1.0, "test"),
        ]
    with_negatives = _drawn(spark, _log(rows))
    drawn = with_negatives[(with_negatives["split"] == "train") & (with_negatives["label"] == 0)]
    for held_out in ("validation", "test"):
        wanted = {(user, item) for user, item, _, split in rows if split == held_out}
        hits = sum(pair in wanted for pair in zip(drawn["user_key"], drawn["item_key"], strict=True))
        draws = 150 * 10 * PER_POSITIVE
        assert abs(hits - draws / 50) < 4 * math.sqrt(draws / 50 * 49 / 50), held_out


def test_drawn_rows_distinguishes_negatives_from_rows_of_the_log(spark: SparkSession) -> None:
    log = _log([("u", "a", 1.0, "train"), ("u", "b", 0.0, "train"), ("v", "c", 1.0, "train")])
    rows = (
        add_negatives(spark.createDataFrame(log), CONFIG, "item")
        .selectExpr("*", f"{drawn_rows(CONFIG)} AS drawn")
        .toPandas()
    )
    kept = rows[~rows["drawn"]].sort_values("row_id")
    assert kept["item_key"].tolist() == ["a", "b", "c"]
    assert (rows[rows["drawn"]]["label"] == 0).all()
    assert len(rows) > len(kept)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_a_user_who_knows_every_item_gets_no_negative(spark: SparkSession, label: float) -> None:
    log = _log([("u", "a", 1.0, "train"), ("u", "b", label, "train"), ("u", "c", 1.0, "test")])
    assert len(_drawn(spark, log[log["split"] == "train"])) == 2
    assert len(_drawn(spark, log)) == 3
