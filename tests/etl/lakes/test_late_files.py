"""Files that arrive after their day was processed, and reruns of one day: that day is made anew, and nothing else."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from conf.types import Config
from etl.build import BuildResult
from etl.ops.tables import VOCABULARY, workflow_table
from storage.dataset import read_dataset
from storage.paths import Lake
from tests.etl import cases, oracle
from tests.etl.lakes import lakes

DAYS = ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04", "2026-01-05"]
FIRST, SECOND = DAYS[3], DAYS[4]
BY_RUN = ("users", "items", "quality", "datasets")


@dataclass(frozen=True)
class Story:
    """A night; a file that arrives late for a counted day, and the night run again; a day lost, and the night run again;
    then a later night that extends the workflow. With every manifest of the lake after each.
    """

    config: Config
    lake: Lake
    good: dict[str, pd.DataFrame]
    late: pd.DataFrame
    nights: dict[str, BuildResult]
    manifests: dict[str, dict[str, str]]
    fitted: oracle.Fitted

    def changed(self, before: str, after: str) -> set[str]:
        return lakes.changed(self.manifests[before], self.manifests[after])

    def of_day(self, day: str, version: str) -> set[str]:
        """Every partition that is made of one day's raw log."""
        tables = ["quarantine", "profiles/hard", f"features/{version}"]
        tables += ["value_counts"] if self.config.workflow.engine == "arrow" else []
        return {f"{table}/dt={day}" for table in tables}


@pytest.fixture(scope="module", params=["arrow", "sql"])
def story(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: Any) -> Story:
    folder = tmp_path_factory.mktemp("late")
    config = cases.write_config(folder, lakes.SMALL, {"workflow": {"engine": request.param}})
    retrain = config.model_copy(update={"workflow": config.workflow.model_copy(update={"mode": "retrain"})})
    good = {}
    for seed, day in enumerate(DAYS):
        paths = cases.write_day(folder / f"raw/dt={day}", cases.make_lines(day, 80, seed))
        good[day], _ = oracle.parse_log(config, paths)
    nights, manifests = {}, {}

    def run(name: str, date: str, configured: Config, parent: str | None) -> str:
        nights[name] = cases.run_build(spark, configured, date, parent)
        manifests[name] = lakes.manifests(config.lake)
        return nights[name].workflow.version

    version = run("fit", FIRST, config, None)
    (folder / f"raw/dt={DAYS[1]}/late.tsv").write_text(
        "".join(f"{line}\n" for line in cases.make_lines("late", 50, 77) if line)
    )
    late, _ = oracle.parse_log(config, sorted((folder / f"raw/dt={DAYS[1]}").iterdir()))
    run("late", FIRST, config, version)
    for table in ("quarantine", "value_counts", "profiles/hard", f"features/{version}"):
        shutil.rmtree(folder / f"lake/{table}/dt={DAYS[2]}", ignore_errors=True)
    run("lost", FIRST, config, version)
    run("extended", SECOND, retrain, version)
    fitted = oracle.fit(config, pd.concat([good[DAYS[0]], good[DAYS[1]]]))
    return Story(config, Lake(config.lake), good, late, nights, manifests, fitted)


def test_a_late_file_makes_its_day_anew_and_the_tables_of_the_run_date(story: Story) -> None:
    version = story.nights["fit"].workflow.version
    changed = story.changed("fit", "late")
    of_run = {each for each in changed if each.endswith(f"dt={FIRST}") and each.startswith(BY_RUN)}
    assert changed - of_run == story.of_day(DAYS[1], version)
    assert {each.split("/")[0] for each in of_run} == set(BY_RUN)


def test_features_of_the_day_hold_the_late_rows_by_the_workflow_as_it_was(story: Story) -> None:
    night = story.nights["late"]
    assert night.workflow.version == story.nights["fit"].workflow.version
    rows = cases.read_rows(story.lake.features(night.workflow.version).partition(DAYS[1]))
    assert len(rows) == len(story.late) > len(story.good[DAYS[1]])
    cases.assert_features_equal(
        rows, oracle.encode(story.config, story.fitted, story.late), night.workflow.spec
    )


def test_a_day_that_changed_after_it_was_counted_is_recorded(story: Story) -> None:
    assert story.nights["fit"].dataset.changed_days == ()
    for name, date in (("late", FIRST), ("extended", SECOND)):
        assert story.nights[name].dataset.changed_days == (DAYS[1],)
        assert read_dataset(story.lake, date).changed_days == (DAYS[1],)


def test_a_lost_day_is_made_again_and_no_other_manifest_is_touched(story: Story) -> None:
    version = story.nights["fit"].workflow.version
    assert story.changed("late", "lost") == story.of_day(DAYS[2], version)
    before, after = story.nights["late"].features, story.nights["lost"].features
    assert {day: found.digest for day, found in before.items()} == {
        day: found.digest for day, found in after.items()
    }
    rows = cases.read_rows(story.lake.features(version).partition(DAYS[2]))
    expected = oracle.encode(story.config, story.fitted, story.good[DAYS[2]])
    cases.assert_features_equal(rows, expected, story.nights["lost"].workflow.spec)


def test_a_later_night_counts_new_days_alone(story: Story) -> None:
    """The window trains on the changed day and a new one. Were the changed day counted again, ids and counts would differ
    from the oracle's, which extends by the new day.
    """
    built = story.nights["extended"]
    assert (built.dataset.mode, built.workflow.parent) == ("extend", story.nights["fit"].workflow.version)
    extended = oracle.fit(story.config, story.good[DAYS[2]], story.fitted)
    rows = cases.read_rows(workflow_table(story.lake, built.workflow.version, VOCABULARY))
    found = {
        str(column): dict(zip(part["value"], part["id"], strict=True))
        for column, part in rows.groupby("column")
    }
    assert found == {column: ids for column, ids in extended.ids.items() if ids}
    assert not any("late" in value for ids in found.values() for value in ids)
    features = cases.read_rows(story.lake.features(built.workflow.version).partition(DAYS[1]))
    cases.assert_features_equal(
        features, oracle.encode(story.config, extended, story.late), built.workflow.spec
    )


def test_counts_of_the_changed_day_stay(story: Story) -> None:
    first, extended = story.nights["fit"].workflow, story.nights["extended"].workflow
    assert extended.counted == {**first.counted, DAYS[2]: extended.counted[DAYS[2]]}
    assert len(first.counted) == 2


def test_tables_of_days_that_did_not_change_outlive_the_later_night(story: Story) -> None:
    version = story.nights["fit"].workflow.version
    untouched = {each for day in DAYS[:4] for each in story.of_day(day, version)}
    assert not untouched & story.changed("lost", "extended")
