"""build_features equals the oracle on a log with nulls, ties, unseen values and malformed lines."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from conf.errors import ConfigError
from conf.types import Config
from etl import build
from etl.build import BuildResult, encode_split
from etl.ops.tables import VOCABULARY, workflow_table
from etl.raw.files import RawFiles
from etl.workflow.feature_plan import plan_of
from etl.workflow.fitted_workflow import load_workflow
from spark.choose_workers import SparkWorkers
from storage.dataset import read_dataset, read_spec, split_files
from storage.manifest import Manifest, read_manifest, replace_manifest
from storage.paths import LakePaths
from storage.publish import rows_of
from tests.etl import cases, oracle, raw_oracle
from tests.etl.tasks_here import TasksHere

FIRST, SECOND = "2026-01-03", "2026-01-04"
DAYS = ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04"]


@dataclass(frozen=True)
class TwoBuilds:
    """The builds of two run dates of one log, and the results of the oracle."""

    config: Config
    lake: LakePaths
    lines: dict[str, list[str]]
    good: dict[str, pd.DataFrame]
    bad: dict[str, pd.DataFrame]
    first: BuildResult
    second: BuildResult
    first_fit: oracle.Fitted
    second_fit: oracle.Fitted


@pytest.fixture(scope="module")
def builds(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> TwoBuilds:
    folder = tmp_path_factory.mktemp("build")
    config = cases.write_config(folder)
    lines, good, bad = {}, {}, {}
    for seed, day in enumerate(DAYS):
        lines[day] = cases.make_lines(day, 150, seed)
        paths = cases.write_day(folder / f"raw/dt={day}", lines[day])
        good[day], bad[day] = raw_oracle.parse_log(config, paths)
    first = cases.run_build(spark, config, FIRST)
    second = cases.run_build(
        spark,
        config.model_copy(update={"workflow": config.workflow.model_copy(update={"mode": "retrain"})}),
        SECOND,
        first.workflow.version,
    )
    first_fit = oracle.fit(config, good[DAYS[0]])
    second_fit = oracle.fit(config, good[DAYS[1]], first_fit)
    return TwoBuilds(config, LakePaths(config.lake), lines, good, bad, first, second, first_fit, second_fit)


def test_splits_are_whole_days_in_time_order(builds: TwoBuilds) -> None:
    dataset = read_dataset(builds.lake, SECOND)
    assert {split: [member.dt for member in members] for split, members in dataset.splits.items()} == {
        "train": DAYS[:2],
        "validation": [DAYS[2]],
        "test": [DAYS[3]],
    }
    assert (dataset.mode, dataset.parent_workflow) == ("extend", builds.first.workflow.version)
    assert len(split_files(builds.lake, dataset, "train")) >= 2


@pytest.mark.parametrize("day", DAYS[:3])
def test_features_of_the_first_fit_equal_the_oracle(builds: TwoBuilds, day: str) -> None:
    partition = builds.lake.features(builds.first.workflow.version).partition(day)
    expected = oracle.encode(builds.config, builds.first_fit, builds.good[day])
    cases.assert_features_equal(cases.read_rows(partition), expected, builds.first.workflow.spec)


@pytest.mark.parametrize("day", DAYS)
def test_features_of_the_extension_equal_the_oracle(builds: TwoBuilds, day: str) -> None:
    partition = builds.lake.features(builds.second.workflow.version).partition(day)
    expected = oracle.encode(builds.config, builds.second_fit, builds.good[day])
    cases.assert_features_equal(cases.read_rows(partition), expected, builds.second.workflow.spec)


def test_the_comparison_notices_a_changed_id(builds: TwoBuilds) -> None:
    spec, day = builds.first.workflow.spec, DAYS[0]
    expected = oracle.encode(builds.config, builds.first_fit, builds.good[day])
    changed = cases.read_rows(builds.lake.features(spec.workflow_version).partition(day))
    changed["C1"] += changed.index == 3
    with pytest.raises(AssertionError, match="C1"):
        cases.assert_features_equal(changed, expected, spec)


def test_cardinalities_are_those_of_the_oracle(builds: TwoBuilds) -> None:
    for built, fitted in ((builds.first, builds.first_fit), (builds.second, builds.second_fit)):
        assert read_spec(builds.lake, built.workflow.version) == built.workflow.spec
        for feature in built.workflow.spec.categorical:
            assert feature.cardinality == fitted.cardinality(feature.name), feature.name
    assert {f.name: f.cardinality for f in builds.first.workflow.spec.categorical}["C3"] == 3


@pytest.mark.parametrize("engine", ["sql", "arrow"])
def test_both_engines_give_the_same_rows_of_a_day_that_is_not_encoded(
    spark: SparkSession, builds: TwoBuilds, engine: Literal["sql", "arrow"]
) -> None:
    """The first workflow has not encoded the test day of the second run date."""
    version, day = builds.first.workflow.version, DAYS[3]
    partition = builds.lake.features(version).partition(day)
    expected = oracle.encode(builds.config, builds.first_fit, builds.good[day])
    shutil.rmtree(partition.path, ignore_errors=True)
    settings = builds.config.workflow.model_copy(update={"engine": engine})
    config = builds.config.model_copy(update={"workflow": settings})

    def encoded() -> pd.DataFrame:
        workflow = load_workflow(builds.lake, version, engine=engine)
        assert workflow.engine == engine
        workers, read = SparkWorkers(spark), partial(rows_of, spark)
        return encode_split(workers, plan_of(config), builds.lake, workflow, SECOND, "test", read).toPandas()

    cases.assert_features_equal(encoded(), expected, builds.first.workflow.spec)
    published = read_manifest(partition)
    assert (published.rows, published.rows_in) == (len(expected), len(builds.lines[day]))
    cases.assert_features_equal(encoded(), expected, builds.first.workflow.spec)
    assert read_manifest(partition).created_at == published.created_at
    workflow, read = load_workflow(builds.lake, version, engine=engine), partial(rows_of, spark)
    arguments = (SparkWorkers(spark), plan_of(config), builds.lake, workflow, SECOND, "train", read)
    one_day = read_manifest(builds.lake.features(version).partition(DAYS[1])).rows
    assert encode_split(*arguments, [DAYS[1]]).count() == one_day < encode_split(*arguments).count()


def test_features_of_another_workflow_are_published_beside_those_of_the_dataset(
    spark: SparkSession, builds: TwoBuilds, tmp_path: Path
) -> None:
    """The first workflow stands for that of an experiment's treatment."""
    copied = shutil.copytree(builds.config.lake, tmp_path / "lake")
    config, lake = builds.config.model_copy(update={"lake": str(copied)}), LakePaths(str(copied))
    first, second = builds.first.workflow, builds.second.workflow
    workers = SparkWorkers(spark)
    built = build.build(
        workers, plan_of(config), lake, SECOND, second.version, lambda _: nullcontext(), first.version
    )
    assert read_dataset(lake, SECOND).workflow_version == built.workflow.version == second.version
    expected = oracle.encode(config, builds.first_fit, builds.good[DAYS[3]])
    partition = lake.features(first.version).partition(DAYS[3])
    cases.assert_features_equal(cases.read_rows(partition), expected, first.spec)
    for side in ("users", "items"):
        of_first, of_second = (
            cases.read_rows(getattr(lake, side)(version).partition(SECOND))
            for version in (first.version, second.version)
        )
        key = f"{side[:-1]}_key"
        assert of_first[key].tolist() == of_second[key].tolist()


