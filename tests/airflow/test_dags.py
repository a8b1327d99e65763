"""The DAGs without a scheduler: parsing, settings, exit codes of jobs, and one day by dag.test()."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest

from conf.load import load_config
from jobs.chain.steps import RunPlan
from spark.profile import launch_settings
from tests.airflow.airflow_setup import CONFIG, ROOT, TRAINED, AirflowSetup, Alerts

# The first test waits until Airflow is installed, which takes minutes on a machine that never ran it.
pytestmark = pytest.mark.timeout(900)

NAMES = {"daily_recommendations", "weekly_training", "backfill_recommendations"}
NOT_RETRIED, RETRIED = "AirflowFailException", "AirflowException"


@pytest.fixture(scope="module")
def dag_bag(run_airflow_script: Callable[..., Any]) -> dict[str, Any]:
    bag: dict[str, Any] = run_airflow_script("describe_dags")
    assert bag["errors"] == {}
    return bag


@pytest.fixture(scope="module")
def dags(dag_bag: dict[str, Any]) -> dict[str, Any]:
    # test_scheduler.py adds a DAG to the folder, and may run first.
    return {name: dag for name, dag in dag_bag["dags"].items() if name != "late_run"}


def test_run_date_comes_from_param_or_partition_key(dag_bag: dict[str, Any]) -> None:
    days = dag_bag["days"]
    assert (days["param"], days["key"]) == ("2026-01-04", "2026-03-01")
    assert days["day before the key"] == "2026-02-28"
    assert days["days"] == ["2026-02-27", "2026-02-28", "2026-03-01"]
    for name, message in (
        ("no date", "the Param run_date '2026-02-30' is not a date"),
        ("other form", "write 2026-01-04"),
        ("backwards", "are -1 days"),
    ):
        assert days[name].startswith(NOT_RETRIED)
        assert message in days[name]


@pytest.mark.parametrize("dag", ["daily", "weekly"])
def test_a_scheduled_run_processes_the_day_before_also_when_clocks_change(
    dag_bag: dict[str, Any], dag: str
) -> None:
    """2:00 on 2026-03-29 does not exist in Berlin, and 2:30 on 2026-03-08 does not exist in New York.

    If the partition key of a run is another day than its lists, the event of the asset has the day as its key.
    """
    runs = dag_bag["scheduled"][dag]
    for name, times, days in (
        (
            "gap",
            ["03-28 02:00", "03-29 03:00", "03-30 02:00"],
            ["2026-03-27", "2026-03-28", "2026-03-29"],
        ),
        (
            "other gap",
            ["03-07 02:30", "03-08 03:30", "03-09 02:30"],
            ["2026-03-06", "2026-03-07", "2026-03-08"],
        ),
        (
            "no gap",
            ["03-28 05:00", "03-29 05:00", "03-30 05:00"],
            ["2026-03-27", "2026-03-28", "2026-03-29"],
        ),
        (
            "winter",
            ["10-24 02:30", "10-25 02:30", "10-26 02:30"],
            ["2026-10-23", "2026-10-24", "2026-10-25"],
        ),
    ):
        assert [time for time, _, _ in runs[name]] == times
        assert [day for _, day, _ in runs[name]] == days
        gap = name in ("gap", "other gap") and dag == "daily"
        assert [keys for _, _, keys in runs[name]] == [[], [days[1]] if gap else [], []]


def test_dags_parse_and_have_owner_tags_and_description(dags: dict[str, Any]) -> None:
    assert set(dags) == NAMES
    for name, dag in dags.items():
        assert dag["owners"] == ["nightrank"], name
        assert "nightrank" in dag["tags"], name
        assert dag["doc"].startswith("### "), name
        assert dag["callbacks"], name
        assert (dag["runs"], dag["catchup"]) == (1, False), name
    assert [dags[name]["deadline"] for name in ("daily_recommendations", "weekly_training")] == [True] * 2


def test_daily_dag_has_the_stages_of_nightly_in_order(dags: dict[str, Any]) -> None:
    sink = "deliver.sinks=[{kind: json_lines, name: files, path: /out}]"
    for overrides in (["train.refit=false", *more, "measure.against=test_split"] for more in ([sink], [])):
        plan = RunPlan(load_config(CONFIG, [*overrides, "lake=/nowhere"]), TRAINED, retrain=False)
        expected = [step.name for step in (*plan.steps_before_gate(), *plan.steps_after_gate())]
        order = dags["daily_recommendations"]["order"]
        assert [name for name in order if name in expected] == expected
    training = RunPlan(load_config(CONFIG, ["lake=/nowhere"]), TRAINED, retrain=True)
    order = dags["weekly_training"]["order"]
    stages = ("build_features", "train_model", "evaluate_model", "refit_model")
    assert [name for name in order if name in stages] == [step.name for step in training.steps_before_gate()]
    below = dags["weekly_training"]["below"]
    assert {"promote", "build_features_again"} <= set(below["refit_model"])


def test_jobs_have_pool_timeout_and_retries_and_a_failed_stage_fails_the_run(
    dags: dict[str, Any],
) -> None:
    for name in ("daily_recommendations", "weekly_training"):
        dag = dags[name]
        pooled = [task for task, pool in dag["pools"].items() if pool == "nightrank_spark"]
        assert {"quality_gate", "build_features"} <= set(pooled)
        assert all(dag["timeouts"][task] and dag["retries"][task] == 2 for task in pooled)
    below = dags["daily_recommendations"]["below"]
    assert [task for task, following in below.items() if not following] == ["night_is_done"]
    assert "night_is_done" in below["measure_recommendations"]


def test_python_starts_jobs_with_a_local_master_and_spark_submit_all_others(
    airflow_setup: AirflowSetup, run_airflow_script: Callable[..., Any]
) -> None:
    """PySpark reads the options of spark-submit from PYSPARK_SUBMIT_ARGS when a job opens a session."""
    masters = ("local[3]", "spark://127.0.0.1:7077")
    commands: dict[str, Any] = run_airflow_script("describe_commands", *masters)
    words = ["--config", CONFIG, "--run-date", "2026-01-04"]
    for override in (*airflow_setup.home.variable["set"], "score.k=3"):
        words += ["--set", override]
    job = [f"{ROOT}/jobs/report.py", *words]
    local, options = commands["local[3]"]
    assert local == [str(airflow_setup.folder / "python"), *job]
    known = launch_settings({"PYSPARK_SUBMIT_ARGS": options})
    assert known["spark.master"] == "local[3]"
    assert known["spark.sql.shuffle.partitions"] == "4"  # from the profile
    assert options.endswith(" pyspark-shell")
    spread, options = commands["spark://127.0.0.1:7077"]
    assert spread[0] == str(airflow_setup.folder / "spark-submit")
    assert spread[-len(job) :] == job
    assert options is None


def test_a_cleared_task_of_a_back_fill_runs_its_day_again(run_airflow_script: Callable[..., Any]) -> None:
    outcome = run_airflow_script("clear_backfill")
    run = "dag-runs/daily_recommendations/run__2026-01-05"
    assert outcome == {"states": ["success"] * 2, "requests": [run, run, f"{run}/clear"]}


@pytest.fixture(scope="module")
def failures(airflow_setup: AirflowSetup, run_airflow_script: Callable[..., Any]) -> dict[str, Any]:
    errors: dict[str, Any] = run_airflow_script(
        "run_failing_stages", "2", "3", "4", "1", "134", "kill", PLANNED_ENDS=str(airflow_setup.planned_ends)
    )
    return errors


@pytest.mark.parametrize("end, raised", [("2", NOT_RETRIED), ("3", NOT_RETRIED)])
def test_bad_configuration_and_bad_data_are_not_retried(
    failures: dict[str, Any], end: str, raised: str
) -> None:
    assert failures[end][0] == raised
    assert f"report ended with exit code {end}" in failures[end][1]


@pytest.mark.parametrize("end, code", [("4", 4), ("1", 1), ("134", 134), ("kill", 137)])
def test_every_other_exit_code_is_retried(failures: dict[str, Any], end: str, code: int) -> None:
    assert failures[end][0] == RETRIED
    assert f"report ended with exit code {code}: worth a retry" in failures[end][1]
    for word in ("--set score.k=3", "--set score.k=4", f"--run-date {TRAINED}"):
        assert word in failures[end][1]
    # The step of the plan has priority over the Param, as with nightly.
    assert failures[end][1].index("--set score.k=4") < failures[end][1].index("--set score.k=3")


MISCONFIGURED = [
    ("missing connection", {}, "Airflow returned no connection 'spark_default'"),
    ("missing variable", None, "Airflow returned no Variable 'nightrank'"),
    ("stray comma", '{"home": "/x", "config": "y",}', "the Airflow Variable 'nightrank' is not JSON"),
    ("missing key", {"home": None}, "lacks the keys ['home']"),
    ("unknown key", {"profile": "x"}, "unknown keys ['profile']"),
    ("no default profile", {"profiles": {"train_model": "x"}}, "has profiles={'train_model': 'x'}, but"),
    ("no list", {"set": "lake=/x"}, "has set='lake=/x', but"),
    ("no list of keys", {"param_keys": "gate."}, "has param_keys='gate.', but"),
    ("no jobs", {"home": "/nowhere"}, "no folder `jobs`"),
    ("no program", {"spark_submit": "/nowhere/spark-submit"}, "not a program on this worker"),
]


@pytest.fixture(scope="module")
def refusals(airflow_setup: AirflowSetup, run_airflow_script: Callable[..., Any]) -> dict[str, Any]:
    """The errors of tasks (class and text): by case of MISCONFIGURED, and without the XComs of earlier tasks."""
    cases: dict[str, Any] = {}
    for name, change, _ in MISCONFIGURED:
        if isinstance(change, str):
            cases[name] = change
            continue
        values = {**airflow_setup.home.variable, **(change or {})}
        cases[name] = (
            None if change is None else {key: value for key, value in values.items() if value is not None}
        )
    errors: dict[str, Any] = run_airflow_script("run_misconfigured_stages", json.dumps(cases))
    return errors


@pytest.mark.parametrize("name, message", [(name, message) for name, _, message in MISCONFIGURED])
def test_missing_settings_are_clear_errors_and_never_mean_yarn(
    refusals: dict[str, Any], name: str, message: str
) -> None:
    """A retry may find a missing Variable or connection: Airflow's API may only have been busy."""
    kind, text = refusals["settings"][name]
    assert kind == (RETRIED if "Airflow returned no" in message else NOT_RETRIED)
    assert message in text
    assert "what to do" in text


