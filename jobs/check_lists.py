"""The command line of the stage check_lists."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.check_lists import run

DESCRIPTION = (
    "Checks the published lists of a run date: every file must be complete, and the lists must come from "
    "the current champion and from the tables that are published now. Changes nothing and needs no Spark "
    "session. Ends with exit code 3 if a check fails."
)


if __name__ == "__main__":
    run_job("check_lists", DESCRIPTION, run)
