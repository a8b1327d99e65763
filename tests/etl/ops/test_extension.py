"""Extensions: counts as of a full refit, stable ids and fitted numbers, values that age and return."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from conf.errors import ConfigError
from conf.types import Config
from etl.ops.base import Engine
from etl.ops.tables import RARE, VOCABULARY
from etl.workflow.fitted_workflow import FittedWorkflow, load_local
from storage.paths import LakePaths
from tests.etl.ops.case import assert_same
from tests.etl.ops.on_blocks import features_of_blocks, fit_blocks, table_of
from tests.etl.ops.on_frames import learned
from tests.etl.ops.rows import (
    DAYS,
    TEST_DAY,
    Row,
    by_day,
    features_of,
    fit_rows,
    make_config,
    make_rows,
    to_spark,
)

GROUPS: list[dict[str, Any]] = [
    {"columns": ["C1", "C2", "C3"], "kind": "categorical", "ops": [{"categorify": {"min_count": 3}}]},
    {
        "columns": ["C2"],
        "kind": "categorical",
        "ops": [
            {"rename": {"suffix": "_few"}},
            {"categorify": {"max_size": 12, "oov_buckets": 2}},
            "data_stats",
            {"rename": {"prefix": "the_"}},
        ],
    },
    {
        "columns": ["T"],
        "kind": "categorical",
        "ops": [
            "split_list",
            {"categorify": {"min_count": 2}},
            {"list_slice": {"length": 2, "columns": True}},
        ],
    },
    {"columns": ["I1"], "kind": "dense", "ops": ["fill_median", "normalize"]},
    {"columns": ["X"], "kind": "dense", "ops": ["fill", {"winsorize": {"lower": 0.2, "upper": 0.8}}]},
    {"columns": ["C1"], "kind": "dense", "ops": [{"join_groupby": {"statistics": ["mean"], "of": ["I1"]}}]},
    {"columns": ["K"], "kind": "dense", "ops": [{"target_encoding": {"folds": 2}}]},
    {
        "columns": ["item"],
        "kind": "categorical",
        "ops": [{"rename": {"suffix": "_given"}}, {"categorify": {"values": ["i1"]}}],
    },
    {
        "columns": ["I4", "I2"],
        "kind": "dense",
        "ops": ["drop_low_cardinality", {"rename": {"suffix": "_kept"}}],
    },
]
OLD = [row for day in DAYS[:2] for row in make_rows(day, 60, seed=4)]
NEW = [row for day in (DAYS[2], TEST_DAY) for row in make_rows(day, 50, seed=5)]
Entries = Mapping[tuple[str, str], tuple[int | None, int]]


class Road(ABC):
    """A way to fit workflows on rows and to compute their features."""

    @abstractmethod
    def fit(
        self, config: Config, rows: Sequence[Row], parent: FittedWorkflow | None = None
    ) -> FittedWorkflow: ...

    @abstractmethod
    def features(self, workflow: FittedWorkflow, rows: Sequence[Row]) -> dict[str, list[Any]]: ...


class Blocks(Road):
    def fit(
        self, config: Config, rows: Sequence[Row], parent: FittedWorkflow | None = None
    ) -> FittedWorkflow:
        return fit_blocks(config, rows, Path(config.lake), parent=parent)[1]

    def features(self, workflow: FittedWorkflow, rows: Sequence[Row]) -> dict[str, list[Any]]:
        return features_of_blocks(workflow, sorted(rows, key=lambda row: row["row_id"]))


@dataclass(frozen=True)
class Frames(Road):
    spark: SparkSession

    def fit(
        self, config: Config, rows: Sequence[Row], parent: FittedWorkflow | None = None
    ) -> FittedWorkflow:
        return fit_rows(self.spark, config, by_day(self.spark, rows), parent)

    def features(self, workflow: FittedWorkflow, rows: Sequence[Row]) -> dict[str, list[Any]]:
        return features_of(replace(workflow, engine="sql"), to_spark(self.spark, rows))


@pytest.fixture(scope="module", params=["blocks", pytest.param("frames", marks=pytest.mark.spark)])
def road(request: pytest.FixtureRequest) -> Road:
    return Blocks() if request.param == "blocks" else Frames(request.getfixturevalue("spark"))


@pytest.fixture(scope="module")
def fitted(
    road: Road, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LakePaths, FittedWorkflow, FittedWorkflow, FittedWorkflow]:
    """The lake, a workflow, its extension by two days, and one fitted on all of them."""
    config = make_config(tmp_path_factory.mktemp("extension"), GROUPS)
    first = road.fit(config, OLD)
    extended = road.fit(config, [*OLD, *NEW], first)
    return LakePaths(config.lake), first, extended, road.fit(config, [*OLD, *NEW])


def _entries(lake: LakePaths, workflow: FittedWorkflow) -> Entries:
    """(vocabulary, value) → (id, count), rare values with an id of None."""
    known, rare = (table_of(lake, workflow.version, name).to_pylist() for name in (VOCABULARY, RARE))
    counted = {(row["column"], row["value"]): (row["id"], row["count"]) for row in known}
    assert not {(row["column"], row["value"]) for row in rare} & set(counted)
    return counted | {(row["column"], row["value"]): (None, row["count"]) for row in rare}


def test_counts_are_those_of_a_full_refit_and_ids_stay(fitted: tuple) -> None:
    lake, first, extended, refitted = fitted
    assert len({first.version, extended.version, refitted.version}) == 3
    before, after, anew = (_entries(lake, version) for version in (first, extended, refitted))
    assert {key: count for key, (_, count) in after.items()} == {
        key: count for key, (_, count) in anew.items()
    }
    kept = {key: value_id for key, (value_id, _) in before.items() if value_id is not None}
    assert {key: after[key][0] for key in kept} == kept
    for vocabulary, first_id in (("C1", 3), ("C2", 3), ("C2_few", 4), ("T", 3)):
        arrived = {key[1]: after[key] for key in after if key[0] == vocabulary and key not in kept}
        new = {value: value_id for value, (value_id, _) in arrived.items() if value_id is not None}
        highest = max(
            (value_id for key, value_id in kept.items() if key[0] == vocabulary), default=first_id - 1
        )
        ranked = sorted(new, key=lambda value: (-arrived[value][1], value.encode("utf-8")))
        assert [new[value] for value in ranked] == list(range(highest + 1, highest + 1 + len(new))), (
            vocabulary
        )
    assert any(key not in kept and value_id is not None for key, (value_id, _) in after.items())
    assert sum(key[0] == "C2_few" and value_id is not None for key, (value_id, _) in after.items()) == 12


def test_every_rare_value_waits_below_its_threshold(fitted: tuple) -> None:
    lake, _, extended, _ = fitted
    least = {"C1": 3, "C2": 3, "T": 2}
    entries = {key: entry for key, entry in _entries(lake, extended).items() if key[0] in least}
    assert any(value_id is None for value_id, _ in entries.values())
    for (vocabulary, _), (value_id, count) in entries.items():
        assert (value_id is not None) == (count >= least[vocabulary])


def test_fitted_numbers_stay_and_sizes_grow(road: Road, fitted: tuple) -> None:
    _, first, extended, refitted = fitted
    learned = {"fill_median", "normalize", "join_groupby", "target_encoding", "drop_low_cardinality"}
    mine, theirs, anew = (
        [step.state() for chain in workflow.chains for step in chain.steps if step.name in learned]
        for workflow in (extended, first, refitted)
    )
    assert mine == theirs != anew
    sizes = {feature.name: feature.cardinality for feature in extended.spec.categorical}
    assert "the_C2_few" in sizes
    assert [feature.name for feature in extended.spec.features] == [
        feature.name for feature in first.spec.features
    ]
    ids = road.features(extended, [*OLD, *NEW])
    for name, size in sizes.items():
        assert max(ids[name]) < size
    for name in ("C1", "C2", "the_C2_few"):  # the last id occurs: no row of the embedding table is in vain
        assert max(ids[name]) == sizes[name] - 1
    grown = {feature.name: feature.cardinality for feature in first.spec.categorical}
    assert all(sizes[name] >= grown[name] for name in sizes)
    assert sizes["the_C2_few"] > grown["the_C2_few"] or grown["the_C2_few"] == 16


def test_numbers_of_the_parent_encode_its_rows_as_before(road: Road, fitted: tuple) -> None:
    _, first, extended, _ = fitted
    dense = [feature.name for feature in first.spec.dense]
    assert dense == ["I1", "X", "C1_I1_mean", "K_te", "I2_kept"]
    before, after = road.features(first, OLD), road.features(extended, OLD)
    assert_same({name: after[name] for name in dense}, {name: before[name] for name in dense})


@pytest.mark.spark
def test_extensions_of_frames_and_of_blocks_learn_the_same(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two operators have tables by keys, and each table has the statistics of its own operator's columns."""
    states, tables = [], []
    for road in (Blocks(), Frames(spark)):
        config = make_config(tmp_path_factory.mktemp("learned"), GROUPS)
        extended = road.fit(config, [*OLD, *NEW], road.fit(config, OLD))
        states.append([json.loads(learned(chain)) for chain in extended.chains])
        steps = [step["state"] for chain in states[-1] for step in chain["steps"]]
        keyed = {step["table"] for step in steps if "table" in step}
        assert len(keyed) == 2
        tables.append({name: rows_of(LakePaths(config.lake), extended.version, name) for name in keyed})
    assert states[0] == states[1]
    assert tables[0] == tables[1]


