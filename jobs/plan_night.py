"""Reports to a scheduler whether the raw log exists, which steps a run has, and whether lists are published.

The job writes nothing and needs no Spark session, with one exception: if a raw table is in Spark's catalogue,
the job copies the table's rows of the run date.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from etl.raw.files import find_raw, raw_path
from etl.workflow.feature_plan import plan_of
from jobs.chain.steps import ChainStep, RunPlan
from jobs.checks import check_tables
from jobs.runner import run_job
from jobs.table_copies import copy_tables_of_run
from storage.job_summary import JobSummary
from storage.manifest import is_published
from storage.run_context import RunContext

DESCRIPTION = (
    "Reports to a scheduler, before a run, whether the raw log of the day has arrived, which steps the run "
    "has, and whether its lists are already published. Writes nothing, and needs no Spark "
    "session."
)


def run(context: RunContext) -> JobSummary:
    """Reports whether the raw log exists, whether lists are published, and the steps of a run.

    A step is one job for one day. The key `night` of the job summary lists all steps of a run without
    retraining. The key `retraining` lists the steps of a run with retraining that are the same for each
    decision of the gate: the steps up to the gate, and refit_model.
    """
    config, run_date = context.config, context.run_date
    copy_tables_of_run(context, plan_of(config), [run_date])
    with context.phase("raw log"):
        raw_log = find_raw(config, config.log, run_date, context.recorder)
    if raw_log is not None:  # before the log arrives, other tables may be missing too
        check_tables(config, run_date, context.recorder)
    ordinary, retraining = (RunPlan(config, run_date, retrain) for retrain in (False, True))
    lists = context.lake.recommendations if config.keys else context.lake.scores
    path = raw_path(config, config.log, run_date)
    facts: dict[str, Any] = {
        "raw_log": {
            "path": path,
            "files": len(raw_log.paths) if raw_log else 0,
            "bytes": raw_log.bytes if raw_log else 0,
        },
        "published": is_published(lists.partition(run_date)),
        "night": _as_dicts([*ordinary.steps_before_gate(), *ordinary.steps_after_gate()]),
        "retraining": _as_dicts(retraining.steps_before_gate()),
    }
    return JobSummary(output=path, facts=facts)


def _as_dicts(steps: list[ChainStep]) -> list[dict[str, Any]]:
    """Converts the steps to JSON objects."""
    return [asdict(step) for step in steps]


if __name__ == "__main__":
    run_job("plan_night", DESCRIPTION, run)
