"""The command line of the stage score_daily."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.score_daily import run

DESCRIPTION = (
    "Scores the candidates of every user with the champion, in Spark workers, and publishes the top-k "
    "lists as `recommendations`."
)


if __name__ == "__main__":
    run_job("score_daily", DESCRIPTION, run)
