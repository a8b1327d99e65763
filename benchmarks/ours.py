"""Our job build_features as a contender of the ETL benchmarks: one command, from its start to its end.

`python jobs/build_features.py` runs its tasks in processes of this machine and starts no JVM. `spark-submit`
starts a JVM, whose Python workers run the same tasks. The job does work that the peers do not do:

* It assigns a line number to every line, and checks that the line can be parsed. It would quarantine malformed
  lines.
* It makes a data report: profiles of all days, and a comparison of the last day with the days of the fit.
* It computes exact means and standard deviations of the 13 integer columns, and uses them to normalise the
  columns.
* It stores the counts of rare values, from which a later run can extend the vocabularies.
* It distributes rows evenly over files.
* It verifies its files by their statistics, and publishes all tables by manifests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.contender import Outcome, Task
from conf.load import load_config
from conf.types import SPLITS
from storage import file_io
from storage.dataset import read_dataset, split_partitions
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "benchmarks/etl_criteo.yaml"
# The configuration of a log without dates, as it is shipped, and the date of its run.
CRITEO, RUN_DATE = ROOT / "conf/datasets/criteo.yaml", "2026-01-04"
PROFILE = ROOT / "conf/spark/local.conf"


def command(task: Task, python: str, submitted: bool) -> list[str]:
    """Returns the command that runs the job: with spark-submit if `submitted`, and otherwise with Python."""
    runner = [python]
    if submitted:
        properties = {"spark.local.dir": task.scratch, "spark.sql.warehouse.dir": f"{task.scratch}/warehouse"}
        runner = [str(Path(python).with_name("spark-submit")), "--properties-file", str(PROFILE)]
        runner += ["--master", f"local[{task.threads}]"]
        for name, value in properties.items():
            runner += ["--conf", f"{name}={value}"]
    options = ["--config", str(_config(task)), "--run-date", _run_date(task)]
    for override in _overrides(task):
        options += ["--set", override]
    return [*runner, str(ROOT / "jobs/build_features.py"), *options]


def report(task: Task, log: str) -> dict[str, Any]:
    """Returns the report of the job (benchmarks.contender.run), from its tables and its log.

    The spans are the phases of the job. They are numbers of seconds, one after the other from 0.
    """
    lake = LakePaths(load_config(str(_config(task)), _overrides(task)).lake)
    dataset = read_dataset(lake, _run_date(task))
    files: dict[str, list[str]] = {}
    if task.shares:
        for split in SPLITS:
            files[split] = [
                file
                for partition, manifest, label in split_partitions(lake, dataset, split)
                for file in data_files(partition, manifest, label)
            ]
    else:
        table = lake.features(dataset.workflow_version)
        for day in task.days:
            partition = table.partition(day.dt)
            files[day.dt] = data_files(partition, read_manifest(partition))
    outcome = Outcome(
        files=files,
        normalised=_normalised(lake, dataset.workflow_version),
        facts={"workflow": dataset.workflow_version},
    )
    return {"spans": _phases(log), **asdict(outcome)}


def _config(task: Task) -> Path:
    return CRITEO if task.shares else CONFIG


def _run_date(task: Task) -> str:
    return RUN_DATE if task.shares else max(day.dt for day in task.days)


def _overrides(task: Task) -> list[str]:
    """Returns the values for the job's option --set.

    The task has two settings: `data` is the folder of the log, and `overrides` are further values.
    """
    train = sum(day.train for day in task.days)
    by_day = [
        "split.by=day",
        f"split.train_days={train}",
        f"split.validation_days={len(task.days) - train - 1}",
        "split.test_days=1",
    ]
    return [
        f"data={task.settings['data']}",
        f"lake={task.out}/lake",
        *([] if task.shares else by_day),
        *task.settings["overrides"],
    ]


def _phases(log: str) -> Mapping[str, tuple[float, float]]:
    lines = [line for line in log.splitlines() if line.startswith('{"job": "build_features"')]
    spans, clock = {}, 0.0
    for phase, seconds in json.loads(lines[-1])["seconds"].items():
        if phase != "total":
            spans[phase] = (clock, clock + seconds)
            clock += seconds
    return spans


def _normalised(lake: LakePaths, version: str) -> dict[str, tuple[float, float]]:
    """Returns the mean and standard deviation of each normalised column, as the workflow has stored them.

    The comparison of tables uses these values to undo the normalisation.
    """
    stored = file_io.read_json(f"{lake.workflow(version)}/workflow.json")
    return {
        step["outputs"][0]: (step["state"]["mean"], step["state"]["std"])
        for chain in stored["chains"]
        for step in chain["steps"]
        if step["op"] == "normalize"
    }
