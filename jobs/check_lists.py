"""The command line of the stage check_lists."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.check_lists import run

DESCRIPTION = (
    "The published lists of a run date, looked at as a reader would: every file whole, of the champion, "
    "and of the tables that are there now. Changes nothing and needs no Spark session; what is wrong ends "
    "it with exit code 3."
)


if __name__ == "__main__":
    run_job("check_lists", DESCRIPTION, run)
