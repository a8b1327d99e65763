"""The command line of the stage deliver_recommendations."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.deliver_recommendations import run

DESCRIPTION = (
    "Copies the published lists of a date to the sinks of the section `deliver`: PostgreSQL tables, files of "
    "JSON lines or CSV, Redis, or sinks of other packages."
)


if __name__ == "__main__":
    run_job("deliver_recommendations", DESCRIPTION, run)