def rows_of(lake: LakePaths, version: str, name: str) -> list[str]:
    return sorted(repr(row) for row in table_of(lake, version, name).to_pylist())


def test_an_extension_by_counted_days_is_the_parent(road: Road, fitted: tuple) -> None:
    lake, first, _, _ = fitted
    config = make_config(Path(lake.root).parent, GROUPS)
    assert road.fit(config, OLD, first) is first


def _day(day: str, *values: str | None) -> list[Row]:
    (template,) = make_rows(day, 1, seed=0)
    return [{**template, "row_id": place, "C1": value} for place, value in enumerate(values)]


def test_a_value_that_is_not_seen_reads_as_unknown_and_returns_to_its_id(road: Road, tmp_path: Path) -> None:
    group = {"columns": ["C1"], "kind": "categorical", "ops": [{"categorify": {"max_age_days": 2}}]}
    config = make_config(tmp_path, [group])
    days: list[tuple[str, list[str | None], dict[str, int]]] = [
        ("2026-03-01", ["a", "a", "b"], {"a": 3, "b": 4, "c": 2}),
        ("2026-03-03", ["b", "c", None], {"a": 3, "b": 4, "c": 5}),  # a is two days old: known
        ("2026-03-04", ["c", "d", None], {"a": 2, "b": 4, "c": 5, "d": 6}),  # three: no more
        ("2026-03-05", ["a", "d", "d"], {"a": 3, "b": 4, "c": 5, "d": 6}),  # back, under its id
        ("2026-03-20", ["e", "e", "e"], {"a": 2, "b": 2, "c": 2, "d": 2, "e": 7}),
    ]
    workflow: FittedWorkflow | None = None
    rows: list[Row] = []
    asked = _day("2026-04-01", "a", "b", "c", "d", "e", None)
    for day, values, known in days:
        rows += _day(day, *values)
        workflow = road.fit(config, rows, workflow)
        expected = {"C1": [*(known.get(value, 2) for value in "abcde"), 1]}
        assert_same(road.features(workflow, asked), expected)
        local = load_local(LakePaths(config.lake), workflow.version)
        assert [local.encode_values({"C1": value}, ["C1"])["C1"] for value in "abcde"] == expected["C1"][:5]


