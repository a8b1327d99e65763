"""Splits, splits, positions and operators, one after the other: the same rows as in Spark."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from conf.types import Negatives, SplitConfig
from etl.ops import RowChanger, frame_operator_from_config
from etl.prepare.prepared_rows import (
    DayItems,
    add_negatives,
    add_positions,
    assign_split,
    count_times,
    items_of,
    merge_items,
    time_cuts,
)
from etl.prepare.task_passes import apply_row_operators, keep_users_together
from etl.raw import splits
from etl.spark.frame_passes import join_positions
from tests.etl.prepare.tables import assert_same_rows, by_user, in_form, to_frame

PREPARE: list[dict[str, Any]] = [
    {"difference_lag": {"by": ["user"], "columns": ["shown", "price"]}},
    {
        "groupby": {
            "by": ["user", "item"],
            "aggregates": {
                "price": ["sum", "last"],
                "shown": ["list", "min"],
                "shown_difference_lag_1": ["max"],
            },
        }
    },
]


@pytest.mark.parametrize("by", ["fraction", "leave_last_out"])
def test_steps_give_the_rows_of_spark(spark: SparkSession, tmp_path: Path, by: str) -> None:
    draw = random.Random(6)
    rows = [
        (f"u{draw.randrange(30)}", draw.randrange(60), draw.randrange(100), float(draw.random() < 0.5))
        for _ in range(600)
    ]
    users, items, times, labels = zip(*rows, strict=True)
    table = pa.table(
        {
            "row_id": pa.array(range(len(rows)), pa.int64()),
            "user_key": pa.array(users),
            "item_key": pa.array(list(map(str, items))),
            "event_time": pa.array(times, pa.int64()),
            "label": pa.array(labels, pa.float32()),
            "user": pa.array(users),
            "item": pa.array(items, pa.int64()),
            "price": pa.array([draw.choice([None, draw.random()]) for _ in rows], pa.float64()),
        }
    )
    shown = [(f"u{draw.randrange(30)}", str(draw.randrange(60))) for _ in range(900)]
    impressions = pa.table(
        {
            "user_key": pa.array([user for user, _ in shown]),
            "item_key": pa.array([item for _, item in shown]),
            "position": pa.array([draw.randrange(1, 9) for _ in shown], pa.int64()),
            "event_time": pa.array([draw.randrange(100) for _ in shown], pa.int64()),
        }
    )
    split, drawn = SplitConfig(by=by), Negatives(per_positive=2, seed=3)  # type: ignore[arg-type]
    changers = [frame_operator_from_config(entry) for entry in PREPARE]

    frame = splits.assign_split(to_frame(spark, table), split)
    frame = splits.add_negatives(frame, drawn, "item")
    frame = join_positions(frame, to_frame(spark, impressions), "shown")
    for changer in changers:
        assert isinstance(changer, RowChanger)
        frame = changer.apply(frame)

    tasks = [in_form(part, "chunks") for part in by_user(table)]
    times_of_tasks, counts = zip(*map(count_times, tasks), strict=True)
    cuts = time_cuts(np.concatenate(times_of_tasks), np.concatenate(counts), split)
    tasks = [assign_split(part, split, cuts) for part in tasks]
    merge_items(items_of(part, "item") for part in tasks).save(tmp_path)
    tasks = [add_negatives(part, drawn, "item", DayItems.load(tmp_path)) for part in tasks]
    of_users = by_user(impressions)
    tasks = [
        add_positions(part, of_task, "shown", True) for part, of_task in zip(tasks, of_users, strict=True)
    ]
    row_changers = [changer for changer in changers if isinstance(changer, RowChanger)]
    assert keep_users_together(row_changers, "user")
    changed = [apply_row_operators(part, row_changers) for part in tasks]
    assert sum(map(len, changed)) > 500
    assert_same_rows(changed, frame)
