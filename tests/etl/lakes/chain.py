"""Runs all stages of two days on a lake in one process, and erases a user at the end.

Run it as `python -m tests.etl.lakes.chain LAKE auto|sql`. With `sql`, all stages use Spark; with `auto`, the
process cannot start Spark.
"""

from __future__ import annotations

import sys
from importlib import import_module

from pyspark.sql import SparkSession

from conf.lazy_imports import allow_pandas
from conf.load import load_config
from jobs import erase_user, prune
from jobs.chain.steps import RunPlan
from jobs.runner import SharedSession
from storage.manifest import read_manifest
from storage.paths import LakePaths
from storage.read_parquet import read_table
from storage.run_context import RunContext

CONFIG = "conf/datasets/generated.yaml"
FIRST_DAY, RUN_DATES = "2026-01-01", ("2026-01-04", "2026-01-05")
KEPT_DAYS = 4
SETTINGS = [
    "generate.days=5",
    "generate.rows_per_day=3000",
    "generate.users=200",
    "generate.items=60",
    "generate.files_per_day=1",
    "split.train_days=2",
    "split.min_train_days=2",
    "output.row_group_rows=1024",
    "train.global_batch_size=512",
    "train.baselines=[]",
    "train.checkpoint_every_steps=4",
    "gate.margin=0.1",
    "gate.lists_margin=0.1",
]


class Chain:
    """The stages on one lake."""

    def __init__(self, root: str, engine: str) -> None:
        sink = f"{{kind: json_lines, name: files, path: {root}-files, users_per_file: 100}}"
        self._settings = [*SETTINGS, f"lake={root}", f"workflow.engine={engine}", f"deliver.sinks=[{sink}]"]
        self._lake, self._has_spark, self._sessions = LakePaths(root), engine == "sql", SharedSession()

    def run(self) -> None:
        """Runs the stages of both days, and erases the first user of the lists."""
        self._run("generate_clicks", FIRST_DAY)
        for number, run_date in enumerate(RUN_DATES):
            plan = RunPlan(load_config(CONFIG, self._settings), run_date, retrain=number == 0)
            for steps in (plan.steps_before_gate, plan.steps_after_gate):
                for step in steps():
                    self._run(step.job, step.run_date, step.overrides)
        lists = self._lake.recommendations.partition(RUN_DATES[-1])
        user = read_table(lists, read_manifest(lists))["user_id"][0].as_py()
        erase_user.run(self._context("erase_user", RUN_DATES[-1]), [user], dry_run=False)
        prune.run(self._context("prune", RUN_DATES[-1]), KEPT_DAYS, dry_run=False)
        self._sessions.stop()

    def _run(self, job: str, run_date: str, overrides: tuple[str, ...] = ()) -> None:
        import_module(f"jobs.{job}").run(self._context(job, run_date, overrides))

    def _context(self, job: str, run_date: str, overrides: tuple[str, ...] = ()) -> RunContext:
        config = load_config(CONFIG, [*self._settings, *overrides])
        return RunContext(job, config, run_date, open_session=self._session)

    def _session(self, context: RunContext) -> SparkSession:
        assert self._has_spark, f"{context.name} starts Spark"
        allow_pandas()
        return self._sessions.get(context)


if __name__ == "__main__":
    Chain(*sys.argv[1:]).run()
