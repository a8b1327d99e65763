"""How a configuration reads its log: no shipped one needs frames on one machine, and jobs obey `road_of`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conf.load import load_config
from conf.types import Config
from etl import passes
from etl.passes import PreparedPasses, TextPasses, passes_of, road_of
from etl.text import two_passes
from jobs.reference.roads import DATASETS, roads_page, run_starts_jvm, starts_jvm
from spark.local_workers import LocalWorkers
from storage.paths import Lake

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
    assert road_of(config, on_one_machine=True).reason is None
    assert not starts_jvm(config)
    assert not run_starts_jvm(config)
    chosen = passes_of(LocalWorkers(1, no_session, str(tmp_path)), config, Lake(str(tmp_path / "lake")))
    assert isinstance(chosen, TextPasses | PreparedPasses)
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
    road = road_of(shipped(name, *overrides), on_one_machine=True)
    assert (road.kind, road.prepared) == ("prepared" if prepared else "log", prepared)


@pytest.mark.parametrize(
    "name, overrides, one_machine, reason",
    [
        ("generated", ("workflow.engine=sql",), True, "engine"),
        ("generated", ("log.path=hdfs://node/log/{date}",), True, "HDFS"),
        ("movielens", ("items.path=hdfs://node/items",), True, "table of users or items"),
        ("movielens", (), False, "Spark's workers"),
    ],
)
def test_why_a_log_is_read_as_frames(
    name: str, overrides: tuple[str, ...], one_machine: bool, reason: str, tmp_path: Path
) -> None:
    config = shipped(name, *overrides)
    road = road_of(config, on_one_machine=one_machine)
    assert road.kind == "frames"
    assert reason in (road.reason or "")
    if one_machine:
        assert starts_jvm(config)
        assert passes_of(LocalWorkers(1, no_session, str(tmp_path)), config, Lake(str(tmp_path))) is None


def test_the_engine_arrow_is_a_choice_of_sparks_workers() -> None:
    config = shipped("generated", "workflow.engine=arrow")
    assert road_of(config, on_one_machine=False).kind == "log"
    assert starts_jvm(config)


def test_without_the_scanner_text_is_read_as_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_passes, "is_built", lambda: False)
    assert road_of(shipped("generated"), on_one_machine=True).reason == two_passes._NO_SCANNER


def test_an_operator_with_only_a_form_for_frames_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    config = shipped("generated_named", "prepare=[{difference_lag: {by: [user_id], columns: [event_time]}}]")
    changer = type(passes.plan(config).changers[0])
    monkeypatch.delattr(changer, "apply_table")
    road = road_of(config, on_one_machine=True)
    assert road.kind == "frames"
    assert "difference_lag changes rows only in Spark" in (road.reason or "")


@pytest.mark.parametrize(
    "overrides, starts",
    [
        (
            ("candidates.sources=[{source: ease}, {source: als}, {source: item_knn}]", "score.blend=auto"),
            False,
        ),
        (("deliver.sinks=[{kind: json_lines, name: files, path: /srv/lists}]",), False),
        ((f"deliver.sinks=[{JDBC}]",), True),
        (("train.num_ranks=2",), True),
        (("workflow.engine=sql",), True),
    ],
)
def test_what_starts_a_jvm_in_a_run(overrides: tuple[str, ...], starts: bool) -> None:
    assert run_starts_jvm(shipped("generated", *overrides)) == starts
