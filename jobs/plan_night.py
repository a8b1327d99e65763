"""What a scheduler must know before a night begins: whether the day's raw log is there, which steps the night has, and
whether its lists are published already. Writes nothing, and needs no Spark session unless the log lies on HDFS.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from etl.raw.files import find_raw, raw_path
from jobs.chain.steps import Night, Step
from jobs.checks import check_tables
from jobs.runner import run_job
from storage.job_summary import JobSummary
from storage.manifest import is_published
from storage.run_context import RunContext


def plan_night(context: RunContext) -> JobSummary:
    """Facts: `raw_log` (its path, files and bytes), `published`, and the steps of an ordinary night and of a retraining."""
    config, run_date = context.config, context.run_date
    with context.phase("raw log"):
        found = find_raw(config, config.log, run_date, context.recorder)
    if found is not None:  # until then the day is waited for, and tables may come with it
        check_tables(config, run_date, context.recorder)
    night, training = (Night(config, run_date, retrain) for retrain in (False, True))
    lists = context.lake.recommendations if config.keys else context.lake.scores
    path = raw_path(config, config.log, run_date)
    facts: dict[str, Any] = {
        "raw_log": {
            "path": path,
            "files": len(found.paths) if found else 0,
            "bytes": found.bytes if found else 0,
        },
        "published": is_published(lists.partition(run_date)),
        "night": _steps([*night.preparing(), *night.serving()]),
        "retraining": _steps(training.preparing()),
    }
    return JobSummary(output=path, facts=facts)


def _steps(steps: list[Step]) -> list[dict[str, Any]]:
    return [asdict(step) for step in steps]


if __name__ == "__main__":
    run_job("plan_night", __doc__ or "", plan_night)
