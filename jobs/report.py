"""The command line of the stage report."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.report import run

DESCRIPTION = (
    "Writes <lake>/reports/<run date>.html: key figures, data summary, data quality, training curve, "
    "calibration, score distribution, coverage, some lists and the seconds of each stage. The report is "
    "one file that can be read offline. If a stage has not run yet, the report says so."
)


if __name__ == "__main__":
    run_job("report", DESCRIPTION, run)
