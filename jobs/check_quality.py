"""The command line of the stage check_quality."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.check_quality import run

DESCRIPTION = (
    "Raw click log → quarantine and data report alone: whether a day's log may be built on, as "
    "build_features asks first of all. What it publishes is what build_features would, which then leaves "
    "it as it is. Past a limit of the section `quality` it ends with exit code 3."
)


if __name__ == "__main__":
    run_job("check_quality", DESCRIPTION, run)
