"""The command line of the stage score_rows."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.score_rows import run

DESCRIPTION = (
    "Computes the champion's click probability for every feature row of one split of the run date, and "
    "publishes the probabilities as `scores`."
)


if __name__ == "__main__":
    run_job("score_rows", DESCRIPTION, run)
