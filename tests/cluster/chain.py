"""The whole chain on a tiny generated log: in this process on local[2], and a profile for a cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pandas as pd
from pyspark.sql import SparkSession

from conf.load import load_config
from spark.profile import read_properties
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.etl.cases import read_rows
from tests.processes import ROOT
from tests.standalone import Cluster

CONFIG = "conf/datasets/generated.yaml"
FIRST, RUN_DATE = "2026-01-01", "2026-01-04"
# (job, run date), in the order of a run that trains.
CHAIN = (
    ("generate_clicks", FIRST),
    ("build_features", RUN_DATE),
    ("train_model", RUN_DATE),
    ("evaluate_model", RUN_DATE),
    ("build_candidates", RUN_DATE),
    ("score_daily", RUN_DATE),
    ("report", RUN_DATE),
)
# What an executor logs when a task starts.
STARTED = "Executor: Running task"
# Start-up is most of such small jobs' time; local.conf and setup/env.sh say the same of the driver.
_QUICK = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 {os.environ.get('SPARK_SUBMIT_OPTS', '')}"
LOG = (
    "generate.days=4",
    "generate.rows_per_day=3000",
    "generate.users=300",
    "generate.items=80",
    "generate.files_per_day=2",
    "split.train_days=2",
    "split.min_train_days=2",
    "output.row_group_rows=1024",
    "train.num_ranks=2",
    "train.global_batch_size=512",
    "train.epochs=1",
    "train.baselines=[]",
    "train.refit=false",
)


@dataclass
class Lakes:
    """`alone` was made by the checkout on local[2], `spread` by the archive on the cluster.

    Attributes:
        profile: of all jobs of `spread` but the training.
        tasks: how many tasks a job of `spread` had.
        training: the id of the training's application.
    """

    alone: Path
    spread: Path
    profile: Path
    tasks: dict[str, int]
    training: str = ""


def overrides(lake: Path) -> list[str]:
    """What `--set` says of a lake."""
    return [*LOG, f"lake={lake}", "workflow.mode=retrain"]


def run_in_process(spark: SparkSession, lake: Path) -> None:
    """The chain in the session of this process."""
    config = load_config(str(ROOT / CONFIG), overrides(lake))
    for name, run_date in CHAIN:
        import_module(f"jobs.{name}").run(RunContext(name, config, run_date, _spark=spark))


def write_profile(
    path: Path, cluster: Cluster, python: str, more: Mapping[str, str] | None = None, root: Path = ROOT
) -> Path:
    """Writes conf/spark's profile for a standalone cluster, with one executor of one core for each worker."""
    settings = {}
    for name in ("cpu", "on-standalone"):
        settings |= read_properties(root / f"conf/spark/{name}.conf")
    settings |= {
        "spark.master": cluster.master,
        "spark.pyspark.python": python,
        "spark.pyspark.driver.python": python,
        "spark.executor.cores": "1",
        "spark.cores.max": str(len(cluster.workers)),
        # No job is over before the second executor is up.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.executor.memory": "1g",
        "spark.executor.extraJavaOptions": _QUICK,
        "spark.driver.extraJavaOptions": _QUICK,
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "4",
        "spark.buffer.pageSize": "2m",
        "spark.local.dir": str(path.parent / "scratch"),
        "spark.sql.ui.explainMode": "simple",
        **cluster.security,
    }
    path.write_text("".join(f"{key} {value}\n" for key, value in (settings | dict(more or {})).items()))
    return path


def lists(lake: Path) -> pd.DataFrame:
    """The recommendations of a lake, sorted by user and position."""
    rows = read_rows(LakePaths(str(lake)).recommendations.partition(RUN_DATE))
    return rows.sort_values(["user_id", "position"], ignore_index=True)
