"""How a configuration reads its log: no shipped one starts a JVM on one machine, and jobs obey `road_of`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from conf.errors import ConfigError
from conf.load import load_config
from conf.types import Config
from etl import passes
from etl.passes import FramePasses, TaskPasses, TextPasses, passes_of, road_of
from etl.workflow.feature_plan import plan_of
from jobs.reference.roads import DATASETS, roads_page, run_starts_jvm, starts_jvm
from spark.choose_workers import SparkWorkers
from spark.workers import LocalWorkers
from storage.paths import LakePaths

JDBC = (
    "{kind: jdbc, name: shop, url: 'jdbc:postgresql://h/d', table: lists, user: {env: U}, password: {env: P}}"
)
SHIPPED = sorted(DATASETS.glob("*.yaml"))


def shipped(name: str, *overrides: str) -> Config:
    return load_config(str(DATASETS / f"{name}.yaml"), list(overrides))


def no_session() -> Any:
    raise AssertionError("a Spark session was opened")


def test_there_are_shipped_configurations() -> None:
    assert len(SHIPPED) >= 7


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_configuration_starts_no_jvm_on_one_machine(path: Path, tmp_path: Path) -> None:
    config = load_config(str(path))
    assert not starts_jvm(config)
    assert not run_starts_jvm(config)
    chosen = passes_of(
        LocalWorkers(1, no_session, str(tmp_path)), plan_of(config), LakePaths(str(tmp_path / "lake"))
    )
    assert isinstance(chosen, TextPasses | TaskPasses)
    assert f"| `{path.name}` |" in roads_page()


@pytest.mark.parametrize(
    "name, overrides, prepared",
    [
        ("criteo", (), ()),
        ("generated", (), ()),
        (
            "movielens",
            (),
            (
                "histories",
                "negatives",
                "table of users",
                "table of items",
                "split of the rows of each user",
            ),
        ),
        (
            "movielens_time",
            (),
            ("histories", "negatives", "table of users", "table of items", "split by event time"),
        ),
        (
            "generated_named",
            ("prepare=[{difference_lag: {by: [user_id], columns: [event_time]}}]",),
            ("`difference_lag`",),
        ),
    ],
)
def test_what_is_prepared(name: str, overrides: tuple[str, ...], prepared: tuple[str, ...]) -> None:
    road = road_of(plan_of(shipped(name, *overrides)), on_one_machine=True)
    assert (road.kind, road.prepared) == ("prepared" if prepared else "log", prepared)


@pytest.mark.parametrize(
    "name, overrides, one_machine, kind, by",
    [
        ("generated", (), False, "log", None),
        ("generated", ("workflow.engine=sql",), False, "prepared", "frames"),
        ("movielens", (), True, "prepared", "tasks"),
        ("movielens", (), False, "prepared", "frames"),
    ],
)
def test_who_prepares_rows(
    name: str, overrides: tuple[str, ...], one_machine: bool, kind: str, by: str | None
) -> None:
    road = road_of(plan_of(shipped(name, *overrides)), on_one_machine=one_machine)
    assert (road.kind, road.by) == (kind, by)


def test_clusters_take_the_same_roads(spark: SparkSession, tmp_path: Path) -> None:
    for path in SHIPPED:
        chosen = passes_of(
            SparkWorkers(spark), plan_of(load_config(str(path))), LakePaths(str(tmp_path / "lake"))
        )
        assert isinstance(chosen, TextPasses | FramePasses)


def test_the_engine_arrow_is_a_choice_of_sparks_workers() -> None:
    config = shipped("generated", "workflow.engine=arrow")
    assert road_of(plan_of(config), on_one_machine=False).kind == "log"
    assert starts_jvm(config)


def test_without_the_scanner_text_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(passes, "is_built", lambda: False)
    workers, lake = LocalWorkers(1, no_session, str(tmp_path)), LakePaths(str(tmp_path / "lake"))
    with pytest.raises(ConfigError, match="compiled scanner, which reads text files, is missing") as caught:
        passes_of(workers, plan_of(shipped("generated")), lake)
    assert "make setup" in caught.value.remedy
    passes_of(workers, plan_of(shipped("shop_parquet")), lake)


def test_an_operator_with_only_a_form_for_frames_is_refused_on_one_machine(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = shipped("generated_named", "prepare=[{difference_lag: {by: [user_id], columns: [event_time]}}]")
    changer = type(plan_of(config).changers[0])
    monkeypatch.delattr(changer, "apply_table")
    lake = LakePaths(str(tmp_path / "lake"))
    with pytest.raises(ConfigError, match="difference_lag changes rows only in Spark"):
        passes_of(LocalWorkers(1, no_session, str(tmp_path)), plan_of(config), lake)
    assert isinstance(passes_of(SparkWorkers(spark), plan_of(config), lake), FramePasses)


@pytest.mark.parametrize(
    "overrides, starts",
    [
        (
            ("candidates.sources=[{source: ease}, {source: als}, {source: item_knn}]", "score.blend=auto"),
            False,
        ),
        (("deliver.sinks=[{kind: json_lines, name: files, path: /srv/lists}]",), False),
        ((f"deliver.sinks=[{JDBC}]",), True),
        ((f"deliver.sinks=[{JDBC[:-1]}, driver_jar: {__file__}}}]",), False),
        (("train.num_ranks=2",), True),
        (("workflow.engine=sql",), True),
    ],
)
def test_what_starts_a_jvm_in_a_run(overrides: tuple[str, ...], starts: bool) -> None:
    assert run_starts_jvm(shipped("generated", *overrides)) == starts
