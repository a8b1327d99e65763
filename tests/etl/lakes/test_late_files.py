"""Files that arrive after their day was processed, and reruns of one day: only that day is written again."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from conf.types import Config
from etl.build import BuildResult
from etl.ops.tables import VOCABULARY, workflow_table
from storage import publish
from storage.dataset import read_dataset
from storage.manifest import read_manifest
from storage.paths import LakePaths
from tests.etl import cases, oracle, raw_oracle
from tests.etl.lakes import lakes
from tests.etl.tasks_here import TasksHere

DAYS = ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04", "2026-01-05"]
FIRST, SECOND = DAYS[3], DAYS[4]
BY_RUN = ("users", "items", "quality", "datasets")


def no_session() -> SparkSession:
    raise AssertionError("the run needs no session")


@dataclass(frozen=True)
class Reruns:
    """Four runs, with the manifests of the lake after each: fit, late, lost and extended.

    Before `late` a file arrives for a day that is counted. Before `lost` the tables of a day are deleted.
    Both repeat the run of `fit`. `extended` is a run of a later date that extends the workflow.
    """

    config: Config
    lake: LakePaths
    good: dict[str, pd.DataFrame]
    late: pd.DataFrame
    runs: dict[str, BuildResult]
    manifests: dict[str, dict[str, str]]
    fitted: oracle.Fitted

    def changed(self, before: str, after: str) -> set[str]:
        return lakes.changed(self.manifests[before], self.manifests[after])

    def of_day(self, day: str, version: str) -> set[str]:
        """All partitions that depend on one day's raw log."""
        tables = ["quarantine", "profiles/hard", f"features/{version}"]
        tables += ["value_counts"] + (["prepared/hard"] if self.config.workflow.engine == "sql" else [])
        return {f"{table}/dt={day}" for table in tables}


@pytest.fixture(scope="module", params=["arrow", "sql"])
def reruns(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: Any) -> Reruns:
    folder = tmp_path_factory.mktemp("late")
    config = cases.write_config(folder, lakes.SMALL, {"workflow": {"engine": request.param}})
    retrain = config.model_copy(update={"workflow": config.workflow.model_copy(update={"mode": "retrain"})})
    good = {}
    for seed, day in enumerate(DAYS):
        paths = cases.write_day(folder / f"raw/dt={day}", cases.make_lines(day, 80, seed))
        good[day], _ = raw_oracle.parse_log(config, paths)
    runs, manifests = {}, {}

    def run(name: str, date: str, configured: Config, parent: str | None) -> str:
        runs[name] = cases.run_build(spark, configured, date, parent)
        manifests[name] = lakes.manifests(config.lake)
        return runs[name].workflow.version

    version = run("fit", FIRST, config, None)
    (folder / f"raw/dt={DAYS[1]}/late.tsv").write_text(
        "".join(f"{line}\n" for line in cases.make_lines("late", 50, 77) if line)
    )
    late, _ = raw_oracle.parse_log(config, sorted((folder / f"raw/dt={DAYS[1]}").iterdir()))
    run("late", FIRST, config, version)
    for table in ("quarantine", "value_counts", "prepared/hard", "profiles/hard", f"features/{version}"):
        shutil.rmtree(folder / f"lake/{table}/dt={DAYS[2]}", ignore_errors=True)
    time.sleep(1)  # a manifest has its second, without which that of an equal profile would be equal
    run("lost", FIRST, config, version)
    run("extended", SECOND, retrain, version)
    fitted = oracle.fit(config, pd.concat([good[DAYS[0]], good[DAYS[1]]]))
    return Reruns(config, LakePaths(config.lake), good, late, runs, manifests, fitted)


def test_a_late_file_changes_its_day_and_the_tables_of_the_run_date(reruns: Reruns) -> None:
    version = reruns.runs["fit"].workflow.version
    changed = reruns.changed("fit", "late")
    of_run = {name for name in changed if name.endswith(f"dt={FIRST}") and name.startswith(BY_RUN)}
    assert changed - of_run == reruns.of_day(DAYS[1], version)
    assert {name.split("/")[0] for name in of_run} == set(BY_RUN)


def test_features_of_the_day_have_the_late_rows_by_the_same_workflow(reruns: Reruns) -> None:
    result = reruns.runs["late"]
    assert result.workflow.version == reruns.runs["fit"].workflow.version
    rows = cases.read_rows(reruns.lake.features(result.workflow.version).partition(DAYS[1]))
    assert len(rows) == len(reruns.late) > len(reruns.good[DAYS[1]])
    cases.assert_features_equal(
        rows, oracle.encode(reruns.config, reruns.fitted, reruns.late), result.workflow.spec
    )


