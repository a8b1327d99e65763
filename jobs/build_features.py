"""The command line of the stage build_features."""

from __future__ import annotations

from conf.lazy_imports import refuse_pandas
from spark.fork_server import start_server_early

DESCRIPTION = (
    "Builds features from the raw click log. Publishes the quarantine, the data report, the workflow, "
    "feature partitions, users, items, and the dataset of the run date."
)


def main() -> None:
    """Runs the job. The processes that read the log start while the other modules are imported.

    Until a Spark session needs pandas, imports of pandas are refused, because they take time.
    """
    start_server_early()
    refuse_pandas()
    from jobs.runner import run_job
    from jobs.stages.build_features import run

    run_job("build_features", DESCRIPTION, run)


if __name__ == "__main__":
    main()
