"""What a scheduler must know before a night begins: whether the day's raw log is there, which steps the night has, and
whether its lists are published already. Writes nothing, and needs no Spark session unless the log lies on HDFS.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from conf.manifest import is_published
from etl.raw_files import find_raw, raw_path
from jobs.checks import check_tables
from jobs.night.plan import Night, Step
from jobs.runner import Job, Result, run


def plan_night(job: Job) -> Result:
    """Facts: `raw_log` (its path, files and bytes), `published`, and the steps of an ordinary night and of a retraining."""
    config, run_date = job.config, job.run_date
    with job.phase("raw log"):
        found = find_raw(config, config.log, run_date)
    if found is not None:  # until then the day is waited for, and tables may come with it
        check_tables(config, run_date)
    night, training = (Night(config, run_date, retrain) for retrain in (False, True))
    lists = job.lake.recommendations if config.keys else job.lake.scores
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
    return Result(output=path, facts=facts)


def _steps(steps: list[Step]) -> list[dict[str, Any]]:
    return [asdict(step) for step in steps]


if __name__ == "__main__":
    run("plan_night", __doc__ or "", plan_night)
