"""Builds features from the raw click log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conf.lazy_imports import refuse_pandas
from spark.fork_server import start_server_early

if TYPE_CHECKING:
    from storage.job_summary import JobSummary
    from storage.run_context import RunContext

DESCRIPTION = (
    "Builds features from the raw click log. Publishes the quarantine, the data report, the workflow, "
    "feature partitions, users, items, and the dataset of the run date."
)


def run(context: RunContext) -> JobSummary:
    """Reads the raw log up to the run date, and publishes the tables that training and scoring read."""
    from jobs.features_of_run import build_of_run

    return build_of_run(context)


def main() -> None:
    """Runs the job.

    The processes that read the log start while this function imports the other modules of the job. The import
    of pandas takes time, so `refuse_pandas` blocks this import until a Spark session needs pandas.
    """
    start_server_early()
    refuse_pandas()
    from jobs.features_of_run import build_of_run
    from jobs.runner import run_job

    run_job("build_features", DESCRIPTION, build_of_run)


if __name__ == "__main__":
    main()