def test_a_day_that_changed_after_it_was_counted_is_recorded(reruns: Reruns) -> None:
    assert reruns.runs["fit"].dataset.changed_days == ()
    for name, date in (("late", FIRST), ("extended", SECOND)):
        assert reruns.runs[name].dataset.changed_days == (DAYS[1],)
        assert read_dataset(reruns.lake, date).changed_days == (DAYS[1],)


def test_a_lost_day_is_written_again_and_no_other_manifest_changes(reruns: Reruns) -> None:
    version = reruns.runs["fit"].workflow.version
    assert reruns.changed("late", "lost") == reruns.of_day(DAYS[2], version)
    before, after = reruns.runs["late"].features, reruns.runs["lost"].features
    assert {day: manifest.digest for day, manifest in before.items()} == {
        day: manifest.digest for day, manifest in after.items()
    }
    rows = cases.read_rows(reruns.lake.features(version).partition(DAYS[2]))
    expected = oracle.encode(reruns.config, reruns.fitted, reruns.good[DAYS[2]])
    cases.assert_features_equal(rows, expected, reruns.runs["lost"].workflow.spec)


def test_a_later_run_counts_new_days_only(reruns: Reruns) -> None:
    """The window trains on the changed day and a new one.

    If the changed day were counted again, ids and counts would differ from those of the oracle.
    """
    built = reruns.runs["extended"]
    assert (built.dataset.mode, built.workflow.parent) == ("extend", reruns.runs["fit"].workflow.version)
    extended = oracle.fit(reruns.config, reruns.good[DAYS[2]], reruns.fitted)
    rows = cases.read_rows(workflow_table(reruns.lake, built.workflow.version, VOCABULARY))
    ids_of_column = {
        str(column): dict(zip(part["value"], part["id"], strict=True))
        for column, part in rows.groupby("column")
    }
    assert ids_of_column == {column: ids for column, ids in extended.ids.items() if ids}
    assert not any("late" in value for ids in ids_of_column.values() for value in ids)
    features = cases.read_rows(reruns.lake.features(built.workflow.version).partition(DAYS[1]))
    cases.assert_features_equal(
        features, oracle.encode(reruns.config, extended, reruns.late), built.workflow.spec
    )


def test_counts_of_the_changed_day_stay(reruns: Reruns) -> None:
    first, extended = reruns.runs["fit"].workflow, reruns.runs["extended"].workflow
    assert extended.counted == {**first.counted, DAYS[2]: extended.counted[DAYS[2]]}
    assert len(first.counted) == 2


def test_a_later_run_does_not_change_tables_of_unchanged_days(reruns: Reruns) -> None:
    version = reruns.runs["fit"].workflow.version
    untouched = {name for day in DAYS[:4] for name in reruns.of_day(day, version)}
    assert not untouched & reruns.changed("lost", "extended")


def test_a_back_fill_shares_one_fit_and_writes_each_day_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run date has a window of four days, of which only the last one is new."""
    days = [f"2026-01-{day:02d}" for day in range(1, 10)]
    config = cases.write_config(tmp_path, lakes.SMALL)
    for seed, day in enumerate(days):
        cases.write_day(tmp_path / f"raw/dt={day}", cases.make_lines(day, 80, seed))
    unpack, unpacked = publish._unpacked, []
    monkeypatch.setattr(publish, "_unpacked", lambda footer: unpacked.append(footer) or unpack(footer))
    version = cases.run_build(TasksHere(2, no_session), config, days[3]).workflow.version
    for day in days[4:]:
        before = lakes.manifests(config.lake)
        unpacked.clear()
        built = cases.run_build(TasksHere(2, no_session), config, day, version)
        assert (built.dataset.mode, built.workflow.version) == ("apply", version)
        tables = ("quarantine", "value_counts", "profiles/hard", f"features/{version}")
        changed = lakes.changed(before, lakes.manifests(config.lake))
        of_run = {name for name in changed if name.startswith(BY_RUN)}
        assert changed - of_run == {f"{table}/dt={day}" for table in tables}
        assert {name.rpartition("dt=")[2] for name in of_run} == {day}
        # The tasks have read the footers of the files of features and of value counts.
        files = [
            *built.features[day].files,
            *read_manifest(LakePaths(config.lake).value_counts.partition(day)).files,
        ]
        assert len(unpacked) == len(files) >= 2
    assert len(list((tmp_path / "lake/workflow").iterdir())) == 1
