"""The rows that measure: those of a day, from features and from the raw log, and those that no model has learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from pyspark.sql import SparkSession

from conf.types import Config
from etl.raw.files import require_raw
from scoring.evaluation import rows_of_day
from scoring.evaluation.rows_of_day import learned_rows, new_rows_of_day, rows_after
from scoring.evaluation.rows_of_day import rows_of_day as rows_of
from scoring.feature_rows import read_split
from scoring.model.model_info import ModelInfo
from spark.rows import records
from storage.dataset import read_dataset
from storage.run_context import RunContext
from tests.etl import cases
from tests.etl.log_rows import good_rows, read_log
from tests.etl.tasks_here import TasksHere
from training.loop.training_plan import make_plan

DAYS = ["2026-01-01", "2026-01-02", "2026-01-03"]
SPLIT = {"by": "day", "train_days": 1, "validation_days": 1, "test_days": 1}
COLUMNS = ["user_key", "item_key", "label"]


def parsed(spark: SparkSession, config: Config, day: str) -> Sequence[tuple[object, ...]]:
    """The good rows of the raw log, parsed again."""
    rows = good_rows(read_log(spark, config, require_raw(config, config.log, day)))
    return sorted(map(tuple, rows.select(COLUMNS).collect()))


@pytest.mark.parametrize("engine", ["arrow", "sql"])
def test_published_features_have_the_rows_of_the_log(
    spark: SparkSession, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = cases.write_config(tmp_path, {"split": SPLIT, "workflow": {"engine": engine}})
    for seed, day in enumerate(DAYS):
        cases.write_day(tmp_path / "raw" / f"dt={day}", cases.make_lines(day, 60, seed))
    context = RunContext("test", config, DAYS[-1], open_session=lambda _: spark)
    expected = parsed(spark, config, DAYS[-1])
    assert len(expected) > 40
    assert sorted(map(tuple, rows_of(context, DAYS[-1]).collect())) == expected  # nothing is published yet

    cases.run_build(spark, config, DAYS[-1])
    with monkeypatch.context() as patch:
        patch.setattr(rows_of_day, "read_clicks", None)  # the log is not parsed
        assert sorted(map(tuple, rows_of(context, DAYS[-1]).collect())) == expected


def test_a_log_that_changed_since_is_parsed(spark: SparkSession, tmp_path: Path) -> None:
    config = cases.write_config(tmp_path, {"split": SPLIT})
    for seed, day in enumerate(DAYS):
        cases.write_day(tmp_path / "raw" / f"dt={day}", cases.make_lines(day, 30, seed))
    cases.run_build(spark, config, DAYS[-1])
    before = parsed(spark, config, DAYS[-1])
    late = [line for line in cases.make_lines(DAYS[-1], 9, 77) if line not in cases.MALFORMED.values()]
    (tmp_path / "raw" / f"dt={DAYS[-1]}" / "late.tsv").write_text("\n".join(late) + "\n", encoding="utf-8")
    context = RunContext("test", config, DAYS[-1], open_session=lambda _: spark)
    rows = sorted(map(tuple, rows_of(context, DAYS[-1]).collect()))
    assert rows == parsed(spark, config, DAYS[-1])
    assert len(rows) > len(before)


def test_drawn_negatives_are_not_clicks(spark: SparkSession, tmp_path: Path) -> None:
    negatives = {"negatives": {"per_positive": 2}, "scopes": {}}
    config = cases.write_config(tmp_path, {"split": SPLIT}, negatives)
    for seed, day in enumerate(DAYS):
        cases.write_day(tmp_path / "raw" / f"dt={day}", cases.make_lines(day, 60, seed))
    cases.run_build(spark, config, DAYS[-1])
    context = RunContext("test", config, DAYS[-1], open_session=lambda _: spark)
    rows = list(map(tuple, rows_of(context, DAYS[-1]).collect()))
    expected = parsed(spark, config, DAYS[-1])
    assert len(rows) > len(expected)
    assert sorted(row for row in rows if row[2]) == [row for row in expected if row[2]]


ONE_TABLE: dict[str, Any] = {
    "log": {
        "path": "{data}/log.csv",
        "format": "csv",
        "time_zone": "Europe/Berlin",
        "columns": [
            {"name": "at", "type": "timestamp"},
            {"name": "user", "type": "string"},
            {"name": "item", "type": "string"},
            {"name": "clicked", "type": "int"},
        ],
        "label": {"column": "clicked"},
        "event_time": {"column": "at"},
    },
    "features": [{"columns": ["item"], "kind": "categorical", "ops": [{"categorify": {"min_count": 1}}]}],
    "scopes": {"item": ["item"]},
    "split": {"by": "fraction", "train": 0.8, "validation": 0.1},
}


@pytest.mark.parametrize("engine, timed", [("arrow", True), ("arrow", False), ("sql", True)])
def test_a_log_without_days_has_only_new_rows_of_the_next_day(
    spark: SparkSession, tmp_path: Path, engine: str, timed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run of 2026-01-02 reads rows until 00:30 of the next day; its rows from then on measure its lists."""
    log = {**ONE_TABLE["log"], **({} if timed else {"event_time": None})}
    config = cases.write_config(tmp_path, {**ONE_TABLE, "log": log, "workflow": {"engine": engine}})
    (tmp_path / "raw").mkdir()
    path = tmp_path / "raw" / "log.csv"
    known = [f"2026-01-0{1 + n // 20}T10:{n:02d}:00,u{n % 7},i{n % 9},{n % 2}" for n in range(40)]
    known += ["2026-01-03T00:30:00,u1,known,1"]
    path.write_text("\n".join(["at,user,item,clicked", *known, ""]))
    cases.run_build(spark, config, "2026-01-02")
    later = ["2026-01-02T23:59:59,u1,late,1", "2026-01-03T00:30:00,u1,same time,1"]
    of_day = ["2026-01-03T00:30:01,u1,a,1", "2026-01-03T23:59:59,u2,b,0"]
    path.write_text(
        "\n".join(["at,user,item,clicked", *known, *later, *of_day, "2026-01-04T00:00:00,u1,c,1", ""])
    )
    context = RunContext("test", config, "2026-01-02", open_session=lambda _: spark)
    if engine == "arrow":
        context.in_process = True
        monkeypatch.setattr(rows_of_day, "workers_of", lambda _: TasksHere(2, lambda: spark))
    dataset = read_dataset(context.lake, "2026-01-02")
    rows = records(new_rows_of_day(context, dataset, "2026-01-03"))
    expected = [("u1", "a", 1.0), ("u2", "b", 0.0)] if timed else []
    assert sorted(tuple(row[name] for name in COLUMNS) for row in rows) == expected


