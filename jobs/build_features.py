"""The command line of the stage build_features."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.build_features import run

DESCRIPTION = (
    "Builds features from the raw click log. Publishes the quarantine, the data report, the workflow, "
    "feature partitions, users, items, and the dataset of the run date."
)


if __name__ == "__main__":
    run_job("build_features", DESCRIPTION, run)
