"""`check_node` of the Variable: a job starts only on a worker that can run it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from local_airflow.home import local_variable
from tests.airflow.airflow_setup import CONFIG, LOCAL_MASTER, ROOT, AirflowSetup
from tests.airflow.test_dags import NOT_RETRIED, RETRIED
from tests.setup.doctor.fake_horovod import write_horovod

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def checked(
    airflow_setup: AirflowSetup,
    run_airflow_script: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """Error, message, whether the job was started, and log of a task, for each Variable."""
    folder = tmp_path_factory.mktemp("checked")
    fine, large = folder / "fine.conf", folder / "large.conf"
    fine.write_text("spark.driver.memory 512m\nspark.driver.host 127.0.0.1\n")
    large.write_text("spark.driver.memory 900t\nspark.driver.host 127.0.0.1\n")
    lone = folder / "spark-submit"  # without a program `python` beside it
    lone.write_text("#!/bin/sh\n")
    lone.chmod(0o755)
    (folder / "jobs").mkdir()
    # This checkout with a package in place of Horovod, whose import of torch takes most of the time of the checks.
    home = folder / "checkout"
    write_horovod(home)
    for path in ROOT.iterdir():
        (home / path.name).symlink_to(path)
    base = {
        **local_variable(CONFIG, [f"lake={airflow_setup.lake}"]),
        "home": str(home),
        "spark_submit": str(airflow_setup.folder / "spark-submit"),
        "profiles": {"default": str(large), "report": str(fine)},
        "check_node": True,
    }
    variables = {
        "a worker that can run it": base,
        "a worker that is too small": {**base, "profiles": {"default": str(large)}},
        "not checked": {**base, "profiles": {"default": str(large)}, "check_node": False},
        "a wrong override": {**base, "set": ["train.nope=1"]},
        "no interpreter": {**base, "spark_submit": str(lone)},
        "no checks": {**base, "home": str(folder)},
        "no truth value": {**base, "check_node": "yes"},
    }
    path = folder / "variables.json"
    path.write_text(json.dumps(variables))
    connection = json.dumps({"conn_type": "spark", "host": LOCAL_MASTER})
    results: dict[str, Any] = run_airflow_script(
        "check_workers",
        str(path),
        PLANNED_ENDS=str(airflow_setup.planned_ends),
        AIRFLOW_CONN_SPARK_DEFAULT=connection,
    )
    return results


def test_a_job_starts_on_a_worker_that_can_run_it(checked: dict[str, Any]) -> None:
    error, message, started, log = checked["a worker that can run it"]
    if "FIX" in log:
        pytest.skip(f"this machine has too little of something: {log}")
    assert (error, started) == (RETRIED, True)
    assert "report ended with exit code 4" in message
    assert "this node can run the jobs of the profile" in log
    assert "ok   lake" in log


def test_a_worker_that_is_too_small_starts_nothing_and_another_may_try(checked: dict[str, Any]) -> None:
    """The master of the connection decides: with local[2], the driver's memory counts."""
    error, message, started, log = checked["a worker that is too small"]
    assert (error, started) == (RETRIED, False)
    assert message.startswith("this worker cannot run report: worth a retry\nFIX  memory")
    assert "ok  " not in message
    assert any(line.startswith(("ok   Java", "WARN Java")) for line in log.splitlines())


def test_without_the_key_nothing_is_checked(checked: dict[str, Any]) -> None:
    error, message, started, log = checked["not checked"]
    assert (error, started) == (RETRIED, True)
    assert "report ended with exit code 4" in message
    assert "Checks of this worker" not in log


@pytest.mark.parametrize(
    "name, words",
    [
        ("a wrong override", "unknown key train.nope"),
        ("no interpreter", "needs a program `python` in the folder of"),
        ("no checks", "needs the folder setup/doctor"),
        ("no truth value", "check_node='yes', but the value must be true or false"),
    ],
)
def test_wrong_settings_are_not_retried(checked: dict[str, Any], name: str, words: str) -> None:
    error, message, started, _ = checked[name]
    assert (error, started) == (NOT_RETRIED, False)
    assert words in message
