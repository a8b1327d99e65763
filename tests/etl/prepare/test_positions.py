"""Positions of impressions in Arrow tables equal those of Spark and of a loop over all impressions."""

from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from conf.errors import DataError
from conf.raw_types import EventTime
from conf.types import Config
from etl.prepare.prepared_rows import add_positions, impressions_table
from etl.raw.files import require_raw
from etl.spark.frame_passes import join_positions
from etl.workflow.feature_plan import plan_of
from spark.workers import Workers
from tests.etl import cases
from tests.etl.prepare.tables import FORMS, assert_same_rows, by_user, in_form, records, to_frame

WITH_SPARK = settings(max_examples=3, deadline=None, derandomize=True, database=None)
MANY = settings(max_examples=40, deadline=None, derandomize=True, database=None)
PAIR = st.tuples(st.sampled_from(["u", "v", "é"]), st.sampled_from("abc"), st.integers(-2, 6))
ROWS = st.lists(PAIR, min_size=1, max_size=30)
SHOWN = st.lists(st.tuples(PAIR, st.integers(1, 4)), max_size=40)
Shown = list[tuple[tuple[str, str, int], int]]
ROOT = Path(__file__).parents[3]


def _rows(pairs: list[tuple[str, str, int]], timed: bool) -> pa.Table:
    users, items, times = zip(*pairs, strict=True)
    columns = {
        "row_id": pa.array(range(len(pairs)), pa.int64()),
        "user_key": pa.array(users, pa.string()),
        "item_key": pa.array(items, pa.string()),
        "event_time": pa.array(times, pa.int64()),
        "label": pa.array([1.0] * len(pairs), pa.float32()),
    }
    return pa.table(columns if timed else {name: columns[name] for name in columns if name != "event_time"})


def _impressions(shown: Shown) -> pa.Table:
    return pa.table(
        {
            "user_key": pa.array([user for (user, _, _), _ in shown], pa.string()),
            "item_key": pa.array([item for (_, item, _), _ in shown], pa.string()),
            "position": pa.array([position for _, position in shown], pa.int64()),
            "event_time": pa.array([time for (_, _, time), _ in shown], pa.int64()),
        }
    )


def _expected(row: dict[str, Any], shown: Shown, timed: bool) -> int | None:
    of_pair = [
        (time, position)
        for (user, item, time), position in shown
        if (user, item) == (row["user_key"], row["item_key"])
    ]
    if timed:
        until_now = [(time, position) for time, position in of_pair if time <= row["event_time"]]
        last = max((time for time, _ in until_now), default=None)
        of_pair = [(time, position) for time, position in until_now if time == last]
    return min((position for _, position in of_pair), default=None)


@MANY
@given(
    pairs=ROWS, shown=SHOWN, timed=st.booleans(), form=st.sampled_from(FORMS), other=st.sampled_from(FORMS)
)
def test_positions_are_those_of_a_loop(
    pairs: list[tuple[str, str, int]], shown: Shown, timed: bool, form: str, other: str
) -> None:
    rows, impressions = _rows(pairs, timed), _impressions(shown)
    parts = [
        add_positions(in_form(part, form), in_form(of_users, other), "place", timed)
        for part, of_users in zip(by_user(rows), by_user(impressions), strict=True)
    ]
    actual = records(parts)
    assert {row_id: row["place"] for row_id, row in actual.items()} == {
        row["row_id"]: _expected(row, shown, timed) for row in rows.to_pylist()
    }
    without = [{name: value for name, value in row.items() if name != "place"} for row in actual.values()]
    assert sorted(without, key=lambda row: row["row_id"]) == rows.to_pylist()


@WITH_SPARK
@given(
    pairs=st.lists(PAIR, min_size=20, max_size=40),
    shown=st.lists(st.tuples(PAIR, st.integers(1, 4)), min_size=20, max_size=60),
    timed=st.booleans(),
)
def test_positions_are_those_of_spark(
    spark: SparkSession, pairs: list[tuple[str, str, int]], shown: Shown, timed: bool
) -> None:
    rows, impressions = _rows(pairs, timed), _impressions(shown)
    expected = join_positions(to_frame(spark, rows), to_frame(spark, impressions), "place")
    parts = [
        add_positions(in_form(part, "dictionary"), of_users, "place", timed)
        for part, of_users in zip(by_user(rows), by_user(impressions), strict=True)
    ]
    assert_same_rows(parts, expected)