@pytest.mark.parametrize(
    "changes, name",
    [
        ({"split": {"by": "fraction", "train": 0.7}}, "shares"),
        ({"split": {"by": "fraction", "validation": 0.05}}, "shares"),
        ({"negatives": {"per_positive": 2}}, "drawn"),
        ({"log": {**cases.LOG["log"], "null_values": ["", "null"]}}, "layout"),
        ({"history": {"length": 3}}, "history"),
    ],
)
def test_features_are_computed_again_if_a_setting_of_their_rows_has_changed(
    tmp_path: Path, changes: dict[str, Any], name: str
) -> None:
    """A feature partition is current only if its inputs are equal. `earlier` stands for tables of earlier days."""
    sections: dict[str, Any] = {
        "split": {"by": "fraction"},
        "negatives": {"per_positive": 1},
        "items": {
            "path": "{data}/items.csv",
            "format": "csv",
            "columns": [{"name": "item", "type": "string"}],
        },
        "history": {"length": 4},
        "scopes": {},
    }
    raw, earlier = (
        RawFiles(FIRST, ("part.tsv",), 1, "digest of the log"),
        {"clicks": lambda day: f"before {day}"},
    )
    inputs, changed = (
        build.feature_inputs(plan_of(cases.write_config(tmp_path, sections, more)), raw, "workflow", earlier)
        for more in ({}, changes)
    )
    assert inputs.items() >= {"raw": raw.digest, "workflow": "workflow", "clicks": f"before {FIRST}"}.items()
    assert inputs.keys() == changed.keys()
    assert [key for key in inputs if inputs[key] != changed[key]] == [name]


