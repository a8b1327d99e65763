"""Positions from a log of impressions: lists for a fixed position, late logs and erased users."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.sql import SparkSession

import nightrank
from conf.types import Config
from etl.build import feature_inputs
from etl.fit.fit_workflow import workflow_version
from etl.passes import changed_since_counted
from etl.raw.files import RawFiles, require_raw
from etl.workflow.feature_plan import plan_of
from etl.workflow.fitted_workflow import load_workflow
from jobs.build_features import run as build_features
from jobs.erase_user import run as erase_user
from storage.dataset import read_dataset
from storage.manifest import current_manifest, read_manifest
from storage.run_context import RunContext
from tests.e2e.test_position_feature import (
    CONFIG,
    EXAMINED,
    RUN_DATE,
    built,
    days_of_rows,
    lists_of,
    trained,
)
from tests.etl.cases import read_rows
from training.registry import mlflow_mirror

SECTIONS: dict[str, Any] = {
    "split": {"by": "day", "train_days": 1, "min_train_days": 1},
    # The times are small numbers, so that they are easy to read.
    "quality": {"misdated_share_warn": None, "max_misdated_share": 1.0},
    "train": {**CONFIG["train"], "epochs": 10},
    "log": {
        **CONFIG["log"],
        "columns": [
            {"name": "label", "type": "int"},
            {"name": "user", "type": "string"},
            {"name": "item", "type": "string"},
            {"name": "time", "type": "int"},
        ],
        "event_time": {"column": "time"},
    },
    "features": [{**CONFIG["features"][0], "columns": ["user", "item", "shown_position"]}],
    "scopes": {"user": ["user"], "item": ["item"], "context": ["shown_position"]},
    "score": {**CONFIG["score"], "context": {"shown_position": 1}},
    "serving": {
        "impressions": {
            "path": "{data}/shown/{date}.csv",
            "format": "csv",
            "user": "user",
            "item": "item",
            "position": "position",
            "time": "time",
            "row_column": "shown_position",
        }
    },
}


ROWS = dict(list(days_of_rows())[1:])
DAYS = list(ROWS)


def write_logs(folder: Path) -> None:
    """The rows of test_position_feature, whose positions are in a log of impressions. RUN_DATE has none."""
    (folder / "shown").mkdir(parents=True)
    for day, rows in ROWS.items():
        clicks = [f"{label}\t{user}\t{item}\t{time}\n" for time, (label, user, item, _) in enumerate(rows)]
        (folder / f"{day}.tsv").write_text("".join(clicks))
        if day != RUN_DATE:
            write_impressions(folder, day, rows)


def write_impressions(folder: Path, day: str, rows: list[tuple[int, str, str, int]]) -> None:
    shown = [f"{user},{item},{position},{time}\n" for time, (_, user, item, position) in enumerate(rows)]
    (folder / f"shown/{day}.csv").write_text("".join(["user,item,position,time\n", *shown]))


@pytest.fixture(scope="module")
def job(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> RunContext:
    folder = tmp_path_factory.mktemp("impressions")
    write_logs(folder / "raw")
    return built(folder / "run", spark, **SECTIONS)


def copied(job: RunContext, folder: Path) -> RunContext:
    """The context of a run in a copy of the lake and of the raw data."""
    shutil.copytree(job.config.lake, folder / "lake")
    shutil.copytree(job.config.data, folder / "raw")
    config = job.config.model_copy(update={"lake": str(folder / "lake"), "data": str(folder / "raw")})
    return RunContext("test", config, RUN_DATE, open_session=job.open_session)


def current_days(job: RunContext) -> set[str]:
    """The days whose features the next run would not build again."""
    version = read_dataset(job.lake, RUN_DATE).workflow_version
    table = job.lake.features(version)
    inputs = {day: feature_inputs(plan_of(job.config), raw_of(job.config, day), version, {}) for day in DAYS}
    return {day for day in DAYS if current_manifest(table.partition(day), inputs[day]) is not None}


def raw_of(config: Config, day: str) -> RawFiles:
    return require_raw(config, config.log, day)


def test_lists_are_made_for_a_fixed_position_of_the_log(
    job: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the positions, the lists have dull items (test_position_feature)."""
    for name in ("prepare", "set_aliases"):
        monkeypatch.setattr(mlflow_mirror, name, lambda *_: None)
    torch.set_num_threads(1)
    lists = lists_of(trained(job))
    assert lists.item_id.str.startswith("good").all()
    champion = nightrank.open(job.config.lake).champion(RUN_DATE)
    pairs = lists.rename(columns={"user_id": "user", "item_id": "item"})[["user", "item"]]
    by_position = {place: champion.score(pairs.assign(shown_position=place)) for place in EXAMINED}
    np.testing.assert_allclose(lists.score, by_position[1], atol=1e-6)
    means = [float(np.mean(scores)) for scores in by_position.values()]
    assert means == sorted(means, reverse=True)
    assert means[0] > 2 * means[-1]


def test_a_log_that_arrives_late_rebuilds_its_day(
    job: RunContext, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    late = copied(job, tmp_path)
    config, version = late.config, read_dataset(job.lake, RUN_DATE).workflow_version
    table, profiles = late.lake.features(version), late.lake.profiles(config.name, None)
    assert current_days(late) == set(DAYS)
    assert set(read_rows(table.partition(RUN_DATE)).shown_position) == {1}  # the id of null
    before = [read_manifest(profiles.partition(day)).digest for day in DAYS]
    build_features(late)
    assert f"impressions: there is no log of ['{RUN_DATE}']" in caplog.text
    assert [read_manifest(profiles.partition(day)).digest for day in DAYS] == before
    caplog.clear()

    write_impressions(Path(config.data), RUN_DATE, ROWS[RUN_DATE])
    assert current_days(late) == set(DAYS[:-1])
    build_features(late)
    assert "impressions: there is no log of" not in caplog.text
    assert read_dataset(late.lake, RUN_DATE).workflow_version == version
    after = [read_manifest(profiles.partition(day)).digest for day in DAYS]
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, True, False]
    ids = read_rows(table.partition(RUN_DATE)).sort_values("row_id").shown_position
    positions = [position for *_, position in ROWS[RUN_DATE]]
    assert len(set(zip(positions, ids, strict=True))) == len(EXAMINED)
    assert ids.min() > 2

    workflow = load_workflow(late.lake, version, config.output.broadcast_max_rows)
    train = [raw_of(config, day) for day in workflow.counted]
    assert [raw.dt for raw in train] == DAYS[:1]
    assert workflow_version(plan_of(config), None, train) == version
    assert changed_since_counted(plan_of(config), workflow, train) == ()
    write_impressions(Path(config.data), DAYS[0], ROWS[DAYS[0]][:-1])
    assert current_days(late) == set(DAYS[1:])
    assert workflow_version(plan_of(config), None, train) != version
    assert changed_since_counted(plan_of(config), workflow, train) == (DAYS[0],)


def test_an_erasure_leaves_out_users_and_rebuilds_no_day(job: RunContext, tmp_path: Path) -> None:
    erased = copied(job, tmp_path)
    erase_user(erased, ["u3"], dry_run=False)
    assert current_days(erased) == set(DAYS)
    version = read_dataset(erased.lake, RUN_DATE).workflow_version
    users = {f"u{number}" for number in range(30)} - {"u3"}
    for day in DAYS:
        assert set(read_rows(erased.lake.features(version).partition(day)).user_key) == users