def in_process(folder: Path, *changes: Mapping[str, Any]) -> RunContext:
    """The run of 2026-01-02 of a log without days: 40 rows, one a minute. Its features are built."""
    config = cases.write_config(folder, ONE_TABLE, *changes)
    (folder / "raw").mkdir(exist_ok=True)
    lines = [f"2026-01-02T10:{n:02d}:00,u{n % 7},i{n % 9},{n % 2}" for n in range(40)]
    (folder / "raw/log.csv").write_text("\n".join(["at,user,item,clicked", *lines, ""]))
    context = RunContext("test", config, "2026-01-02")
    context.in_process = True
    workers = TasksHere(2, lambda: pytest.fail("a session was opened"))
    cases.run_build(workers, config, context.run_date)
    return context


def champion_of(context: RunContext, **trained: Any) -> ModelInfo:
    """A model with these entries of model.json."""
    version = read_dataset(context.lake, context.run_date).workflow_version
    description = {"run_date": context.run_date, **trained}
    spec = SimpleNamespace(workflow_version=version)
    return cast(ModelInfo, SimpleNamespace(version="m1", spec=spec, description=description))


def plan_description(context: RunContext) -> dict[str, Any]:
    """What model.json says about the rows of a training on the dataset of the run."""
    plan = make_plan(context.config, context.lake, read_dataset(context.lake, context.run_date))
    return {"trained_rows": plan.description["trained_rows"]}