@pytest.mark.parametrize("dag", ["daily_recommendations", "weekly_training"])
def test_a_run_without_the_results_of_its_first_tasks_fails(refusals: dict[str, Any], dag: str) -> None:
    """Somebody has marked the sensor as success. The report, which also runs after failures, is skipped."""
    errors = refusals["without_results"][dag]
    assert {"quality_gate", "build_features"} <= set(errors)
    if dag == "daily_recommendations":
        assert errors.pop("report")[0] == "AirflowSkipException"
    else:
        assert {"promote", "notify", "build_features_again"} <= set(errors)
    for task, (kind, text) in errors.items():
        missing = "evaluate_model" if task in ("promote", "notify", "build_features_again") else "raw_log"
        assert kind == NOT_RETRIED, (task, text)
        assert f"the task {missing} has no result" in text
        assert f"clear {missing} and its downstream tasks" in text


def test_only_a_run_that_has_not_ended_is_late(dag_bag: dict[str, Any]) -> None:
    assert dag_bag["late"] == {
        "running": ["late"],
        "queued": ["late"],
        "failed": [],
        "success": [],
        "no context": ["late"],
    }


# Name of a case → the Param `set`, param_keys of the Variable, what the error names.
NOT_ALLOWED: dict[str, tuple[list[str], list[str] | None, str]] = {
    "a foreign URL": (
        ["deliver.sinks=[{kind: jdbc, url: 'jdbc:postgresql://evil/x'}]"],
        None,
        "deliver.sinks",
    ),
    "a remote jar": (
        ["score.k=3", "deliver.sinks.0.driver_jar=s3a://evil/x.jar"],
        None,
        "deliver.sinks.0.driver_jar",
    ),
    "a web address": (["watch.push_gateway=http://evil:9091"], None, "watch.push_gateway"),
    "another lake": (["lake=s3a://evil/lake"], None, "lake"),
    "another log": (["log.path=/etc/*"], None, "log.path"),
    "another name": (["name=../../x"], None, "name"),
    "a file as the model": (["model=/tmp/model.yaml"], None, "model"),
    "a whole section": (["train={reading: {staging_folder: /home}}"], None, "train"),
    "a folder": (["train.reading.staging_folder=/home"], None, "train.reading.staging_folder"),
    "a section below a prefix": (["score.stop.x={y: 1}"], None, "a mapping or a nested list"),
    "a section in a list": (["quality.exempt=[{path: /x}]"], None, "a mapping or a nested list"),
    "a section in block style": (["gate.drift=path: /x"], None, "a mapping or a nested list"),
    "a section with a tag": (["gate.drift=!!map {path: /x}"], None, "a mapping or a nested list"),
    "a likely name": (["gated=1"], None, "gated"),
    "no key": (["=1"], None, "not of the form a.b=value"),
    "an option": (["--config=/tmp/x.yaml"], None, "--config"),
    "what the deployer took away": (["score.k=3"], ["gate."], "score.k"),
    "anything, where nothing is allowed": (["score.k=3"], [], "allowed keys are none"),
}
ALLOWED: dict[str, tuple[list[str], list[str] | None]] = {
    "nothing": ([], None),
    "limits and counts": (
        ["quality.psi_stop=0.5", "score.k=3", "train.retrain.start=fresh", "model.top_mlp=[8, 1]"],
        None,
    ),
    "what the deployer added": (["deliver.sinks=[{kind: json_lines}]"], ["deliver.sinks"]),
}


