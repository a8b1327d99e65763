"""This release continues a lake with histories, negatives and joins that an older release wrote.

The old release read such logs by Spark frames. Its champion serves until the next training, by features that
are equal to those of the old release. Raw logs of the first days are deleted, but their clicks are in histories.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import SparkSession

import nightrank
from etl.raw.layout_digest import earlier_layout_digest
from jobs.erase_user import run as erase_user
from jobs.prune import run as prune
from storage.dataset import read_dataset, read_spec
from storage.feature_spec import NULL_ID, OOV_ID
from storage.job_summary import JobSummary
from storage.manifest import is_published, read_manifest
from tests.upgrade.joined_lake import JoinedLake, assert_same_rows, rows_of, table_of, texts_of, unpack
from tests.upgrade.make_joined_lake import (
    DAYS,
    DELETED_DAYS,
    ERASED,
    FIRST,
    NEXT,
    PLAIN,
    PLAIN_DATE,
    SECOND,
    WITHOUT_ROW,
)
from training.registry.model_json import read_description
from training.registry.versions import challenger_of, model_path

pytestmark = pytest.mark.processes

NAME = "joined"
WINDOW = DAYS[3:]  # of the run of NEXT
OLD_WINDOW = DAYS[2:7]  # of the run of SECOND


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> JoinedLake:
    """The lake as the old release left it. Tests do not change it."""
    return unpack(tmp_path_factory.mktemp("old"))


@pytest.fixture(scope="module")
def again(old: JoinedLake, tmp_path_factory: pytest.TempPathFactory) -> JoinedLake:
    """The lake after another run of SECOND, which the old release has run too."""
    copied = old.copy_to(tmp_path_factory.mktemp("again") / "copy")
    copied.run_night(SECOND, retrain=False)
    return copied


@pytest.fixture(scope="module")
def daily(old: JoinedLake, tmp_path_factory: pytest.TempPathFactory) -> JoinedLake:
    """The lake after a run of NEXT without a training."""
    copied = old.copy_to(tmp_path_factory.mktemp("daily") / "copy")
    copied.run_night(NEXT, retrain=False)
    return copied


@pytest.fixture(scope="module")
def retrained(
    daily: JoinedLake, tmp_path_factory: pytest.TempPathFactory
) -> tuple[JoinedLake, dict[str, JobSummary]]:
    """The lake after another run of NEXT, with a training, and the summaries of its stages."""
    copied = daily.copy_to(tmp_path_factory.mktemp("retrained") / "copy")
    return copied, copied.run_night(NEXT, retrain=True)


def workflow_of_champion(lake: JoinedLake) -> str:
    description = read_description(model_path(lake.lake, NAME, lake.champion(SECOND)))
    return str(description["workflow_version"])


def assert_features_of_old_release(lake: JoinedLake, old: JoinedLake) -> None:
    """Compares the features of each day of the old window, by the champion's workflow."""
    table, negatives = workflow_of_champion(old), old.config().negatives
    assert negatives is not None
    for day in OLD_WINDOW:
        features, expected = (rows_of(one.lake.features(table).partition(day)) for one in (lake, old))
        assert len(expected) > 100
        # The differences of drawn rows were 0. In this release, they are those of the positive rows.
        positives = expected["row_id"] // (negatives.per_positive + 1) * (negatives.per_positive + 1)
        differences = expected.set_index("row_id")["price_difference_lag_1"]
        expected["price_difference_lag_1"] = positives.map(differences)
        if DAYS[3] <= day <= FIRST:
            # The old release removed ERASED from rows that it had computed with him: negatives were drawn from
            # his items too. This release computes the rows again, without him.
            features, expected = (
                rows[~rows["row_id"].map(negatives.is_drawn)].drop(columns="price_difference_lag_1")
                for rows in (features, expected)
            )
            assert len(expected) > 50
        if day > FIRST:
            # A user who returns after his erasure is a new one: he has no row in the table of users.
            returned = features["user_key"] == ERASED
            assert set(features["country"][returned]) == {NULL_ID}
            features, expected = (
                rows.assign(
                    **{name: rows[name].mask(rows["user_key"] == ERASED, 0) for name in ("age", "country")}
                )
                for rows in (features, expected)
            )
        assert_same_rows(features, expected, "row_id")