@MANY
@given(pairs=ROWS, shown=SHOWN, time=st.integers(-2, 6))
def test_later_impressions_change_no_position(
    pairs: list[tuple[str, str, int]], shown: Shown, time: int
) -> None:
    rows = _rows(pairs, timed=True)
    known = [entry for entry in shown if entry[0][2] <= time]
    before, after = (
        records([add_positions(rows, _impressions(entries), "place", True)]) for entries in (known, shown)
    )
    earlier = [row_id for row_id, row in after.items() if row["event_time"] <= time]
    assert [before[row_id] for row_id in earlier] == [after[row_id] for row_id in earlier]


@pytest.mark.parametrize("shown", [None, []])
def test_without_impressions_all_positions_are_null(shown: Shown | None) -> None:
    impressions = None if shown is None else _impressions(shown)
    column = add_positions(_rows([("u", "a", 1)], True), impressions, "place", True).column("place")
    assert (column.type, column.to_pylist()) == (pa.int64(), [None])


class HereWorkers(Workers):
    """Runs tasks in this process."""

    @property
    def spark(self) -> Any:
        raise AssertionError("the session is not needed")

    @property
    def parallelism(self) -> int:
        return 1

    def run(self, tasks: int, run: Callable[[int], Iterator[pa.RecordBatch]], schema: pa.Schema) -> pa.Table:
        return pa.Table.from_batches([batch for index in range(tasks) for batch in run(index)], schema)

    def collect(self, tasks: int, run: Callable[[int], str]) -> list[str]:
        return [run(index) for index in range(tasks)]


DAY = "2026-01-01"
GOOD: dict[str, Any] = {"who": "u", "what": 1, "place": 5, "at": 90}
BAD: list[dict[str, Any]] = [
    {"who": None},
    {"what": ""},
    {"place": 0},
    {"place": "first"},
    {"at": None},
    {"at": "2026-01-01"},
    {"at": str(2**62)},
]


def _config(folder: Path, **changes: Any) -> Config:
    impressions: dict[str, Any] = {
        "path": "{data}/shown/{date}*.jsonl",
        "format": "jsonl",
        "row_column": "shown_position",
        "user": "who",
        "item": "what",
        "position": "place",
        "time": "at",
    }
    (folder / "raw/shown").mkdir(parents=True)
    (folder / f"raw/{DAY}.tsv").write_text("1\tu\t1\t100\n")
    columns = [("label", "int"), ("user", "string"), ("item", "int"), ("time", "int")]
    log = {
        "path": "{data}/{date}.tsv",
        "format": "tsv",
        "columns": [{"name": name, "type": kind} for name, kind in columns],
        "label": {"column": "label"},
        "event_time": {"column": "time", "unit": "ms"},
    }
    settings: dict[str, Any] = {
        "log": log,
        "features": [{"columns": ["item"], "kind": "categorical", "ops": [{"categorify": {"min_count": 1}}]}],
        "scopes": {"item": ["item"]},
        "split": {"by": "day", "train_days": 1, "min_train_days": 1},
        "serving": {"impressions": {**impressions, **changes}},
    }
    return cases.write_config(folder, settings)


def _write(folder: Path, name: str, entries: list[dict[str, Any]]) -> None:
    (folder / f"raw/shown/{name}").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))


def _read(config: Config) -> pa.Table | None:
    return impressions_table(HereWorkers(), plan_of(config), require_raw(config, config.log, DAY))


@pytest.mark.parametrize("limit, warned", [(0.87, True), (0.88, False)])
def test_invalid_impressions_are_counted_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, limit: float, warned: bool
) -> None:
    config = _config(tmp_path, max_unmatched_share=limit)
    lines = [GOOD, *({**GOOD, "place": 1, "at": 95, **wrong} for wrong in BAD)]
    for part in range(2):
        _write(tmp_path, f"{DAY}-{part}.jsonl", lines[part::2])
    with caplog.at_level(logging.INFO, "nightrank.etl"):
        shown = _read(config)
    assert shown is not None
    assert shown.to_pylist() == [{"user_key": "u", "item_key": "1", "position": 5, "event_time": 90_000}]
    assert f"impressions of {DAY}: 8 rows, of which 7 are invalid" in caplog.text
    assert (f"7 of 8 rows of {DAY} have no user, item, position or time" in caplog.text) == warned


