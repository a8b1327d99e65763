"""The command line of the stage measure_recommendations."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.measure_recommendations import run

DESCRIPTION = (
    "Compares the lists of a date with later clicks: hit rate, NDCG and coverage of the lists and of the "
    "most popular items, and the recall of the candidates. Users without a row in the train split are "
    "measured separately, because the model was not trained on their rows. For a log of "
    "generate_clicks, the job also measures the best possible lists, by the true probabilities."
)


if __name__ == "__main__":
    run_job("measure_recommendations", DESCRIPTION, run)