@pytest.mark.parametrize(
    "first, later",
    [
        ({"oov_buckets": 2}, {}),
        ({"oov_buckets": 2}, {"oov_buckets": 4}),
        ({"values": ["a", "b"]}, {"values": ["b", "a"]}),
    ],
)
def test_what_would_give_an_id_two_meanings_does_not_extend(
    road: Road, tmp_path: Path, first: dict[str, Any], later: dict[str, Any]
) -> None:
    def groups(parameters: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"columns": ["C1"], "kind": "categorical", "ops": [{"categorify": parameters}]}]

    parent = road.fit(make_config(tmp_path, groups(first)), OLD[:20])
    with pytest.raises(ConfigError, match=r"cannot be extended, .*categorify"):
        road.fit(make_config(tmp_path, groups(later)), [*OLD[:20], *NEW], parent)


def test_a_changed_parameter_is_refused_where_the_parents_number_would_silently_stay(
    road: Road, tmp_path: Path
) -> None:
    def groups(least: int) -> list[dict[str, Any]]:
        return [{"columns": ["I1"], "kind": "dense", "ops": [{"clip": {"min": least}}, "fill"]}]

    parent = road.fit(make_config(tmp_path, groups(0)), OLD[:20])
    with pytest.raises(ConfigError, match=r"cannot be extended, .*clip\(min=1\)"):
        road.fit(make_config(tmp_path, groups(1)), [*OLD[:20], *NEW], parent)


def test_days_without_rows_are_fitted_where_nothing_must_be_measured(
    spark: SparkSession, tmp_path: Path
) -> None:
    groups = [group for group in GROUPS if group["columns"] not in (["I1"], ["X"], ["I4", "I2"])]
    empty = {DAYS[0]: to_spark(spark, OLD).limit(0)}
    workflow = fit_rows(spark, make_config(tmp_path, groups), empty)
    features = {}
    engines: tuple[Engine, ...] = ("sql", "arrow")
    for engine in engines:
        features[engine] = features_of(replace(workflow, engine=engine), to_spark(spark, OLD))
    assert_same(features["sql"], features["arrow"])
    for name in ("C1", "C2", "C3"):
        assert features["sql"][name] == [
            1 if row[name] is None else 2 for row in sorted(OLD, key=lambda row: row["row_id"])
        ]
    assert set(features["sql"]["K_te"]) == {0.0}
    assert set(features["sql"]["C1_I1_mean"]) == {None}