def test_every_table_of_the_old_release_is_read(old: JoinedLake) -> None:
    rows: Counter[str] = Counter()
    for partition in old.partitions:
        manifest = read_manifest(partition)
        assert manifest.table.split("/")[0] == partition.table.split("/")[0]
        if any(file.path.endswith(".parquet") for file in manifest.files):
            stored = rows_of(partition)
            assert len(stored) == manifest.rows, partition.path
            rows[manifest.table.split("/")[0]] += len(stored)
    tables = {
        *("quarantine", "typed", "value_counts", "last_clicks", "profiles", "features", "users", "items"),
        *("candidates", "candidate_items", "recommendations"),
    }
    assert {table for table in tables if not rows[table]} == set()
    opened = nightrank.open(old.lake.root)
    assert opened.dates() == [PLAIN_DATE, FIRST, SECOND]
    lists = opened.recommendations(SECOND).pandas()
    assert len(lists) == 5 * lists["user_id"].nunique()


def test_lists_are_made_again_from_old_tables(old: JoinedLake, tmp_path: Path) -> None:
    """A job that is repeated for an old run date reads the features and candidates of the old release."""
    lake = old.copy_to(tmp_path / "copy")
    partition = lake.lake.recommendations.partition(SECOND)
    before, files = rows_of(partition), read_manifest(partition).files
    lake.run("score_daily", SECOND)
    assert {file.path for file in read_manifest(partition).files}.isdisjoint(file.path for file in files)
    after = rows_of(partition)
    pd.testing.assert_frame_equal(after.drop(columns="score"), before.drop(columns="score"))
    assert after["score"].to_numpy() == pytest.approx(before["score"].to_numpy(), abs=1e-5)


def test_daily_lists_come_from_the_old_champion(old: JoinedLake, daily: JoinedLake) -> None:
    assert daily.champion(NEXT) == old.champion(SECOND)
    dataset = read_dataset(daily.lake, NEXT)
    assert (dataset.mode, dataset.workflow_version) == ("apply", workflow_of_champion(old))
    assert list(dataset.days) == WINDOW
    assert dataset.changed_days == ()
    lists = rows_of(daily.lake.recommendations.partition(NEXT))
    assert set(lists["model_version"]) == {old.champion(SECOND)}
    assert lists["user_id"].nunique() > 15
    assert ERASED in set(lists["user_id"]), "rows after the erasure count"
    measured = read_manifest(daily.lake.measures.partition(SECOND))
    assert measured.facts["users"] > 0, "the old release's lists are measured by the next day's clicks"


def test_lists_equal_those_of_the_old_release(old: JoinedLake, again: JoinedLake) -> None:
    before, lists = (rows_of(one.lake.recommendations.partition(SECOND)) for one in (old, again))
    # Users without a row in the table of users got no lists before. The table's row of ERASED is left out.
    assert set(lists["user_id"]) - set(before["user_id"]) <= {*WITHOUT_ROW, ERASED}
    both = before.merge(lists, on=["user_id", "item_id"], suffixes=("_before", ""), validate="one_to_one")
    assert len(both) == len(before) > 50
    assert both["score"].to_numpy() == pytest.approx(both["score_before"].to_numpy(), abs=1e-5)
    places = both.sort_values(["user_id", "position"]).groupby("user_id")["position_before"]
    assert all(list(of_user) == list(range(1, len(of_user) + 1)) for _, of_user in places)


