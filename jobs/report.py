"""The command line of the stage report."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.report import run

DESCRIPTION = (
    "Writes <lake>/reports/<run date>.html: key figures, data summary, data quality, training curve, "
    "calibration, score distribution, coverage, a few lists and the stages' seconds. One file that opens "
    "offline. What has not run yet is said in its place."
)


if __name__ == "__main__":
    run_job("report", DESCRIPTION, run)
