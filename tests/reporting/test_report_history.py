"""The last thirty days on the report's page: figures by day, failures, and a lake with one day."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from conf.load import load_config
from conf.types import Config
from reporting.elements.charts import stacked
from reporting.facts.recent_runs import failures_of, open_failure, read_history, served_lists
from reporting.html.page import build
from reporting.html.sections.last_thirty_days import _core_time, render
from reporting.html.sections.stages import read_stage_times
from reporting.monitoring.run_record import write_record
from storage.manifest import Manifest, replace_manifest
from storage.paths import LakePaths
from tests.reporting.history_lake import FAILED, HOSTILE_REASON, KILLED, LOST, make_history, record_of
from tests.reporting.report_lake import RUN_DATE, config_of, make_lake, publish_facts
from tests.reporting.test_report import Page


def day_before(days: int) -> str:
    return (date.fromisoformat(RUN_DATE) - timedelta(days=days)).isoformat()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Config:
    config = make_lake(tmp_path_factory.mktemp("history"))
    make_history(config)
    return config


def test_each_day_is_told_once_with_its_own_figures(lake: Config) -> None:
    history = read_history(lake, RUN_DATE)
    assert history.currency == "EUR"
    assert len(history.days) == 29
    assert day_before(LOST) not in {day.dt for day in history.days}
    trained = next(day for day in history.days if day.dt == day_before(5))
    assert trained.auc is not None
    assert trained.champion_auc == pytest.approx(trained.auc - 0.002)
    assert trained.best_auc == 0.812
    assert set(trained.seconds) == {"features", "training and gate", "lists and delivery", "other"}
    assert sum(trained.seconds.values()) * 16 == pytest.approx(trained.core_s, rel=1e-3)
    assert trained.cost == pytest.approx(trained.core_s / 3600 * 0.05, rel=1e-3)
    drifted = next(day for day in history.days if day.dt == day_before(9))
    assert (drifted.psi, drifted.psi_column, drifted.auc) == (0.41, "C2", None)
    assert drifted.rows is not None
    assert drifted.dropped_share == pytest.approx(sum(drifted.dropped.values()) / drifted.rows)
    assert drifted.rows_per_s["build_features"] > 0


def test_attempts_that_failed_cost_and_are_told_and_a_retry_gives_the_seconds(lake: Config) -> None:
    history = read_history(lake, RUN_DATE)
    failed = next(day for day in history.days if day.dt == day_before(FAILED))
    (failure,) = failed.failures
    assert (failure.job, failure.exit_code, failure.problem) == (
        "build_features",
        3,
        "the <log> of that day is empty",
    )
    assert 80 < failed.seconds["features"] < 110  # of the attempt that ended well alone
    assert failed.core_s == pytest.approx(sum(failed.seconds.values()) * 16 + 480, rel=1e-3)


def test_a_killed_stage_is_reported_by_its_run(lake: Config, tmp_path: Path) -> None:
    history = read_history(lake, RUN_DATE)
    killed = next(day for day in history.days if day.dt == day_before(KILLED))
    assert [(item.job, item.exit_code) for item in killed.failures] == [("score_daily", 137)]
    nightly_fields = {
        "facts": {"exit_codes": {"score_daily": 4, "build_features": 0, "train_model": 1}},
        "exit_code": 4,
    }
    records = [
        record_of(lake, RUN_DATE, "score_daily", exit_code=4, started_at=f"{RUN_DATE}T03:00:30Z"),
        record_of(lake, RUN_DATE, "nightly", **nightly_fields),
    ]
    assert [(item.job, item.exit_code) for item in failures_of(records)] == [
        ("score_daily", 4),  # by its own record, once
        ("train_model", 1),
    ]


def test_other_configurations_of_one_lake_are_not_counted(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    record = replace(record_of(config, RUN_DATE, "build_features"), config="other")
    write_record(LakePaths(config.lake), record)
    assert read_history(config, RUN_DATE).days == ()


def test_the_page_draws_every_figure_and_tells_what_failed(lake: Config) -> None:
    text = build(lake, RUN_DATE)[1]
    page = Page(text)
    sections = [attributes["id"] for name, attributes in page.tags if name == "section"]
    assert sections[:2] == ["sample", "history"]
    titles = [
        str(attributes["aria-label"]).split(".")[0]
        for name, attributes in page.tags
        if name == "svg" and attributes["aria-label"]
    ]
    drawn = ["Rows of the day", "Drops", "AUC", "Drift", "Throughput", "Duration", "Cost", "Failures"]
    assert titles[:8] == drawn
    section = page.text.split("The last 30 days", 1)[1].split("Recent runs", 1)[0]
    for text in (
        f"Of the 30 run dates up to {RUN_DATE}, 29 have run",
        "Failed attempts: 2.",
        "build_features 3",
        "the <log> of that day is empty",
        "score_daily 137",
        "quality.psi_warn",
        HOSTILE_REASON,
        "other reasons (1)",
    ):
        assert text in section, text
    assert HOSTILE_REASON not in text
    assert "url(" not in text


def test_a_lake_of_one_day_has_a_table_and_no_charts(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    make_history(config, 1)
    html = render(read_history(config, RUN_DATE), RUN_DATE, 0.25)
    assert html is not None
    assert "<svg" not in html
    assert "1 has run" in html
    assert "No attempt failed." in html


def test_a_lake_without_runs_has_no_such_section(tmp_path: Path) -> None:
    assert render(read_history(config_of(tmp_path), RUN_DATE), RUN_DATE, None) is None


def test_two_days_of_which_little_is_known_can_be_drawn(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    for back in (0, 1):
        write_record(
            LakePaths(config.lake), record_of(config, day_before(back), "build_candidates", core_s=1.0)
        )
    html = render(read_history(config, RUN_DATE), RUN_DATE, 0.25)
    assert html is not None
    assert "AUC: there are no values to draw." in html
    assert "core hours" in html  # the axis of the chart
    assert "have run, on 0.0 core minutes" in html


def test_core_time_has_a_unit_that_fits() -> None:
    assert _core_time(0.05) == "3.0 core minutes"
    assert _core_time(1234.5) == "1,234.5 core hours"


def test_stages_come_from_the_rows_of_runs_where_a_scheduler_keeps_the_logs(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    make_history(config, 1)
    stage_times = read_stage_times(LakePaths(config.lake), RUN_DATE, config.name)
    assert {item.stage for item in stage_times} == {
        "build_features",
        "train_model",
        "evaluate_model",
        "build_candidates",
        "score_daily",
    }
    assert all(item.total_s > 0 for item in stage_times)


def test_stacked_bars_reach_the_sum_and_leave_out_what_is_unknown() -> None:
    chart = stacked(
        "T", ["a", "b"], [("x", [1.0, float("nan")]), ("y", [3.0, 2.0])], x_label="days", y_label="min"
    )
    heights = [float(part.split('"')[0]) for part in chart.split('height="')[1:]]
    assert chart.count("<rect") == 3
    unit = (heights[0] + 1) / 1.0  # a pixel is left between parts
    assert [round((height + 1) / unit, 2) for height in heights] == [1.0, 3.0, 2.0]
    assert "at most 4 at a" in chart
    assert "<svg" not in stacked("T", ["a"], [("x", [float("nan")])], x_label="d", y_label="m")


ERROR = {"kind": "DataError", "problem": "clicks.tsv has no <column> 'C7'", "remedy": "correct log.columns"}


def _attempt(config: Config, job: str, minute: int, code: int = 0, **values: Any) -> None:
    """Records an attempt on RUN_DATE that began and ended in this minute."""
    at = {"started_at": f"{RUN_DATE}T03:{minute:02}:00Z", "ended_at": f"{RUN_DATE}T03:{minute:02}:30Z"}
    error = {"error": ERROR} if code else {}
    record = record_of(
        config, RUN_DATE, job, exit_code=code, run_id=f"{minute:08}", **{**at, **error, **values}
    )
    write_record(LakePaths(config.lake), record)


def _head(config: Config) -> str:
    return Page(build(config, RUN_DATE)[1].split("<section", 1)[0] + "</main></body></html>").text


def test_the_page_of_a_failed_run_opens_with_the_failure_until_the_stage_succeeds(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    _attempt(config, "build_features", 1, 3)
    for job in ("show", "prune", "report"):  # these are no stages that stop a run
        _attempt(config, job, 2, 3)
    head = _head(config)
    assert f"build_features failed at {RUN_DATE} 03:01:30 UTC with exit code 3 (data)." in head
    assert "clicks.tsv has no <column> 'C7' What to do: correct log.columns" in head
    assert "Served lists: none, because no run has published lists yet." in head
    assert "Neither" not in head
    lists = LakePaths(config.lake).recommendations
    publish_facts(lists.partition(day_before(4)), {})
    assert f"Served lists: those of {day_before(4)}, because this run has not published any." in _head(config)
    _attempt(config, "train_model", 3, 137)  # the last failure that was not repaired is shown
    assert "train_model failed" in _head(config)
    assert "exit code 137 (killed by SIGKILL: worth a retry)" in _head(config)
    _attempt(config, "train_model", 4)
    assert "build_features failed" in _head(config)
    _attempt(config, "build_features", 5)
    assert " failed" not in _head(config)
    _attempt(config, "score_daily", 6, 4)
    publish_facts(lists.partition(RUN_DATE), {})
    assert served_lists(config, RUN_DATE) == "those of this run date, which an earlier attempt or stage made"
    assert open_failure(config, RUN_DATE) is not None
    later = (date.fromisoformat(RUN_DATE) + timedelta(days=1)).isoformat()
    publish_facts(lists.partition(later), {})
    assert served_lists(config, RUN_DATE) == f"those of {later}, a later run date"


def test_a_run_that_stopped_without_a_failed_stage_is_a_failure_of_the_run(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    _attempt(config, "nightly", 1, 143, error={**ERROR, "kind": "StoppedError"})
    failure = open_failure(config, RUN_DATE)
    assert failure is not None
    assert (failure.job, failure.exit_code, failure.remedy) == ("nightly", 143, ERROR["remedy"])
    _attempt(config, "build_features", 2)  # of the next run, whose own record is written after its page
    assert open_failure(config, RUN_DATE) is None


def test_a_failed_measure_of_the_lists_of_the_day_before_belongs_to_the_run(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    before = {
        "run_date": day_before(1),
        "started_at": f"{RUN_DATE}T04:00:00Z",
        "ended_at": f"{RUN_DATE}T04:00:09Z",
    }
    _attempt(config, "measure_recommendations", 1, 3, **before)
    _attempt(config, "build_features", 2, 3, run_date=day_before(1))  # this one is of another run
    failure = open_failure(config, RUN_DATE)
    assert failure is not None
    assert (failure.job, failure.dt) == ("measure_recommendations", day_before(1))
    assert f"measure_recommendations for {day_before(1)} failed" in _head(config)


def test_lists_that_are_delivered_to_sinks_are_served_from_there(tmp_path: Path) -> None:
    sinks = "deliver.sinks=[{kind: json_lines, name: files, path: " + str(tmp_path) + "/out}]"
    config = load_config("conf/datasets/generated.yaml", [f"lake={tmp_path}", sinks])
    lake = LakePaths(config.lake)
    publish_facts(lake.recommendations.partition(day_before(1)), {})
    publish_facts(lake.deliveries.partition(day_before(2)), {})
    served = served_lists(config, RUN_DATE)
    assert served == f"those of {day_before(2)}, because this run has not delivered any"
    assert served_lists(config.model_copy(update={"keys": None}), RUN_DATE) is None


def test_only_dates_on_which_a_run_was_tried_count_as_run(tmp_path: Path) -> None:
    """The log of the train days has been read, and lists of earlier dates may be measured later."""
    config = config_of(tmp_path)
    for back in range(1, 16):
        log = Manifest("quarantine", day_before(back), (), (), {}, rows_in=100, dropped={"label": 1})
        replace_manifest(LakePaths(config.lake).quarantine.partition(day_before(back)), log)
    _attempt(config, "generate_clicks", 1, run_date=day_before(9))
    _attempt(config, "build_features", 2, 3)
    html = render(read_history(config, RUN_DATE), RUN_DATE, 0.25)
    assert html is not None
    assert f"Of the 30 run dates up to {RUN_DATE}, 1 has run" in html
    assert "Failed attempts: 1." in html
