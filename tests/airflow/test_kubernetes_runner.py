"""The runner `kubernetes` with Airflow's real operator, against an API that checks pods and runs them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.airflow_setup import ROOT, AirflowSetup
from tests.airflow.test_dags import NOT_RETRIED, RETRIED

pytestmark = pytest.mark.timeout(600)

# A job that ends as the environment variable END says (`slow`: with 0, after some seconds), and whose job summary repeats how it was started.
JOB = """import json, os, signal, sys, time
print("a line on standard error", file=sys.stderr, flush=True)
end = os.environ["END"]
if end == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep({"hang": 60, "slow": 4}.get(end, 0))
end = "0" if end == "slow" else end
names = ("POD_IP", "POD_NAME", "PYSPARK_SUBMIT_ARGS", "LITERAL")
started = {"words": sys.argv[1:], "folder": os.getcwd(), **{name: os.environ.get(name) for name in names}}
plan = {"raw_log": {"bytes": 7, "path": "x"}, "published": False, "night": [], "retraining": []}
if end == "0":
    print(json.dumps({"job": sys.argv[0], "seconds": {}, **started, **plan}), flush=True)
sys.exit(0 if end == "silent" else 4 if end == "lost" else int(end))
"""
DOCTOR = 'import os, sys; print("doctor", sys.argv[1:]); sys.exit(int(os.environ["DOCTOR"]))\n'
SUBMIT = '#!/bin/sh\nexec {python} {home}/jobs/report.py spark-submit "$@"\n'
CLUSTER = "k8s://https://kubernetes.default.svc"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that takes the place of /opt/nightrank in the image of the pods."""
    home = tmp_path_factory.mktemp("image")
    for folder in ("jobs", "bin", "setup/doctor"):
        (home / folder).mkdir(parents=True)
    for job in ("report", "plan_night"):
        (home / f"jobs/{job}.py").write_text(JOB)
    (home / "setup/doctor/__main__.py").write_text(DOCTOR)
    (home / "bin/python").symlink_to(sys.executable)
    (home / "bin/spark-submit").write_text(SUBMIT.format(python=sys.executable, home=home))
    (home / "bin/spark-submit").chmod(0o755)
    return home