@pytest.fixture(scope="module")
def outcomes(airflow_setup: AirflowSetup, run_airflow_script: Callable[..., Any]) -> dict[str, Any]:
    """Name of a case → class and text of the errors of stage, sensor and back-fill with this Param `set`."""
    cases = {name: (overrides, keys) for name, (overrides, keys, _) in NOT_ALLOWED.items()} | ALLOWED
    errors: dict[str, Any] = run_airflow_script(
        "try_overrides", json.dumps(cases), PLANNED_ENDS=str(airflow_setup.planned_ends)
    )
    return errors


@pytest.mark.parametrize("name", NOT_ALLOWED)
def test_param_set_cannot_change_keys_outside_the_allow_list(outcomes: dict[str, Any], name: str) -> None:
    """The error comes before any job starts, and also if one task alone is cleared and runs again."""
    message = NOT_ALLOWED[name][2]
    for place in ("stage", "sensor", "backfill"):
        kind, text = outcomes[name][place]
        assert kind == NOT_RETRIED, (place, text)
        assert message in text, place
        assert "what to do" in text, place


@pytest.mark.parametrize("name", ALLOWED)
def test_param_set_changes_allowed_keys(outcomes: dict[str, Any], name: str) -> None:
    words = [f"--set {override}" for override in ALLOWED[name][0]]
    for place in ("stage", "sensor"):
        kind, text = outcomes[name][place]
        assert (kind, "ended with exit code 4" in text) == (RETRIED, True), (place, text)
        assert all(word in text for word in words), place
    assert outcomes[name]["backfill"][0] == ""


