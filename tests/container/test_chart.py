"""The Helm chart without Helm: its values, its rights, its files, and the run date. test_rendered_chart.py renders it."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from jobs.chain.launchers import STAGE_JOBS
from setup.dist import version
from setup.install import ROOT

pytestmark = pytest.mark.processes

CHART = ROOT / "container/chart"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
TEMPLATES = {path.name: path.read_text() for path in sorted((CHART / "templates").iterdir())}
# What Spark's driver requests of the Kubernetes API. test_rendered_chart.py compares it with the requests of a driver.
VERBS = {
    "pods": {"create", "delete", "deletecollection", "get", "list", "watch"},
    "configmaps": {"create", "deletecollection"},
    "persistentvolumeclaims": {"create", "deletecollection", "list"},
}


def merged(values: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Values as Helm merges them: mappings key by key; other values are replaced."""
    whole = copy.deepcopy(dict(values))
    for key, value in more.items():
        both = isinstance(value, dict) and isinstance(whole.get(key), dict)
        whole[key] = merged(whole[key], value) if both else value
    return whole


def refusals(more: Mapping[str, Any]) -> list[str]:
    """What the schema refuses of values that replace those of the chart."""
    errors = jsonschema.Draft7Validator(SCHEMA).iter_errors(merged(VALUES, more))
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in errors]


def test_the_schema_takes_the_values_of_the_chart_and_of_its_examples() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert {path.stem for path in EXAMPLES} == {"airflow", "executors", "gpus", "one-pod"}
    assert [refusals(yaml.safe_load(path.read_text())) for path in EXAMPLES] == [[], [], [], []]


WRONG = [
    ({"exekutors": {"count": 2}}, "exekutors"),
    ({"executors": {"count": 0}}, "executors.count"),
    ({"executors": {"tolerations": [{"efect": "NoSchedule"}]}}, "executors.tolerations.0"),
    ({"spark": {"master": "yarn"}}, "spark.master"),
    ({"spark": {"properties": {"executor.cores": "4"}}}, "spark.properties"),
    ({"spark": {"properties": {"spark.executor.cores": 4}}}, "spark.properties.spark.executor.cores"),
    ({"profiles": {"default": "on-yarn"}}, "profiles.default"),
    ({"profiles": {"nightly": "cpu"}}, "profiles"),
    ({"lake": {"address": "/mnt/lake"}}, "lake.address"),
    ({"lake": {"claim": {"size": "500"}}}, "lake.claim.size"),
    ({"set": ["score.k"]}, "set.0"),
    ({"nightly": {"schedule": "3 Uhr"}}, "nightly.schedule"),
    ({"nightly": {"resources": {"limits": {"memory": "16 GB"}}}}, "nightly.resources.limits.memory"),
    ({"runs": {"retries": -1}}, "runs.retries"),
    ({"environment": {"POD_IP": "10.0.0.1"}}, "environment"),
    ({"secrets": {"environment": {"PASSWORD": {"value": "x"}}}}, "secrets.environment.PASSWORD"),
    ({"networkPolicy": {"egress": [{"cidr": "10.0.0.0/8"}]}}, "networkPolicy.egress.0"),
    ({"networkPolicy": {"egress": [{"cidr": "anywhere", "ports": [443]}]}}, "networkPolicy.egress.0.cidr"),
    ({"image": {"pullPolicy": "Sometimes"}}, "image.pullPolicy"),
]