@pytest.fixture(scope="module")
def ran(
    image: Path,
    airflow_setup: AirflowSetup,
    run_airflow_script: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """Outcome of the task, bodies of its pods, and number of deleted pods, for each Variable."""
    runner = {"kind": "kubernetes", "image": "nightrank:1", "namespace": "night"}

    def variable(end: str, **more: Any) -> dict[str, Any]:
        environment = {"END": end, "LITERAL": "$(END) $$", **more.pop("environment", {})}
        return {
            "home": str(image),
            "config": "my.yaml",
            "profiles": {"default": "conf/a.conf"},
            "set": ["data=/x/$(END)"],
            "spark_submit": f"{image}/bin/spark-submit",
            "environment": environment,
            "runner": {**runner, **more.pop("runner", {})},
            **more,
        }

    full = {
        "image": {"default": "nightrank:1", "report": "nightrank:2"},
        "service_account": "writer",
        "resources": {"report": {"requests": {"cpu": 2, "memory": "4Gi"}, "limits": {"nvidia.com/gpu": 1}}},
        "pod_template": str(ROOT / "conf/spark/kubernetes/driver.yaml"),
    }
    variables = {end: variable(end) for end in ("0", "2", "3", "4", "134", "kill", "lost", "silent")} | {
        "killed": variable("hang"),
        "too slow": variable("hang"),
        "worker lost": variable("slow"),
        "plan": variable("0"),
        "cut": variable("0", environment={"LOG_IS_CUT": "1"}),
        "cluster": {**variable("0", runner=full), "master": CLUSTER},
        "standalone": {**variable("0"), "master": "spark://head:7077"},
        "checked": variable("0", check_node=True, environment={"DOCTOR": "0"}),
        "not ready": variable("0", check_node=True, environment={"DOCTOR": "1"}),
        "wrong check": variable("0", check_node=True, environment={"DOCTOR": "2"}),
        "no namespace": variable("0", runner={"namespace": "day"}),
        "no image": variable(
            "0", runner={"image": {"train_model": "x"}, "pod_template": full["pod_template"]}
        ),
        "no API": variable("0", runner={"connection": "of_nobody"}),
    }
    path = tmp_path_factory.mktemp("pods") / "variables.json"
    path.write_text(json.dumps(variables))
    results: dict[str, Any] = run_airflow_script("run_in_pods", str(path))
    return results


def test_a_pod_runs_the_script_of_the_job_with_its_arguments(ran: dict[str, Any], image: Path) -> None:
    """Kubernetes replaces no variable in the arguments and the environment of the settings."""
    kind, text, summary = ran["0"]["outcome"]
    assert (kind, text) == ("", "")
    assert summary["words"] == (
        ["--config", "my.yaml", "--run-date", "2026-01-04", "--set", "data=/x/$(END)", "--set", "score.k=3"]
    )
    assert summary["folder"] == str(image)
    assert summary["LITERAL"] == "$(END) $$"
    assert summary["PYSPARK_SUBMIT_ARGS"] == (
        "--master 'local[3]' --properties-file conf/a.conf --name 'nightrank report 2026-01-04' "
        "--deploy-mode client pyspark-shell"
    )
    (pod,) = ran["0"]["pods"]
    assert pod["metadata"]["name"].startswith("nightrank-report-2026-01-04-")
    assert pod["spec"]["restartPolicy"] == "Never"
    assert (ran["0"]["deleted"], ran["0"]["left"]) == (1, [])


@pytest.mark.parametrize(
    "end, raised, code",
    [
        ("2", NOT_RETRIED, "2: bad configuration"),
        ("3", NOT_RETRIED, "3: bad data"),
        ("4", RETRIED, "4: worth a retry"),
        ("134", RETRIED, "134: worth a retry"),
        ("kill", RETRIED, "137: worth a retry"),
    ],
)
def test_exit_code_of_the_pod_decides_whether_the_task_is_retried(
    ran: dict[str, Any], end: str, raised: str, code: str
) -> None:
    kind, text, _ = ran[end]["outcome"]
    assert kind == raised
    assert f"report ended with exit code {code}" in text
    assert ran[end]["left"] == []


def test_a_lost_pod_and_a_missing_summary_are_retried(ran: dict[str, Any]) -> None:
    kind, text, _ = ran["lost"]["outcome"]
    assert (kind, "its exit code is not known: worth a retry" in text) == (RETRIED, True)
    kind, text, _ = ran["silent"]["outcome"]
    assert (kind, "its log has no job summary" in text) == (RETRIED, True)


def test_the_summary_is_read_again_if_following_the_log_was_interrupted(ran: dict[str, Any]) -> None:
    kind, text, summary = ran["cut"]["outcome"]
    assert (kind, text) == ("", "")
    assert summary["words"][:2] == ["--config", "my.yaml"]


def test_a_killed_task_and_one_that_takes_too_long_delete_their_pod(ran: dict[str, Any]) -> None:
    assert ran["killed"]["left"] == ran["too slow"]["left"] == []
    assert ran["killed"]["deleted"] == ran["too slow"]["deleted"] == 1
    assert ran["killed"]["outcome"][0] == RETRIED
    assert ran["too slow"]["outcome"][0] == "AirflowTaskTimeout"


def test_the_next_attempt_continues_with_the_pod_of_a_lost_worker(ran: dict[str, Any]) -> None:
    """Two pods of the same stage would write the same tables at the same time."""
    kind, text, summary = ran["worker lost"]["outcome"]
    assert (kind, text) == ("", "")
    (pod,) = ran["worker lost"]["pods"]
    assert summary["POD_NAME"] == pod["metadata"]["name"]
    assert ran["worker lost"]["left"] == []


def test_the_sensor_gets_the_plan_from_a_pod(ran: dict[str, Any]) -> None:
    kind, text, plan = ran["plan"]["outcome"]
    assert (kind, text) == ("", "")
    assert plan["raw_log"]["bytes"] == 7
    assert plan["words"][:4] == ["--config", "my.yaml", "--run-date", "2026-01-04"]


def test_with_executors_the_pod_is_the_driver_of_spark_submit(ran: dict[str, Any], image: Path) -> None:
    for name in ("cluster", "standalone"):
        assert ran[name]["outcome"][:2] == ["", ""]
    summary = ran["cluster"]["outcome"][2]
    job = [f"{image}/jobs/report.py", "--config", "my.yaml"]
    options = ["spark-submit", "--master", CLUSTER, "--properties-file", "conf/a.conf"]
    assert summary["words"][:5] == options
    words = " ".join(summary["words"])
    assert "--deploy-mode client --conf spark.driver.host=10.0.0.7" in words
    assert f"--conf spark.kubernetes.driver.pod.name={summary['POD_NAME']} {' '.join(job)}" in words
    assert summary["PYSPARK_SUBMIT_ARGS"] is None
    words = " ".join(ran["standalone"]["outcome"][2]["words"])
    assert "--master spark://head:7077" in words
    assert "driver.pod.name" not in words


def test_the_pod_has_image_resources_and_template_of_the_settings(ran: dict[str, Any]) -> None:
    spec = ran["cluster"]["pods"][0]["spec"]
    (container,) = spec["containers"]
    assert container["image"] == "nightrank:2"
    assert container["resources"] == {
        "requests": {"cpu": "2", "memory": "4Gi"},
        "limits": {"nvidia.com/gpu": "1"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert (spec["serviceAccountName"], spec["securityContext"]["runAsUser"]) == ("writer", 10001)


def test_the_node_is_checked_in_the_pod_before_the_job(ran: dict[str, Any]) -> None:
    assert ran["checked"]["outcome"][:2] == ["", ""]
    kind, text, _ = ran["not ready"]["outcome"]
    assert (kind, "ended with exit code 1: worth a retry" in text) == (RETRIED, True)
    kind, text, _ = ran["wrong check"]["outcome"]
    assert (kind, "ended with exit code 2" in text) == (NOT_RETRIED, True)


def test_a_pod_that_the_api_refuses_is_not_retried_and_an_api_that_is_down_is(ran: dict[str, Any]) -> None:
    for name, answer in (("no namespace", "answered 404"), ("no image", "Required value")):
        kind, text, _ = ran[name]["outcome"]
        assert kind == NOT_RETRIED
        assert answer in text
        assert "correct the key `runner` of the Airflow Variable 'nightrank'" in text
    kind, text, _ = ran["no API"]["outcome"]
    assert (kind, "the Kubernetes API cannot be reached" in text) == (RETRIED, True)
