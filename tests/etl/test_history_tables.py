"""Histories of a log that is stored by day, as build_features publishes them, against a pandas oracle."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from conf.types import Config
from etl.build import BuildResult
from etl.spark.frame_passes import LastClicks
from etl.workflow.feature_plan import plan_of, preparation
from jobs.erase_user import run
from spark.choose_workers import SparkWorkers
from storage.manifest import combined_digest, digest_of, read_manifest
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.etl import cases

DAYS = [f"2026-01-0{number}" for number in range(1, 7)]
RUN_DATE, LENGTH, LOOKBACK = DAYS[-1], 3, 2
SETTINGS = {
    "log": {
        "path": "{data}/dt={date}/*",
        "format": "tsv",
        "columns": [
            {"name": "label", "type": "int"},
            {"name": "user", "type": "string"},
            {"name": "item", "type": "string"},
            {"name": "time", "type": "int"},
        ],
        "label": {"column": "label"},
        "event_time": {"column": "time"},
    },
    "history": {"length": LENGTH, "days": LOOKBACK},
    # The times are small numbers, so that they are easy to read.
    "quality": {"misdated_share_warn": None, "max_misdated_share": 1.0},
    "features": [
        {"columns": ["item"], "kind": "categorical", "ops": [{"categorify": {"share": "items"}}]},
        {
            "columns": ["history"],
            "kind": "multi_hot",
            "ops": [{"categorify": {"share": "items", "counts": False}}],
        },
    ],
    "scopes": {"user": ["history"], "item": ["item"]},
}


def make_log(seed: int = 0) -> pd.DataFrame:
    """Rows of all days, in the order of the files; several rows have equal times."""
    draw = random.Random(seed)
    rows = [
        (
            day,
            draw.choice("011"),
            f"u{draw.randrange(6)}",
            f"i{draw.randrange(9)}",
            1000 * number + draw.randrange(20),
        )
        for number, day in enumerate(DAYS)
        for _ in range(40)
    ]
    return pd.DataFrame(rows, columns=["day", "label", "user", "item", "time"])


def write_log(folder: Path, log: pd.DataFrame) -> None:
    for day, rows in log.groupby("day"):
        path = folder / f"raw/dt={day}"
        path.mkdir(parents=True, exist_ok=True)
        rows[["label", "user", "item", "time"]].to_csv(path / "part.tsv", sep="\t", header=False, index=False)


def clicks_before(log: pd.DataFrame, days: list[str], user: str, until: tuple[int, int]) -> list[str]:
    """The user's last clicks on these days before the row (time, position in the log), most recent first."""
    mine = log[(log.user == user) & (log.label == "1") & log.day.isin(days)]
    earlier = [
        ((row.time, row.Index), row.item) for row in mine.itertuples() if (row.time, row.Index) < until
    ]
    return [item for _, item in sorted(earlier, reverse=True)][:LENGTH]


def lookback(day: str) -> list[str]:
    place = DAYS.index(day)
    return DAYS[max(place - LOOKBACK, 0) : place]


@pytest.fixture(scope="module")
def built(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Config, BuildResult]:
    folder = tmp_path_factory.mktemp("histories")
    write_log(folder, make_log())
    config = cases.write_config(folder, SETTINGS)
    return folder, config, cases.run_build(spark, config, RUN_DATE)


def ids_of(lake: LakePaths, version: str) -> dict[str, int]:
    rows = pd.concat([cases.read_rows(lake.features(version).partition(day)) for day in DAYS[2:]])
    return dict(zip(rows.item_key, rows["item"], strict=True))


def assert_histories(config: Config, result: BuildResult, log: pd.DataFrame, day: str) -> None:
    lake, version = LakePaths(config.lake), result.workflow.version
    ids, rows = ids_of(lake, version), cases.read_rows(lake.features(version).partition(day))
    rows = rows.set_index("row_id")
    mine = log[log.day == day]
    assert len(rows) == len(mine)
    for position, row in enumerate(mine.itertuples()):
        expected = clicks_before(log, [*lookback(day), day], row.user, (row.time, row.Index))
        assert list(rows.loc[position, "history"]) == [ids[item] for item in expected], (day, position)


@pytest.mark.parametrize("day", DAYS[2:])
def test_a_row_has_the_clicks_of_the_days_before_and_of_its_own_day(
    built: tuple[Path, Config, BuildResult], day: str
) -> None:
    """The window begins on the third day; its histories need the two days before it."""
    _, config, result = built
    assert_histories(config, result, make_log(), day)


def test_items_are_counted_once_a_row(built: tuple[Path, Config, BuildResult]) -> None:
    """Ids are ordered by the counts of the column item alone."""
    _, config, result = built
    train = make_log()
    train = train[train.day.isin(DAYS[2:4])]
    counts = train.groupby("item").size()
    expected = sorted(counts.index, key=lambda item: (-counts[item], item))
    ids = ids_of(LakePaths(config.lake), result.workflow.version)
    assert [item for item in sorted(ids, key=lambda item: ids[item]) if ids[item] > 2] == expected
    assert {feature.cardinality for feature in result.workflow.spec.embedded} == {len(expected) + 3}