def test_features_may_have_to_be_joined_with_the_present_tables(tmp_path: Path) -> None:
    """Those of an older release do not say with which tables they were joined."""
    partition, tables = LakePaths(str(tmp_path)).features("v").partition(FIRST), {"users": "old table"}
    for recorded, of_these in ((tables, [True, True, False]), ({}, [True, False, False])):
        replace_manifest(partition, Manifest("features/v", FIRST, (), (), {"raw": "log", **recorded}))
        required = (None, tables, {"users": "new table"})
        current = [build.current_features(partition, {"raw": "log"}, one) for one in required]
        assert [manifest is not None for manifest in current] == of_these
        assert build.current_features(partition, {"raw": "other log"}) is None


def test_a_day_is_encoded_if_the_workflows_of_champion_and_treatment_have_encoded_it(tmp_path: Path) -> None:
    """Rows of other days are joined with the current tables of users and items."""
    plan, lake = plan_of(cases.write_config(tmp_path)), LakePaths(str(tmp_path / "lake"))
    raw, workers = RawFiles(FIRST, ("part.tsv",), 1, "digest of the log"), TasksHere(1, pytest.fail)
    pairs = [("champion", None), ("champion", "treatment"), ("treatment", "champion")]
    encoded = []
    for version in (None, "champion", "treatment"):
        if version is not None:
            inputs = build.feature_inputs(plan, raw, version, {})
            partition = lake.features(version).partition(FIRST)
            replace_manifest(partition, Manifest(f"features/{version}", FIRST, (), (), inputs))
        chosen = [build.applied_features(workers, plan, lake, SECOND, *pair) for pair in pairs]
        encoded.append([has_features is not None and has_features(raw) for has_features in chosen])
    assert encoded == [[False] * 3, [True, False, False], [True] * 3]
    changed = build.applied_features(workers, plan, lake, SECOND, "champion", "treatment")
    assert changed is not None
    assert not changed(replace(raw, digest="digest of another log"))
    assert build.applied_features(workers, plan, lake, SECOND, None, "treatment") is None
    # Until a run of a date is complete, its next attempt joins the rows of this date again.
    unfinished = build.applied_features(workers, plan, lake, FIRST, "champion", None)
    assert unfinished is not None
    assert not unfinished(raw)