def test_features_equal_those_of_the_old_release(old: JoinedLake, again: JoinedLake) -> None:
    assert_features_of_old_release(again, old)
    version = workflow_of_champion(old)
    for side in ("user", "item"):
        tables = [getattr(one.lake, f"{side}s")(version).partition(SECOND) for one in (again, old)]
        rows, expected = (rows_of(partition) for partition in tables)
        key = f"{side}_key"
        assert set(rows[key]) - set(expected[key]) <= {*WITHOUT_ROW, ERASED}
        assert_same_rows(rows[rows[key].isin(expected[key])], expected, key)


def test_rows_of_erased_users_stay_left_out(daily: JoinedLake) -> None:
    """The raw logs still have them. The list of erased users is that of the old release."""
    table = daily.lake.features(workflow_of_champion(daily))
    users = {day: set(rows_of(table.partition(day))["user_key"]) for day in WINDOW}
    assert {day for day in WINDOW if ERASED in users[day]} <= {SECOND, NEXT}
    raw = (daily.folder / "data" / "clicks" / f"{FIRST}.csv").read_text()
    assert f",{ERASED}," in raw


def test_clicks_of_days_without_a_raw_log_are_kept(old: JoinedLake, again: JoinedLake) -> None:
    for day in DELETED_DAYS:
        before, after = (read_manifest(one.lake.last_clicks.partition(day)) for one in (old, again))
        assert before.rows > 0
        assert after == before


def test_clicks_of_other_settings_are_no_clicks_of_the_old_release(old: JoinedLake) -> None:
    layout = read_manifest(old.lake.last_clicks.partition(DELETED_DAYS[0])).inputs["layout"]
    assert earlier_layout_digest(old.config()) == layout
    for changed in ("log.null_values=['', x]", "items.separator=;", "log.time_zone=Europe/Berlin"):
        assert earlier_layout_digest(old.config([changed])) != layout, changed


def test_the_next_training_extends_the_old_workflow_once(
    old: JoinedLake, retrained: tuple[JoinedLake, dict[str, JobSummary]]
) -> None:
    lake, summaries = retrained
    description = read_description(model_path(lake.lake, NAME, challenger_of(lake.lake, NAME, NEXT)))
    assert description["parent"] == old.champion(SECOND)
    version = str(description["workflow_version"])
    before, after = (
        read_spec(one.lake, name) for one, name in ((old, workflow_of_champion(old)), (lake, version))
    )
    assert [one.name for one in after.features] == [one.name for one in before.features]
    assert_extended(lake, str(description["workflow_version"]), workflow_of_champion(old))
    facts = read_manifest(lake.lake.evaluations.partition(NEXT)).facts
    assert facts["champion"]["version"] == old.champion(SECOND)
    assert facts["lists"]["champion"]["items"] == facts["lists"]["challenger"]["items"] > 0
    assert summaries["score_daily"].rows_out
    again = lake.run("build_features", NEXT, "workflow.mode=retrain")
    assert again.facts["workflow_version"] == version


def assert_extended(lake: JoinedLake, version: str, parent: str) -> None:
    """Compares features of NEXT by a workflow and by the one that it extends: only unknown values got ids."""
    features, before = (
        rows_of(lake.lake.features(one).partition(NEXT)).sort_values("row_id") for one in (version, parent)
    )
    spec = read_spec(lake.lake, parent)
    for feature in spec.dense:
        np.testing.assert_array_equal(features[feature.name], before[feature.name])
    for feature in spec.categorical:
        known = before[feature.name].to_numpy() != OOV_ID
        np.testing.assert_array_equal(
            features[feature.name].to_numpy()[known], before[feature.name].to_numpy()[known]
        )