@pytest.mark.parametrize("wrong, place", WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_the_schema_refuses_a_wrong_value_and_names_it(wrong: dict[str, Any], place: str) -> None:
    messages = refusals(wrong)
    assert messages
    assert all(
        message.startswith(f"{place}: ") or f"'{place}' was unexpected" in message for message in messages
    )


def leaves(values: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The paths of all values that users set."""
    for key, value in values.items():
        if isinstance(value, dict) and value and key != "resources":
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}"


def properties(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for key, inner in schema["properties"].items():
        while "$ref" in inner:
            inner = SCHEMA["definitions"][inner["$ref"].rpartition("/")[2]]
        if inner.get("properties") and key != "resources":
            yield from properties(inner, f"{path}{key}.")
        else:
            yield f"{path}{key}"


def test_every_value_is_in_the_schema_and_has_an_effect() -> None:
    known = set(properties(SCHEMA)) - {"global"}
    mine = set(leaves(VALUES))
    assert mine <= known
    assert known - mine == {f"profiles.{job}" for job in STAGE_JOBS} - mine
    text = "".join(TEMPLATES.values())
    # nightly and retrain are read as $run.
    names = {
        re.sub(r"^(nightly|retrain)\.", "run.", path) for path in mine if not path.startswith("profiles.")
    }
    read = set(re.findall(r"(?:\.Values|\$values|\$root\.Values|\$)\.?((?:run\.)?[A-Za-z][\w.]*)", text))
    assert names - read == set()


def test_the_driver_has_no_other_rights_than_spark_needs() -> None:
    text = re.sub(r"(?m)^\s*\{\{.*\}\}\s*\n", "", TEMPLATES["access.yaml"])
    text = re.sub(r"\{\{.*?\}\}", "x", text)
    documents = [document for document in yaml.safe_load_all(text) if document]
    (role,) = [document for document in documents if document["kind"] == "Role"]
    assert all(rule["apiGroups"] == [""] for rule in role["rules"])
    assert {rule["resources"][0]: set(rule["verbs"]) for rule in role["rules"]} == VERBS
    assert all(len(rule["resources"]) == 1 for rule in role["rules"])
    assert "ClusterRole" not in "".join(TEMPLATES.values())


def test_the_chart_has_the_files_of_conf_and_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version()
    assert (CHART / "spark").resolve() == ROOT / "conf/spark"
    used = set(re.findall(r'"(spark/[\w./-]+)"', "".join(TEMPLATES.values())))
    assert used == {
        "spark/on-kubernetes.conf",
        "spark/kubernetes/driver.yaml",
        "spark/kubernetes/executor.yaml",
    }
    assert all((CHART / path).is_file() for path in used)
    profiles = {path.stem for path in (ROOT / "conf/spark").glob("*.conf") if not path.stem.startswith("on-")}
    assert {*SCHEMA["definitions"]["profile"]["enum"]} == profiles - {"local"}
    assert SCHEMA["properties"]["profiles"]["properties"].keys() == {"default", *STAGE_JOBS}


def run_script(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs run.sh with a program in place of python, which prints its arguments."""
    python = folder / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", **variables}
    command = ["sh", str(CHART / "run.sh"), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "zone, minutes, run_date",
    [
        ("Etc/UTC", 29464020, "2026-01-07"),  # 2026-01-08 03:00
        ("Asia/Tokyo", 29464020, "2026-01-07"),  # 12:00 there
        ("Asia/Tokyo", 29464740, "2026-01-08"),  # 2026-01-08 15:00, the 9th there
        ("Europe/Berlin", 29580390, "2026-03-29"),  # 00:30 after the day of 23 hours
        ("Europe/Berlin", 29882850, "2026-10-25"),  # 00:30 after the day of 25 hours
        ("America/Santiago", 29811121, "2026-09-05"),  # a day without midnight
    ],
)
def test_a_run_processes_the_day_before_its_schedule(
    tmp_path: Path, zone: str, minutes: int, run_date: str
) -> None:
    done = run_script(tmp_path, "--retrain", JOB_NAME=f"shop-nightly-{minutes}", TIME_ZONE=zone)
    assert done.stdout.split() == [
        *("jobs/nightly.py", "--config", "conf/site/config.yaml", "--run-date", run_date, "--retrain"),
    ], done.stderr


def test_a_run_by_hand_needs_its_date(tmp_path: Path) -> None:
    chosen = run_script(tmp_path, JOB_NAME="shop-by-hand", TIME_ZONE="Etc/UTC", RUN_DATE="2026-01-08")
    assert chosen.stdout.split()[3:] == ["--run-date", "2026-01-08"]
    for name in ("shop-by-hand", "shop-20260108", "shop-1"):
        refused = run_script(tmp_path, JOB_NAME=name, TIME_ZONE="Etc/UTC")
        assert (refused.returncode, refused.stdout) == (2, "")  # the CronJob does not try exit code 2 again
        assert f"the name of the Job, {name}, does not end with the scheduled time" in refused.stderr
        assert "set the variable RUN_DATE" in refused.stderr


def test_a_time_zone_that_the_image_lacks_is_an_error(tmp_path: Path) -> None:
    done = run_script(tmp_path, JOB_NAME="shop-29464020", TIME_ZONE="Europe/Nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert "does not have the time zone Europe/Nowhere" in done.stderr
