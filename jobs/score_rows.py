"""The command line of the stage score_rows."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.score_rows import run

DESCRIPTION = (
    "A click probability for every feature row of one split of the run date, by the champion: published "
    "as `scores`."
)


if __name__ == "__main__":
    run_job("score_rows", DESCRIPTION, run)
