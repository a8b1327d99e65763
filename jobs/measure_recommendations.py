"""The command line of the stage measure_recommendations."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.measure_recommendations import run

DESCRIPTION = (
    "The lists of a date against the clicks that followed: hit rate, NDCG and coverage, beside those of "
    "the most popular items; and what the candidates held of these clicks. Users without a row in train "
    "are measured apart: to the popular items and to the model alike they are cold."
)


if __name__ == "__main__":
    run_job("measure_recommendations", DESCRIPTION, run)