def test_a_retraining_counts_the_rows_of_a_log_without_days_once(tmp_path: Path) -> None:
    """Rows are appended to one file. Each run reads the whole file, so a workflow is fitted again."""
    workers = TasksHere(1, pytest.fail)
    log = {**cases.LOG["log"], "path": "{data}/log.tsv"}
    changes = {"log": log, "split": {"by": "fraction"}, "workflow": {"mode": "retrain"}}
    config = cases.write_config(tmp_path, changes)
    lines = [*cases.make_lines(FIRST, 200, 1), *cases.make_lines(SECOND, 40, 2)]
    (tmp_path / "raw").mkdir(exist_ok=True)
    (tmp_path / "raw/log.tsv").write_text("\n".join(lines[:200]) + "\n", encoding="utf-8")
    first = cases.run_build(workers, config, FIRST)
    (tmp_path / "raw/log.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    second = cases.run_build(workers, config, SECOND, first.workflow.version)
    assert (second.dataset.mode, second.workflow.parent) == ("fit", None)
    assert list(second.workflow.counted) == [SECOND]
    fresh = config.model_copy(update={"lake": str(tmp_path / "fresh")})
    assert cases.run_build(workers, fresh, SECOND).workflow.version == second.workflow.version
    extend = config.model_copy(update={"workflow": config.workflow.model_copy(update={"mode": "extend"})})
    with pytest.raises(ConfigError, match=r"log\.path='\{data\}/log\.tsv' has no \{date\}"):
        cases.run_build(workers, extend, SECOND, first.workflow.version)


def test_a_day_whose_log_has_changed_is_scanned_and_encoded_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Also by a job after build_features."""
    config = cases.write_config(tmp_path)
    for seed, day in enumerate(DAYS[:3]):
        cases.write_day(tmp_path / f"raw/dt={day}", cases.make_lines(day, 30, seed))
    built = cases.run_build(spark, config, FIRST)
    partition = LakePaths(config.lake).features(built.workflow.version).partition(FIRST)
    before = read_manifest(partition)
    (tmp_path / f"raw/dt={FIRST}/late.tsv").write_text("\n".join(cases.make_lines(FIRST, 9, 7)) + "\n")
    workflow = load_workflow(LakePaths(config.lake), built.workflow.version)
    read = partial(rows_of, spark)
    rows = encode_split(
        SparkWorkers(spark), plan_of(config), LakePaths(config.lake), workflow, FIRST, "test", read
    )
    assert rows.count() == before.rows + 9 == read_manifest(partition).rows


def _vocabulary(builds: TwoBuilds, version: str) -> dict[str, dict[str, int]]:
    rows = cases.read_rows(workflow_table(builds.lake, version, VOCABULARY))
    return {
        str(column): dict(zip(entries["value"], entries["id"], strict=True))
        for column, entries in rows.groupby("column")
    }


def test_vocabularies_have_values_of_training_days_only(builds: TwoBuilds) -> None:
    first = _vocabulary(builds, builds.first.workflow.version)
    assert first == {column: ids for column, ids in builds.first_fit.ids.items() if ids}
    values = {value for ids in first.values() for value in ids}
    assert any(DAYS[0] in value for value in values)
    assert not any(day in value for value in values for day in DAYS[1:])


def test_an_extension_keeps_every_id(builds: TwoBuilds) -> None:
    first = _vocabulary(builds, builds.first.workflow.version)
    second = _vocabulary(builds, builds.second.workflow.version)
    for column, ids in first.items():
        assert ids.items() <= second[column].items()
        arrived = [second[column][value] for value in second[column].keys() - ids.keys()]
        assert sorted(arrived) == list(range(max(ids.values()) + 1, max(ids.values()) + 1 + len(arrived)))
    assert any(DAYS[1] in value for value in second["C1"])
    assert not any(day in value for ids in second.values() for value in ids for day in DAYS[2:])


def test_every_raw_line_is_a_feature_row_or_quarantined(builds: TwoBuilds) -> None:
    for day in DAYS:
        kept = cases.read_rows(builds.lake.features(builds.second.workflow.version).partition(day))
        dropped = cases.read_rows(builds.lake.quarantine.partition(day))
        assert sorted([*kept["row_id"], *dropped["row_id"]]) == list(range(len(builds.lines[day])))
        manifest = read_manifest(builds.lake.features(builds.second.workflow.version).partition(day))
        assert manifest.rows_in == manifest.rows + sum(manifest.dropped.values()) == len(builds.lines[day])


def test_quarantine_has_file_line_and_reason(builds: TwoBuilds) -> None:
    for day in DAYS:
        quarantine = cases.read_rows(builds.lake.quarantine.partition(day))
        assert quarantine["row_id"].is_monotonic_increasing
        quarantine["file"] = quarantine.pop("source_file").map(lambda path: Path(path).name)
        expected = builds.bad[day]
        for name in ("row_id", "file", "line_number", "reason", "line"):
            assert quarantine[name].tolist() == expected[name].tolist(), name
        counted = Counter(expected["reason"])
        assert counted == {reason: len(lines) for reason, lines in cases.MALFORMED.items()}
        assert read_manifest(builds.lake.quarantine.partition(day)).dropped == counted


def test_users_and_items_are_the_latest_rows(builds: TwoBuilds) -> None:
    days = [oracle.encode(builds.config, builds.second_fit, builds.good[day]) for day in DAYS]
    for table, key, scope in (
        (builds.lake.users, "user_key", "user"),
        (builds.lake.items, "item_key", "item"),
    ):
        columns = [feature.name for feature in builds.second.workflow.spec.features if feature.scope == scope]
        actual = cases.read_rows(table(builds.second.workflow.version).partition(SECOND))
        expected = oracle.latest(days, key, columns)
        pd.testing.assert_frame_equal(actual, expected, check_dtype=False, rtol=1e-6, atol=1e-6)


def test_files_are_one_row_group_each_and_about_equal(builds: TwoBuilds) -> None:
    for day in DAYS:
        manifest = read_manifest(builds.lake.features(builds.second.workflow.version).partition(day))
        sizes = [file.rows for file in manifest.files]
        assert all(file.row_groups == (file.rows,) for file in manifest.files)
        assert len(sizes) == -(-manifest.rows // builds.config.output.row_group_rows)
        assert max(sizes) - min(sizes) <= 16


def test_a_rerun_changes_nothing(spark: SparkSession, builds: TwoBuilds) -> None:
    before = read_dataset(builds.lake, FIRST)
    again = cases.run_build(spark, builds.config, FIRST)
    assert again.dataset == before == builds.first.dataset
    assert again.workflow.version == builds.first.workflow.version
    assert re.fullmatch("[0-9a-f]{16}", before.digest)