@pytest.mark.parametrize("against, last", [("next_day", DAYS[5]), ("test_split", DAYS[4])])
def test_lists_are_scored_with_the_last_clicks_before_what_they_are_measured_on(
    spark: SparkSession, built: tuple[Path, Config, BuildResult], tmp_path: Path, against: str, last: str
) -> None:
    folder, config, result = built
    if against == "test_split":  # other users are published, so in a lake of its own
        shutil.copytree(folder, tmp_path / "copy")
        config = cases.write_config(tmp_path / "copy", SETTINGS, {"measure": {"against": against}})
        result = cases.run_build(spark, config, RUN_DATE)
    lake, log = LakePaths(config.lake), make_log()
    ids = ids_of(lake, result.workflow.version)
    users = cases.read_rows(lake.users(result.workflow.version).partition(RUN_DATE)).set_index("user_key")
    assert set(users.index) == set(log[log.day.isin(DAYS[2:])].user)
    days = [*lookback(last), last][-LOOKBACK:]
    for user, row in users.iterrows():
        expected = clicks_before(log, days, str(user), (10**9, 0))
        assert list(row["history"]) == [ids[item] for item in expected], user


def test_clicks_of_other_settings_are_left_out_if_they_cannot_be_computed_again(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_log(tmp_path, make_log(2))
    config = cases.write_config(tmp_path, SETTINGS)
    lake = LakePaths(config.lake)
    assert config.history is not None
    before = LastClicks(SparkWorkers(spark), plan_of(config), config.history, lake).digest_before(DAYS[1])
    shutil.rmtree(tmp_path / f"raw/dt={DAYS[0]}")
    assert (
        LastClicks(SparkWorkers(spark), plan_of(config), config.history, lake).digest_before(DAYS[1])
        == before
    )
    longer = config.history.model_copy(update={"length": LENGTH + 1})
    assert LastClicks(SparkWorkers(spark), plan_of(config), longer, lake).before(DAYS[1]) is None
    assert f"the clicks of {DAYS[0]}" in caplog.text


def test_days_without_a_raw_log_keep_their_clicks_and_a_changed_day_changes_later_histories(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = make_log(1)
    write_log(tmp_path, log)
    config = cases.write_config(tmp_path, SETTINGS)
    first = cases.run_build(spark, config, RUN_DATE)
    shutil.rmtree(tmp_path / f"raw/dt={DAYS[0]}")
    again = cases.run_build(spark, config, RUN_DATE)
    assert {day: m.digest for day, m in again.features.items()} == {
        d: m.digest for d, m in first.features.items()
    }
    changed = log.copy()
    of_second_day = changed.day == DAYS[1]
    changed.loc[of_second_day, "item"] = "i0"
    write_log(tmp_path, changed[of_second_day])
    rebuilt = cases.run_build(spark, config, RUN_DATE)
    # Train days look back to the second day, so statistics of their histories may have changed.
    assert rebuilt.workflow.version != first.workflow.version
    for day in first.features:
        assert_histories(config, rebuilt, changed, day)
    lake = LakePaths(config.lake)
    assert read_manifest(lake.last_clicks.partition(DAYS[0])).rows > 0


def test_after_an_erasure_histories_and_users_are_up_to_date(
    built: tuple[Path, Config, BuildResult], tmp_path: Path
) -> None:
    """The digests of clicks and histories in manifests follow those of `last_clicks`; the days keep theirs."""
    _, original, first = built
    shutil.copytree(original.lake, tmp_path / "lake")
    config = original.model_copy(update={"lake": str(tmp_path / "lake")})
    run(RunContext("erase_user", config, RUN_DATE), ["u3"], dry_run=False)
    lake, version = LakePaths(config.lake), first.workflow.version
    for day in DAYS[:-1]:
        before, after = (
            cases.read_rows(LakePaths(one.lake).last_clicks.partition(day)) for one in (original, config)
        )
        pd.testing.assert_frame_equal(after, before[before.user_key != "u3"].reset_index(drop=True))
    for day in DAYS[2:]:
        manifest = read_manifest(lake.features(version).partition(day))
        window = [read_manifest(lake.last_clicks.partition(dt)).digest for dt in lookback(day)]
        assert manifest.inputs["earlier_clicks"] == combined_digest(window)
        assert manifest.digest != first.features[day].digest
    days = [read_manifest(lake.last_clicks.partition(dt)).digest for dt in DAYS[-2:]]
    latest = digest_of([preparation(config), ["train", "validation", "test"], combined_digest(days)])
    assert read_manifest(lake.users(version).partition(RUN_DATE)).inputs["history"] == latest
