"""The command line of the stage check_quality."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.check_quality import run

DESCRIPTION = (
    "Checks whether the raw log of a day can be used. build_features begins with the same checks. "
    "Publishes the quarantine and the data report, which build_features then does not change. Ends with "
    "exit code 3 if the log exceeds a limit of the section `quality`."
)


if __name__ == "__main__":
    run_job("check_quality", DESCRIPTION, run)
