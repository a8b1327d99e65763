"""Negatives of Arrow tables equal those of Spark and of the oracle, however the rows are divided into tasks."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from conf.types import SPLITS, Negatives
from etl.prepare.prepared_rows import DayItems, add_negatives, items_of, merge_items
from etl.raw import splits as in_spark
from tests.etl import oracle
from tests.etl.ops import hashing
from tests.etl.prepare.tables import FORMS, assert_same_rows, by_user, in_form, records, to_frame

WITH_SPARK = settings(max_examples=4, deadline=None, derandomize=True, database=None)
MANY = settings(max_examples=40, deadline=None, derandomize=True, database=None)
PER_POSITIVE, SEED = 3, 5
CONFIG = Negatives(per_positive=PER_POSITIVE, seed=SEED)
# Items are numbers, whose order differs from that of their texts.
LOG_ROW = st.tuples(
    st.sampled_from(["u", "v", "w", "é", "日本"]),
    st.integers(5, 16),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from(SPLITS),
)
Row = tuple[str, int, float, str]


def _table(rows: list[Row], with_splits: bool = True) -> pa.Table:
    users, items, labels, splits = zip(*rows, strict=True)
    table = pa.table(
        {
            "row_id": pa.array([7 * place for place in range(len(rows))], pa.int64()),
            "user_key": pa.array(users),
            "item_key": pa.array([str(item) for item in items]),
            "event_time": pa.array(range(len(rows)), pa.int64()),
            "label": pa.array(labels, pa.float32()),
            "item": pa.array(items, pa.int64()),
            "price": pa.array([item / 4 if item % 3 else None for item in items]),
            "clicked": pa.array([[str(item), user] if item % 2 else None for user, item, *_ in rows]),
            "split": pa.array(splits),
        }
    )
    return table if with_splits else table.drop(["split"])


def _drawn(
    table: pa.Table, config: Negatives = CONFIG, form: str = "plain", tasks: int = 3
) -> list[pa.Table]:
    parts = [in_form(part, form) for part in by_user(table, tasks)]
    items = merge_items([items_of(part, "item") for part in reversed(parts)])
    return [add_negatives(part, config, "item", items) for part in parts]


def _hash(row_id: int, draw: int, seed: int) -> int:
    digest = hashing.xxh64(row_id.to_bytes(8, "little"), 42)
    digest = hashing.xxh64(draw.to_bytes(4, "little"), digest)
    return hashing.signed(hashing.xxh64(seed.to_bytes(4 if seed < 2**31 else 8, "little"), digest))


@MANY
@given(
    rows=st.lists(LOG_ROW, min_size=1, max_size=60),
    with_splits=st.booleans(),
    form=st.sampled_from(FORMS),
    tasks=st.integers(1, 4),
)
def test_negatives_are_the_oracles(rows: list[Row], with_splits: bool, form: str, tasks: int) -> None:
    table = _table(rows, with_splits)
    log = table.select([name for name in table.column_names if name not in ("price", "clicked")]).to_pandas()
    hashes = {
        (row_id, draw): _hash(row_id, draw, SEED)
        for row_id in log["row_id"]
        for draw in range(1, PER_POSITIVE + 1)
    }
    expected = oracle.add_negatives(log.assign(item=log["item_key"]), PER_POSITIVE, hashes)
    actual = pd.DataFrame(list(records(_drawn(table, form=form, tasks=tasks)).values()))
    actual = actual.sort_values("row_id", ignore_index=True)
    assert actual["item"].astype(str).tolist() == actual["item_key"].tolist()
    columns = [name for name in expected.columns if name != "item"]
    pd.testing.assert_frame_equal(actual[columns], expected[columns], check_dtype=False)


@WITH_SPARK
@given(
    rows=st.lists(LOG_ROW, min_size=20, max_size=80),
    seed=st.sampled_from([0, 2**31 - 1, 2**31, 2**63 - 1]),
    per_positive=st.integers(1, 5),
    mode=st.sampled_from(["day", "splits", "held out"]),
    form=st.sampled_from(FORMS),
)
def test_negatives_are_those_of_spark(
    spark: SparkSession, rows: list[Row], seed: int, per_positive: int, mode: str, form: str
) -> None:
    table = _table(rows, with_splits=mode != "day")
    config = Negatives(per_positive=per_positive, seed=seed, train=mode != "held out")
    expected = in_spark.add_negatives(to_frame(spark, table), config, "item")
    assert_same_rows(_drawn(table, config, form), expected)


def test_negatives_of_a_longer_log_are_those_of_spark(spark: SparkSession) -> None:
    """Users with many rows, frequent items, and items that occur in one split only."""
    draw = random.Random(8)
    rows: list[Row] = [
        (
            f"u{min(int(draw.expovariate(0.05)), 200)}",
            int(draw.paretovariate(0.6)) % 900,
            float(draw.random() < 0.6),
            draw.choices(SPLITS, [8, 1, 1])[0],
        )
        for _ in range(4000)
    ]
    table = _table(rows)
    expected = in_spark.add_negatives(to_frame(spark, table), CONFIG, "item")
    tables = _drawn(table, form="dictionary")
    assert sum(len(part) for part in tables) > 8000
    assert_same_rows(tables, expected)


@MANY
@given(rows=st.lists(LOG_ROW, min_size=2, max_size=60), later=st.sampled_from(["validation", "test"]))
def test_later_rows_do_not_change_negatives_of_earlier_splits(rows: list[Row], later: str) -> None:
    table = _table([("u", 5, 1.0, "train"), *rows])
    earlier = SPLITS[: SPLITS.index(later)]
    is_earlier = pa.array([split in earlier for split in table.column("split").to_pylist()])
    before = records(_drawn(table.filter(is_earlier)))
    after = records(_drawn(table))
    assert before == {row_id: row for row_id, row in after.items() if row["split"] in earlier}


@MANY
@given(rows=st.lists(LOG_ROW, min_size=1, max_size=60))
def test_without_train_only_the_negatives_of_train_rows_are_missing(rows: list[Row]) -> None:
    table = _table([("u", 5, 1.0, "train"), *rows])
    held_out = records(_drawn(table, CONFIG.model_copy(update={"train": False})))
    expected = {
        row_id: row
        for row_id, row in records(_drawn(table)).items()
        if row["split"] != "train" or row_id % (PER_POSITIVE + 1) == 0
    }
    assert held_out == expected


def test_drawn_rows_have_weight_1_and_rows_of_the_log_keep_theirs() -> None:
    table = _table([("u", 5, 1.0, "train"), ("u", 6, 0.0, "train"), ("v", 7, 1.0, "train")])
    table = table.append_column("weight", pa.array([0.5, 0.25, 3.0], pa.float32()))
    rows = records(_drawn(table))
    drawn = {row_id for row_id in rows if row_id % (PER_POSITIVE + 1)}
    assert {rows[row_id]["weight"] for row_id in drawn} == {1.0}
    assert [rows[row_id * (PER_POSITIVE + 1)]["weight"] for row_id in (0, 7, 14)] == [0.5, 0.25, 3.0]


def test_a_user_who_has_every_item_gets_no_negative() -> None:
    table = _table([("u", 5, 1.0, "train"), ("u", 6, 0.0, "train"), ("u", 7, 1.0, "train")])
    assert len(_drawn(table, tasks=1)[0]) == 3


def test_items_are_in_the_order_of_first_split_and_key() -> None:
    rows: list[Row] = [
        ("u", 5, 1.0, "test"),
        ("v", 6, 0.0, "validation"),
        ("u", 10, 1.0, "train"),
        ("w", 7, 1.0, "test"),
        ("w", 5, 1.0, "validation"),
        ("w", 9, 1.0, "train"),
    ]
    items = merge_items([items_of(part, "item") for part in by_user(_table(rows))])
    assert items.keys.to_pylist() == ["10", "9", "5", "6", "7"]
    assert items.raw.to_pylist() == [10, 9, 5, 6, 7]
    assert items.visible == (2, 4, 5)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("empty", [True, False])
def test_items_are_saved_mapped_and_pickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool, empty: bool
) -> None:
    if not compiled:
        for module in ("etl.native.distinct_values", "etl.prepare.prepared_rows"):
            monkeypatch.setattr(f"{module}.is_built", lambda: False)
    rows: list[Row] = [(f"u{place % 50}", place * place % 997, 1.0, "train") for place in range(500)]
    table = _table(rows)[:0] if empty else _table(rows)
    items = merge_items([items_of(table, "item")])
    expected = add_negatives(table, CONFIG, "item", items)
    items.save(tmp_path)
    assert (tmp_path / "items.lookup").exists() == compiled
    for other in (DayItems.load(tmp_path), pickle.loads(pickle.dumps(items))):
        assert other == items
        assert add_negatives(table, CONFIG, "item", other).equals(expected)
    assert len(expected) > len(table) or empty


def test_more_draws_than_fit_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    table = _table([("u", place, 1.0, "train") for place in range(40)] + [("v", 50, 1.0, "train")] * 40)
    expected = _drawn(table, tasks=1)[0]
    monkeypatch.setattr("etl.prepare.prepared_rows._ROWS_AT_ONCE", 7)
    parts = _drawn(table, tasks=1)[0]
    assert parts.equals(expected)
    assert parts.column("row_id").num_chunks > 5
    assert np.all(np.diff(expected.column("row_id").to_numpy()[80:]) > 0)


def test_collisions_of_hashes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(2)
    rows: list[Row] = [(draw.choice("uvw"), draw.randrange(9), 1.0, draw.choice(SPLITS)) for _ in range(40)]
    expected = records(_drawn(_table(rows)))
    assert any(row_id % (PER_POSITIVE + 1) for row_id in expected)
    monkeypatch.setattr(
        "etl.prepare.prepared_rows._slots", lambda pairs, bits: np.zeros(len(pairs), np.uint64)
    )
    assert records(_drawn(_table(rows))) == expected


def test_items_that_lack_an_item_of_the_rows_are_an_error() -> None:
    table = _table([("u", 5, 1.0, "train"), ("v", 6, 1.0, "train")])
    items = merge_items([items_of(table[:1], "item")])
    with pytest.raises(ValueError, match="lack items of its rows"):
        add_negatives(table, CONFIG, "item", items)