# 90 s after the epoch, as a local time of Berlin, which was an hour ahead of UTC.
@pytest.mark.parametrize(
    "column, written",
    [
        ({"type": "timestamp"}, "1970-01-01T01:01:30"),
        ({"type": "timestamp"}, "1970-01-01 00:01:30.000Z"),
        ({"type": "timestamp", "format": "%d.%m.%Y %H:%M:%S"}, "01.01.1970 01:01:30"),
        ({"type": "date"}, "1970-01-01T01:01:30"),
        ({"type": "int"}, 90),
    ],
)
def test_times_are_written_like_those_of_the_click_log(
    tmp_path: Path, column: dict[str, Any], written: Any
) -> None:
    config = _with_time(_config(tmp_path), column)
    invalid = [{**GOOD, "at": "90 s"}, {**GOOD, "at": "1970-01-01T25:00"}]
    _write(tmp_path, f"{DAY}-0.jsonl", [{**GOOD, "at": written}, *invalid])
    shown = _read(config)
    assert shown is not None
    assert shown.column("event_time").to_pylist() == [90_000_000]


LOCAL = pa.array([3_690_000_000], pa.timestamp("us"))  # an hour ahead
ZONED = pa.array([90_000_000_000], pa.timestamp("ns", "America/New_York"))


@pytest.mark.parametrize(
    "stored, kind",
    [
        (LOCAL, "int"),
        (LOCAL, "timestamp"),
        (ZONED, "int"),
        (ZONED, "timestamp"),
        (pa.array([90], pa.int64()), "int"),
    ],
)
def test_stored_times_are_in_the_zone_of_the_click_log(tmp_path: Path, stored: pa.Array, kind: str) -> None:
    config = _with_time(
        _config(tmp_path, path="{data}/shown/{date}.parquet", format="parquet"), {"type": kind}
    )
    table = pa.table({"who": ["u"], "what": [1], "place": [5], "at": stored})
    pq.write_table(table, tmp_path / f"raw/shown/{DAY}.parquet")
    shown = _read(config)
    assert shown is not None
    assert shown.column("event_time").to_pylist() == [90_000_000]


def _with_time(config: Config, column: dict[str, Any]) -> Config:
    """The configuration with another type of the event time. Integers are in s, local times of Berlin."""
    columns = [one.model_copy(update=column) if one.name == "time" else one for one in config.log.columns]
    event_time = EventTime(column="time", unit="s")
    log = {"columns": columns, "event_time": event_time, "time_zone": "Europe/Berlin"}
    return config.model_copy(update={"log": config.log.model_copy(update=log)})


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    config = _config(tmp_path)
    _write(tmp_path, f"{DAY}-0.jsonl", [GOOD])
    (tmp_path / f"raw/shown/{DAY}-1.jsonl").write_text("broken\n")
    with pytest.raises(DataError, match=rf"{DAY}-1\.jsonl.*line 1 is not a JSON object: 'broken'"):
        _read(config)


def test_a_day_without_impressions_has_no_table(tmp_path: Path) -> None:
    assert _read(_config(tmp_path)) is None


def test_many_rows_and_impressions_at_the_same_times(spark: SparkSession) -> None:
    draw = random.Random(4)
    pairs = [(f"u{draw.randrange(40)}", f"i{draw.randrange(30)}", draw.randrange(50)) for _ in range(3000)]
    shown = [
        ((f"u{draw.randrange(50)}", f"i{draw.randrange(40)}", draw.randrange(50)), draw.randrange(1, 9))
        for _ in range(6000)
    ]
    rows, impressions = _rows(pairs, True), _impressions(shown)
    expected = join_positions(to_frame(spark, rows), to_frame(spark, impressions), "place")
    assert_same_rows([add_positions(rows, impressions, "place", True)], expected)


@pytest.mark.processes
def test_tasks_that_prepare_rows_do_not_import_spark() -> None:
    modules = ("prepared_rows", "histories", "task_passes")
    code = "import sys; sys.modules['pyspark'] = None\n" + "\n".join(
        f"import etl.prepare.{module}" for module in modules
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
