"""The command line of the stage plan_night."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.plan_night import run

DESCRIPTION = (
    "What a scheduler must know before a night begins: whether the day's raw log is there, which steps "
    "the night has, and whether its lists are published already. Writes nothing, and needs no Spark "
    "session unless the log lies on HDFS."
)


if __name__ == "__main__":
    run_job("plan_night", DESCRIPTION, run)