def decided(context: RunContext, model: ModelInfo) -> tuple[int | None, str, str]:
    """The time after which rows are tested, the level of the check and its message."""
    after, checks = learned_rows(context, read_dataset(context.lake, context.run_date), [model])
    return (after, checks[0].level, checks[0].message) if checks else (after, "ok", "")


def test_test_rows_on_which_the_champion_was_trained_are_left_out(tmp_path: Path) -> None:
    """The champion learned the first 32 of 40 rows; with other shares, the last 20 rows are tested."""
    context = in_process(tmp_path)
    trained = plan_description(context)
    last = int(np.datetime64("2026-01-02T09:31:00", "us").astype(int))  # 10:31 in Berlin
    assert trained == {"trained_rows": {"by": "fraction", "train": 0.8, "validation": 0.1, "until": last}}
    assert decided(context, champion_of(context, **trained)) == (None, "ok", "")
    context = in_process(tmp_path, {"split": {"by": "fraction", "train": 0.4, "validation": 0.1}})
    after, level, message = decided(context, champion_of(context, **trained))
    assert (after, level) == (last, "warn")
    assert "2026-01-02T09:31:00.000000Z, so 12 of 20 test rows may be among its training rows" in message
    rows = read_split(context, read_dataset(context.lake, context.run_date), ["test"], ["event_time"])
    assert [row["event_time"] > last for row in records(rows_after(rows, after))] == [True] * 8
    newest = {"trained_rows": {**trained["trained_rows"], "until": 2 * last}}
    after, level, message = decided(context, champion_of(context, **newest))
    assert (after, level) == (None, "hold")
    assert "no test row is left for the comparison: restore the `split` with which the model was" in message


def test_the_last_rows_of_users_are_new_to_a_model_that_left_them_out(tmp_path: Path) -> None:
    context = in_process(tmp_path, {"split": {"by": "leave_last_out"}})
    trained = plan_description(context)
    assert decided(context, champion_of(context, **trained)) == (None, "ok", "")
    until = int(np.datetime64("2026-01-02T09:34:00", "us").astype(int))  # between the last rows of users
    by_share = {"trained_rows": {**trained["trained_rows"], "by": "fraction", "until": until}}
    assert decided(context, champion_of(context, **by_share))[:2] == (until, "warn")


def test_without_times_the_shares_of_the_splits_decide(tmp_path: Path) -> None:
    log = {"log": {**ONE_TABLE["log"], "event_time": None}}
    context = in_process(tmp_path, log)
    trained = plan_description(context)
    assert trained["trained_rows"]["until"] is None
    earlier_release = champion_of(context)
    for model in (champion_of(context, **trained), earlier_release):
        assert decided(context, model) == (None, "ok", "")
    changed = in_process(tmp_path, log, {"split": {"by": "fraction", "train": 0.4, "validation": 0.1}})
    after, level, message = decided(changed, champion_of(changed, **trained))
    assert (after, level) == (None, "hold")
    assert "the first 80% of the rows, and the test split now begins after the first 50%" in message
    after, level, message = decided(changed, earlier_release)
    assert (after, level) == (None, "hold")
    assert "the section `split` has changed since it was trained" in message
    more = in_process(tmp_path, log, {"split": {"by": "fraction", "train": 0.85, "validation": 0.1}})
    assert decided(more, champion_of(more, **trained)) == (None, "ok", "")
    of_users = in_process(tmp_path, log, {"split": {"by": "leave_last_out"}})
    assert decided(of_users, champion_of(of_users, **trained))[1] == "hold"
