"""plan_night: the facts that a scheduler gets before a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conf.errors import DataError
from conf.load import load_config
from jobs.plan_night import run as plan_night
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.reporting.report_lake import publish_facts

RUN_DATE, BEFORE = "2026-01-08", "2026-01-07"


def plan(lake: Path, *overrides: str) -> dict[str, Any]:
    config = load_config("conf/datasets/generated.yaml", [f"lake={lake}", *overrides])
    return dict(plan_night(RunContext("plan_night", config, RUN_DATE)).facts)


def deliver(lake: Path, name: str, text: str) -> None:
    path = lake / f"raw/dt={RUN_DATE}/{name}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_raw_log_is_found_where_the_configuration_says(tmp_path: Path) -> None:
    nothing = {"path": f"{tmp_path}/raw/dt={RUN_DATE}/*.tsv*", "files": 0, "bytes": 0}
    assert plan(tmp_path)["raw_log"] == nothing
    deliver(tmp_path, "_half.tsv", "not counted")
    assert plan(tmp_path)["raw_log"] == nothing
    deliver(tmp_path, "a.tsv", "12345")
    deliver(tmp_path, "b.tsv.gz", "123")
    assert plan(tmp_path)["raw_log"] == {**nothing, "files": 2, "bytes": 8}


def test_a_log_that_nothing_reads_is_bad_data(tmp_path: Path) -> None:
    deliver(tmp_path, "a.tsv.zip", "12345")
    with pytest.raises(DataError, match=r"a\.tsv\.zip is compressed in a format that is not supported"):
        plan(tmp_path)


def test_steps_name_job_day_and_overrides(tmp_path: Path) -> None:
    lake = LakePaths(str(tmp_path))
    publish_facts(lake.recommendations.partition(BEFORE), {})
    facts = plan(tmp_path, "deliver.sinks=[{kind: json_lines, name: files, path: /out}]")
    assert facts["published"] is False
    names = ["build_features", "build_candidates", "score_daily", "deliver_recommendations"]
    assert [step["name"] for step in facts["night"]] == [*names, "measure_recommendations", "report"]
    days = {step["name"]: step["run_date"] for step in facts["night"]}
    assert days.pop("measure_recommendations") == BEFORE
    assert set(days.values()) == {RUN_DATE}
    training = facts["retraining"]
    jobs = ["build_features", "train_model", "evaluate_model", "refit_model"]
    assert [step["job"] for step in training] == jobs
    assert [step["overrides"] for step in training] == [("workflow.mode=retrain",), (), (), ()]


def test_a_retraining_fits_a_new_workflow_if_the_configuration_says_so(tmp_path: Path) -> None:
    steps = plan(tmp_path, "workflow.mode=fit")["retraining"]
    assert [step["overrides"] for step in steps] == [(), (), (), ()]
    assert plan(tmp_path, "workflow.mode=apply")["retraining"][0]["overrides"] == ("workflow.mode=retrain",)


def test_published_lists_are_told(tmp_path: Path) -> None:
    publish_facts(LakePaths(str(tmp_path)).recommendations.partition(RUN_DATE), {})
    assert plan(tmp_path)["published"] is True
