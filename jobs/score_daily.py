"""The command line of the stage score_daily."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.score_daily import run

DESCRIPTION = (
    "The champion's top-k items for every user: users × candidates scored in Spark workers, published as "
    "`recommendations`."
)


if __name__ == "__main__":
    run_job("score_daily", DESCRIPTION, run)