@pytest.mark.timeout(600)
def test_a_training_and_a_day_run_by_dag_test(
    trained: dict[str, Any], airflow_setup: AirflowSetup, alerts: Alerts
) -> None:
    weekly, daily = trained["weekly_training"], trained["daily_recommendations"]
    assert [alert["run_date"] for alert in alerts.of(kind="promoted", dag="weekly_training")] == [TRAINED]
    assert (weekly["state"], daily["state"]) == ("success", "success")
    # The gate promotes the first model, and train.refit is false.
    assert {task for task, state in weekly["tasks"].items() if state == "skipped"} == {
        "build_features_again",
        "refit_model",
    }
    # There are no lists of the day before to measure, and the configuration makes lists from candidates without
    # a blend.
    assert {task for task, state in daily["tasks"].items() if state == "skipped"} == {
        "learn_blend",
        "score_rows",
        "measure_recommendations",
    }
    manifest = json.loads((airflow_setup.lake / f"recommendations/dt={TRAINED}/_MANIFEST.json").read_text())
    promotion = json.loads(
        (airflow_setup.lake / f"models/generated/promotions/dt={TRAINED}.json").read_text()
    )
    assert manifest["facts"]["model_version"] == promotion["champion_after"]
    assert manifest["rows"] == manifest["facts"]["users"] * 10
    files = [gzip.decompress(path.read_bytes()) for path in airflow_setup.delivered.rglob("*.json.gz")]
    assert sum(len(content.splitlines()) for content in files) == manifest["facts"]["users"]
