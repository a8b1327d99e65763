"""The runner `livy` with Airflow's real hook, against a server that checks requests and runs batches.

Also what holds for every runner: settings that are refused, and providers that are not installed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.airflow_setup import ROOT, AirflowSetup
from tests.airflow.test_dags import NAMES, NOT_RETRIED, RETRIED

pytestmark = pytest.mark.timeout(600)

# A job that ends as the --set value `end` says. It writes its exit code as jobs/runner.py does.
JOB = """import json, os, signal, sys, time
end = next((word[4:] for word in sys.argv if word.startswith("end=")), "0")
for number in range(300):
    print("a line of Spark", number, file=sys.stderr)
sys.stderr.flush()
if end == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60 if end == "hang" else 0)
plan = {"raw_log": {"bytes": 7, "path": "x"}, "published": False, "night": [], "retraining": []}
if end == "0":
    print(json.dumps({"job": "report", "seconds": {}, "words": sys.argv[1:], **plan}))
elif end != "silent":
    print("12:00:00 nightrank: report ended with exit code", end, file=sys.stderr)
sys.exit(0 if end == "silent" else int(end))
"""
PROFILE = """# A profile.
spark.master local[2]
spark.executor.memory=4g
spark.sql.shuffle.partitions : 8
spark.executor.extraJavaOptions  -Dx=1 -Dy=2

