"""When a run learns a blend: until the champion has one for the configured sources and retriever."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conf.errors import ConfigError
from conf.load import load_config
from conf.types import Config
from jobs.chain.steps import RunPlan
from jobs.checks import check_config
from storage import file_io
from storage.paths import LakePaths
from training.registry.blends import BlendRecord, blend_as_of, blend_key, record_blend

RUN_DATE = "2026-01-08"
BLENDED = ["candidates.sources=[{source: popular}]", "score.blend=auto"]


def config_of(lake: Path, *overrides: str) -> Config:
    """The configuration of the generated log with these overrides."""
    return load_config("conf/datasets/generated.yaml", [f"lake={lake}", *overrides])


def jobs_of(config: Config, *, retrain: bool = False) -> list[str]:
    """The jobs of a run after the gate."""
    return [step.job for step in RunPlan(config, RUN_DATE, retrain).steps_after_gate()]


def promote(lake: LakePaths, version: str) -> None:
    """Records a decision of the gate on RUN_DATE."""
    decision = {"run_date": RUN_DATE, "champion_after": version, "promoted": True}
    file_io.replace_json(f"{lake.models('generated')}/promotions/dt={RUN_DATE}.json", decision)


def test_a_blend_is_learned_until_the_champion_has_one_for_the_configured_sources(tmp_path: Path) -> None:
    config, lake = config_of(tmp_path, *BLENDED), LakePaths(str(tmp_path))
    plain = ["build_candidates", "score_daily", "report"]
    with_blend = ["learn_blend", *plain]
    assert jobs_of(config_of(tmp_path)) == plain
    assert jobs_of(config) == with_blend  # no champion yet
    promote(lake, "m1")
    key = blend_key(lake, config, RUN_DATE)
    assert key is not None
    record = BlendRecord(replace(key, champion="m0"), RUN_DATE, {}, ["popular"], 10, 7, "model", [], None)
    record_blend(lake, "generated", record)
    assert jobs_of(config) == with_blend  # after a rollback or a promotion
    nothing_learned = replace(record, key=key, run_date="2026-01-07", users=0)
    record_blend(lake, "generated", nothing_learned)
    assert jobs_of(config) == with_blend  # without validation clicks, the record is only for its date
    assert blend_as_of(lake, "generated", RUN_DATE, key) == nothing_learned
    record_blend(lake, "generated", replace(record, key=key))
    assert jobs_of(config) == jobs_of(config, retrain=True) == plain
    assert blend_as_of(lake, "generated", RUN_DATE, key) == replace(record, key=key)
    assert blend_as_of(lake, "generated", "2026-01-06", key) is None  # later blends do not count
    record_blend(lake, "generated", replace(nothing_learned, run_date=RUN_DATE))
    record_blend(lake, "generated", replace(record, key=key, run_date="2026-01-06"))
    assert blend_as_of(lake, "generated", RUN_DATE, key) == replace(record, key=key, run_date="2026-01-06")
    assert (
        jobs_of(config_of(tmp_path, "candidates.sources=[{source: popular, n: 7}]", BLENDED[1])) == with_blend
    )
    promote(lake, "m2")
    assert jobs_of(config) == with_blend


def test_a_new_retriever_needs_a_new_blend(tmp_path: Path) -> None:
    sources = "candidates.sources=[{source: retrieval, model: ../models/two_tower_small.yaml}]"
    config, lake = config_of(tmp_path, sources, BLENDED[1]), LakePaths(str(tmp_path))
    promote(lake, "m1")
    for name, version in (("generated", "m1"), ("generated-retriever", "r1"), ("generated-retriever", "r2")):
        folder = f"{lake.models(name)}/{version}"
        file_io.replace_json(f"{folder}/model.json", {"version": version, "workflow_version": "w1"})
    runs = f"{lake.models('generated-retriever')}/runs"
    assert blend_key(lake, config, RUN_DATE) is None
    assert jobs_of(config)[0] == "learn_blend"
    file_io.replace_json(f"{runs}/dt=2026-01-01.json", {"version": "r1"})
    key = blend_key(lake, config, RUN_DATE)
    assert key is not None
    assert key.retriever == "r1"
    record_blend(
        lake,
        "generated",
        BlendRecord(key, RUN_DATE, {}, ["retrieval"], 10, 7, "model", [], None),
    )
    assert jobs_of(config)[0] == "build_candidates"
    file_io.replace_json(f"{runs}/dt={RUN_DATE}.json", {"version": "r2"})
    assert jobs_of(config)[0] == "learn_blend"


def test_a_blend_of_all_items_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the only source in candidates\.sources is all_items") as error:
        check_config(config_of(tmp_path, "score.blend=auto"))
    assert "score.blend=none" in error.value.remedy
    assert error.value.exit_code == 2
