"""The command line of the stage build_candidates."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.build_candidates import run

DESCRIPTION = (
    "Selects the items that are scored for each user, from the tables of users and items and from past "
    "clicks. Publishes `candidate_items` and `candidates`."
)


if __name__ == "__main__":
    run_job("build_candidates", DESCRIPTION, run)