spark.local.dir
"""
CLUSTER_PROFILE = "spark.submit.deployMode cluster\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("livy")
    (folder / "jobs").mkdir()
    for job in ("report", "plan_night"):
        (folder / f"jobs/{job}.py").write_text(JOB)
    (folder / "a.conf").write_text(PROFILE)
    (folder / "cluster.conf").write_text(CLUSTER_PROFILE)
    return folder


@pytest.fixture(scope="module")
def ran(folder: Path, airflow_setup: AirflowSetup, run_airflow_script: Callable[..., Any]) -> dict[str, Any]:
    """Outcome of the task, posted batches, and those that are left, for each Variable."""

    def variable(end: str, **more: Any) -> dict[str, Any]:
        return {
            "home": str(folder),
            "config": "/etc/my.yaml",
            "profiles": {"default": str(folder / "a.conf")},
            "set": [f"end={end}"],
            "runner": {"kind": "livy", "poll_s": 0.1},
            **more,
        }

    variables = {end: variable(end) for end in ("0", "2", "3", "4", "kill", "silent")} | {
        "killed": variable("hang"),
        "too slow": variable("hang"),
        "worker lost": variable("hang"),
        "plan": variable("0"),
        "real job": variable("0", home=str(ROOT), config="/nowhere.yaml"),
        "as somebody": variable("0", runner={"kind": "livy", "poll_s": 0.1, "proxy_user": "somebody"}),
        "cluster mode": variable("0", profiles={"default": str(folder / "cluster.conf")}),
        "no profile": variable("0", profiles={"default": "conf/spark/nope.conf"}),
    }
    path = folder / "variables.json"
    path.write_text(json.dumps(variables))
    results: dict[str, Any] = run_airflow_script("run_in_livy", str(path), sys.executable, str(ROOT))
    return results


def test_a_batch_runs_the_script_of_the_job_with_arguments_and_profile(
    ran: dict[str, Any], folder: Path
) -> None:
    kind, text, summary = ran["0"]["outcome"]
    assert (kind, text) == ("", "")
    words = ["--config", "/etc/my.yaml", "--run-date", "2026-01-04", "--set", "end=0", "--set", "score.k=3"]
    assert summary["words"] == words
    (posted,) = ran["0"]["posted"]
    assert posted.pop("name").startswith("nightrank report 2026-01-04 ")
    assert posted == {
        "file": f"{folder}/jobs/report.py",
        "args": words,
        "conf": {
            "spark.executor.memory": "4g",
            "spark.sql.shuffle.partitions": "8",
            "spark.executor.extraJavaOptions": "-Dx=1 -Dy=2",
        },
    }
    assert ran["as somebody"]["posted"][0]["proxyUser"] == "somebody"


@pytest.mark.parametrize(
    "end, raised, words",
    [
        ("2", NOT_RETRIED, "exit code 2: bad configuration"),
        ("3", NOT_RETRIED, "exit code 3: bad data"),
        ("real job", NOT_RETRIED, "exit code 2: bad configuration"),
        ("4", RETRIED, "exit code 4: worth a retry"),
        ("kill", RETRIED, "its exit code is not known: worth a retry"),
        ("silent", RETRIED, "its log has no job summary"),
    ],
)
def test_exit_code_in_the_log_decides_whether_the_task_is_retried(
    ran: dict[str, Any], end: str, raised: str, words: str
) -> None:
    """A job of this project writes the line that the runner reads: `real job` has no configuration file."""
    kind, text, _ = ran[end]["outcome"]
    assert (kind, words in text) == (raised, True), text


def test_a_killed_task_and_one_that_takes_too_long_delete_their_batch(ran: dict[str, Any]) -> None:
    assert ran["killed"]["left"] == ran["too slow"]["left"] == []
    assert ran["killed"]["outcome"][0] == RETRIED
    assert ran["too slow"]["outcome"][0] == "AirflowTaskTimeout"


def test_a_retry_first_deletes_the_batch_of_an_attempt_whose_worker_was_lost(ran: dict[str, Any]) -> None:
    lost = ran["worker lost"]
    assert lost["outcome"][0] == ""
    assert len(lost["left"]) == len(lost["last"]) == 1
    assert lost["left"] != lost["last"]


def test_the_sensor_gets_the_plan_from_a_batch(ran: dict[str, Any]) -> None:
    kind, _, plan = ran["plan"]["outcome"]
    assert (kind, plan["raw_log"]["bytes"]) == ("", 7)


@pytest.mark.parametrize(
    "name, words", [("cluster mode", "spark.submit.deployMode"), ("no profile", "conf/spark/nope.conf")]
)
def test_a_profile_that_livy_cannot_use_is_refused(ran: dict[str, Any], name: str, words: str) -> None:
    kind, text, _ = ran[name]["outcome"]
    assert (kind, words in text, "what to do" in text) == (NOT_RETRIED, True, True)
    assert ran[name]["posted"] == []


_LIVY, _PODS = {"kind": "livy"}, {"kind": "kubernetes", "image": "x"}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no mapping": ({"runner": "kubernetes"}, "has runner='kubernetes', but runner must be"),
    "another kind": (
        {"runner": {"kind": "ssh"}},
        "runner.kind='ssh', but the kinds are spark-submit, kubernetes, livy",
    ),
    "a key of another runner": ({"runner": {**_LIVY, "image": "x"}}, "unknown keys ['image'] in runner"),
    "no image": ({"runner": {"kind": "kubernetes"}}, "has neither runner.image nor runner.pod_template"),
    "an empty image": (
        {"runner": {**_PODS, "image": {"default": ""}}},
        "has runner.image={'default': ''}, but",
    ),
    "no such template": (
        {"runner": {**_PODS, "pod_template": "/no.yaml"}},
        "has runner.pod_template='/no.yaml', but",
    ),
    "no amounts": ({"runner": {**_PODS, "resources": {"default": {"cpu": 1}}}}, "has runner.resources="),
    "no time": ({"runner": {**_PODS, "startup_timeout_s": 0}}, "has runner.startup_timeout_s=0, but"),
    "a check by Livy": (
        {"runner": _LIVY, "environment": {}, "check_node": True},
        "sets check_node, which the runner 'livy'",
    ),
    "variables for Livy": (
        {"runner": _LIVY, "check_node": False},
        "sets environment, which the runner 'livy'",
    ),
    "a relative path": ({"runner": _LIVY, "environment": {}}, "needs an absolute path"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_runners_are_refused_with_a_remedy(refusals: dict[str, Any], name: str) -> None:
    kind, text = refusals[name]
    assert kind == NOT_RETRIED
    assert REFUSED[name][1] in text
    assert "the Airflow Variable 'nightrank'" in text
    assert "what to do" in text


@pytest.fixture(scope="module")
def refusals(airflow_setup: AirflowSetup, run_airflow_script: Callable[..., Any]) -> dict[str, Any]:
    base = {key: value for key, value in airflow_setup.home.variable.items() if key != "spark_submit"}
    cases = {name: {**base, **change} for name, (change, _) in REFUSED.items()}
    errors: dict[str, Any] = run_airflow_script("run_misconfigured_stages", json.dumps(cases))["settings"]
    return errors


def test_dags_parse_without_the_providers_and_tasks_say_what_to_install(
    folder: Path, airflow_setup: AirflowSetup, run_airflow_process: Callable[..., Any]
) -> None:
    base = airflow_setup.home.variable
    livy = {"home": str(folder), "config": "/x.yaml", "profiles": base["profiles"], "runner": _LIVY}
    variables = {"spark-submit": base, "kubernetes": {**base, "runner": _PODS}, "livy": livy}
    seen = run_airflow_process("without_providers", json.dumps(variables))
    assert (set(seen["dags"]) - {"late_run"}, seen["import_errors"]) == (NAMES, {})
    packages = {"spark-submit": "apache-spark", "kubernetes": "cncf-kubernetes", "livy": "apache-livy"}
    for runner, package in packages.items():
        kind, text = seen["errors"][runner]
        assert kind == NOT_RETRIED
        assert f"the runner '{runner}' of the Airflow Variable 'nightrank' needs the package" in text
        assert f"what to do: install apache-airflow-providers-{package}" in text
