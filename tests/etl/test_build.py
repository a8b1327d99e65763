"""build_features equals the oracle on a log with nulls, ties, unseen values and malformed lines."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from conf.types import Config
from etl.build import BuildResult, encode_split
from etl.ops.tables import VOCABULARY, workflow_table
from etl.workflow.fitted_workflow import load_workflow
from storage.dataset import read_dataset, read_spec, split_files
from storage.manifest import read_manifest
from storage.paths import Lake
from tests.etl import cases, oracle

FIRST, SECOND = "2026-01-03", "2026-01-04"
DAYS = ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04"]


@dataclass(frozen=True)
class World:
    """Two run dates of one log, and what the oracle says of both."""

    config: Config
    lake: Lake
    lines: dict[str, list[str]]
    good: dict[str, pd.DataFrame]
    bad: dict[str, pd.DataFrame]
    first: BuildResult
    second: BuildResult
    first_fit: oracle.Fitted
    second_fit: oracle.Fitted


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("build")
    config = cases.write_config(folder)
    lines, good, bad = {}, {}, {}
    for seed, day in enumerate(DAYS):
        lines[day] = cases.make_lines(day, 150, seed)
        paths = cases.write_day(folder / f"raw/dt={day}", lines[day])
        good[day], bad[day] = oracle.parse_log(config, paths)
    first = cases.run_build(spark, config, FIRST)
    second = cases.run_build(
        spark,
        config.model_copy(update={"workflow": config.workflow.model_copy(update={"mode": "retrain"})}),
        SECOND,
        first.workflow.version,
    )
    first_fit = oracle.fit(config, good[DAYS[0]])
    second_fit = oracle.fit(config, good[DAYS[1]], first_fit)
    return World(config, Lake(config.lake), lines, good, bad, first, second, first_fit, second_fit)


def test_splits_are_whole_days_in_time_order(world: World) -> None:
    dataset = read_dataset(world.lake, SECOND)
    assert {split: [member.dt for member in members] for split, members in dataset.splits.items()} == {
        "train": DAYS[:2],
        "validation": [DAYS[2]],
        "test": [DAYS[3]],
    }
    assert (dataset.mode, dataset.parent_workflow) == ("extend", world.first.workflow.version)
    assert len(split_files(world.lake, dataset, "train")) >= 2


@pytest.mark.parametrize("day", DAYS[:3])
def test_features_of_the_first_fit_equal_the_oracle(world: World, day: str) -> None:
    partition = world.lake.features(world.first.workflow.version).partition(day)
    expected = oracle.encode(world.config, world.first_fit, world.good[day])
    cases.assert_features_equal(cases.read_rows(partition), expected, world.first.workflow.spec)


@pytest.mark.parametrize("day", DAYS)
def test_features_of_the_extension_equal_the_oracle(world: World, day: str) -> None:
    partition = world.lake.features(world.second.workflow.version).partition(day)
    expected = oracle.encode(world.config, world.second_fit, world.good[day])
    cases.assert_features_equal(cases.read_rows(partition), expected, world.second.workflow.spec)


def test_the_comparison_notices_a_changed_id(world: World) -> None:
    spec, day = world.first.workflow.spec, DAYS[0]
    expected = oracle.encode(world.config, world.first_fit, world.good[day])
    changed = cases.read_rows(world.lake.features(spec.workflow_version).partition(day))
    changed["C1"] += changed.index == 3
    with pytest.raises(AssertionError, match="C1"):
        cases.assert_features_equal(changed, expected, spec)


def test_cardinalities_are_those_of_the_oracle(world: World) -> None:
    for built, fitted in ((world.first, world.first_fit), (world.second, world.second_fit)):
        assert read_spec(world.lake, built.workflow.version) == built.workflow.spec
        for feature in built.workflow.spec.categorical:
            assert feature.cardinality == fitted.cardinality(feature.name), feature.name
    assert {f.name: f.cardinality for f in world.first.workflow.spec.categorical}["C3"] == 3


def test_both_engines_give_the_same_rows(spark: SparkSession, world: World) -> None:
    expected = oracle.encode(world.config, world.second_fit, world.good[DAYS[3]])
    for engine in ("sql", "arrow"):
        workflow = load_workflow(world.lake, world.second.workflow.version, engine=engine)
        assert workflow.engine == engine
        rows = encode_split(spark, world.config, workflow, SECOND, "test").toPandas()
        cases.assert_features_equal(rows, expected, workflow.spec)


def _vocabulary(world: World, version: str) -> dict[str, dict[str, int]]:
    rows = cases.read_rows(workflow_table(world.lake, version, VOCABULARY))
    return {
        str(column): dict(zip(entries["value"], entries["id"], strict=True))
        for column, entries in rows.groupby("column")
    }


def test_vocabularies_know_training_days_alone(world: World) -> None:
    first = _vocabulary(world, world.first.workflow.version)
    assert first == {column: ids for column, ids in world.first_fit.ids.items() if ids}
    values = {value for ids in first.values() for value in ids}
    assert any(DAYS[0] in value for value in values)
    assert not any(day in value for value in values for day in DAYS[1:])


def test_an_extension_keeps_every_id(world: World) -> None:
    first = _vocabulary(world, world.first.workflow.version)
    second = _vocabulary(world, world.second.workflow.version)
    for column, ids in first.items():
        assert ids.items() <= second[column].items()
        arrived = [second[column][value] for value in second[column].keys() - ids.keys()]
        assert sorted(arrived) == list(range(max(ids.values()) + 1, max(ids.values()) + 1 + len(arrived)))
    assert any(DAYS[1] in value for value in second["C1"])
    assert not any(day in value for ids in second.values() for value in ids for day in DAYS[2:])


def test_every_raw_line_is_a_feature_row_or_quarantined(world: World) -> None:
    for day in DAYS:
        kept = cases.read_rows(world.lake.features(world.second.workflow.version).partition(day))
        dropped = cases.read_rows(world.lake.quarantine.partition(day))
        assert sorted([*kept["row_id"], *dropped["row_id"]]) == list(range(len(world.lines[day])))
        manifest = read_manifest(world.lake.features(world.second.workflow.version).partition(day))
        assert manifest.rows_in == manifest.rows + sum(manifest.dropped.values()) == len(world.lines[day])


def test_quarantine_says_where_and_why(world: World) -> None:
    for day in DAYS:
        quarantine = cases.read_rows(world.lake.quarantine.partition(day))
        assert quarantine["row_id"].is_monotonic_increasing
        quarantine["file"] = quarantine.pop("source_file").map(lambda path: Path(path).name)
        expected = world.bad[day]
        for name in ("row_id", "file", "line_number", "reason", "line"):
            assert quarantine[name].tolist() == expected[name].tolist(), name
        counted = Counter(expected["reason"])
        assert counted == {reason: len(lines) for reason, lines in cases.MALFORMED.items()}
        assert read_manifest(world.lake.quarantine.partition(day)).dropped == counted


def test_users_and_items_are_the_latest_rows(world: World) -> None:
    days = [oracle.encode(world.config, world.second_fit, world.good[day]) for day in DAYS]
    for table, key, scope in ((world.lake.users, "user_key", "user"), (world.lake.items, "item_key", "item")):
        columns = [feature.name for feature in world.second.workflow.spec.features if feature.scope == scope]
        actual = cases.read_rows(table(world.second.workflow.version).partition(SECOND))
        expected = oracle.latest(days, key, columns)
        pd.testing.assert_frame_equal(actual, expected, check_dtype=False, rtol=1e-6, atol=1e-6)


def test_files_are_one_row_group_each_and_about_equal(world: World) -> None:
    for day in DAYS:
        manifest = read_manifest(world.lake.features(world.second.workflow.version).partition(day))
        sizes = [file.rows for file in manifest.files]
        assert all(file.row_groups == (file.rows,) for file in manifest.files)
        assert len(sizes) == -(-manifest.rows // world.config.output.row_group_rows)
        assert max(sizes) - min(sizes) <= 16


def test_a_rerun_changes_nothing(spark: SparkSession, world: World) -> None:
    before = read_dataset(world.lake, FIRST)
    again = cases.run_build(spark, world.config, FIRST)
    assert again.dataset == before == world.first.dataset
    assert again.workflow.version == world.first.workflow.version
    assert re.fullmatch("[0-9a-f]{16}", before.digest)