def test_the_engine_sql_makes_the_same_features_and_lists(
    spark: SparkSession, old: JoinedLake, tmp_path: Path
) -> None:
    lake = old.copy_to(tmp_path / "copy")
    prepared = [lake.lake.prepared("joined").partition(day) for day in OLD_WINDOW]
    assert not any(map(is_published, prepared))
    for job in ("build_features", "build_candidates", "score_daily"):
        lake.run(job, SECOND, "workflow.engine=sql", spark=spark)
    assert_features_of_old_release(lake, old)
    assert any(map(is_published, prepared)), "features were computed again"
    lists, expected = (rows_of(one.lake.recommendations.partition(SECOND)) for one in (lake, old))
    lists = lists[lists["user_id"].isin(expected["user_id"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(lists.drop(columns="score"), expected.drop(columns="score"))
    assert lists["score"].to_numpy() == pytest.approx(expected["score"].to_numpy(), abs=1e-5)


def test_a_user_is_erased_from_tables_of_both_releases(daily: JoinedLake, tmp_path: Path) -> None:
    lake = daily.copy_to(tmp_path / "copy")
    user = "u05"
    erase_user(lake.context("erase_user", NEXT), [user], dry_run=False)
    version = workflow_of_champion(lake)
    found = {one.table for one in daily.partitions if user in texts_of(table_of(one))}
    assert {"last_clicks", "typed", "prepared/joined", f"features/{version}"} <= found
    for partition in lake.partitions:
        assert user not in texts_of(table_of(partition)), partition.path
    assert read_manifest(lake.lake.last_clicks.partition(DELETED_DAYS[0])).rows > 0
    lake.run_night(NEXT, retrain=False)
    lists = rows_of(lake.lake.recommendations.partition(NEXT))
    assert set(lists["workflow_version"]) == {version}
    users = set(rows_of(daily.lake.recommendations.partition(NEXT))["user_id"])
    assert set(lists["user_id"]) == users - {user}


def test_what_later_runs_need_is_kept_by_prune(daily: JoinedLake, tmp_path: Path) -> None:
    lake = daily.copy_to(tmp_path / "copy")
    day_after = "2026-01-09"
    write_day_after(lake, day_after)
    _, summary = prune(lake.context("prune", day_after, "output.grace_hours=0"), 8, dry_run=False)
    assert summary.facts["files"] > 0
    of_plain = read_dataset(lake.lake, PLAIN_DATE).workflow_version
    first = {partition.table for partition in lake.partitions if partition.dt == DAYS[0]}
    assert first == {f"features/{of_plain}"}, "the dataset of the other configuration is kept"
    built = lake.run("build_features", day_after)
    assert (built.facts["mode"], built.facts["workflow_version"]) == ("apply", workflow_of_champion(daily))
    features = lake.lake.features(workflow_of_champion(daily))
    before = daily.lake.features(workflow_of_champion(daily))
    # Histories of this day read the clicks of 2026-01-02 and of the two days after it.
    assert_same_rows(rows_of(features.partition(DAYS[4])), rows_of(before.partition(DAYS[4])), "row_id")


def write_day_after(lake: JoinedLake, day: str) -> None:
    """Writes the log of the day after NEXT: that of NEXT, one day later."""
    data = lake.folder / "data"
    header, *lines = (data / "clicks" / f"{NEXT}.csv").read_text().splitlines()
    later = [f"{int(time) + 86400},{rest}" for time, _, rest in (line.partition(",") for line in lines)]
    (data / "clicks" / f"{day}.csv").write_text("\n".join([header, *later]) + "\n")
    shutil.copy(data / "items" / f"{NEXT}.csv", data / "items" / f"{day}.csv")


def test_a_log_without_a_preparation_is_read_again(old: JoinedLake, tmp_path: Path) -> None:
    lake = old.copy_to(tmp_path / "copy")
    built = lake.run("build_features", NEXT, *PLAIN)
    assert built.facts["mode"] == "fit"
    assert {"missing_key:user": 5, "number:price": 5}.items() <= dict(built.dropped or {}).items()
    for day in WINDOW:
        assert read_manifest(lake.lake.value_counts.partition(day)).rows > 30
    for day in DELETED_DAYS:
        before, after = (read_manifest(one.lake.value_counts.partition(day)) for one in (old, lake))
        assert after == before
