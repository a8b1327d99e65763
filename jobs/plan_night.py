"""The command line of the stage plan_night."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.plan_night import run

DESCRIPTION = (
    "Reports to a scheduler, before a run, whether the raw log of the day has arrived, which steps the run "
    "has, and whether its lists are already published. Writes nothing, and needs no Spark "
    "session."
)


if __name__ == "__main__":
    run_job("plan_night", DESCRIPTION, run)
