"""Checks whether the raw log of a day can be used; build_features begins with the same checks.

The job publishes the quarantine and the data report; build_features later leaves both unchanged. Raises
DataError if the log exceeds a limit of the section `quality`.
"""

from __future__ import annotations

from collections import Counter

from etl.build import applied_features
from etl.passes import check_days, raw_days
from etl.quality.day_counts import misdated_rows
from etl.workflow.feature_plan import plan_of
from jobs.features_of_run import workflows_of_run
from jobs.runner import run_job
from jobs.table_copies import copy_tables_of_run
from spark.choose_workers import choose_workers
from storage.job_summary import JobSummary
from storage.run_context import RunContext

DESCRIPTION = (
    "Checks whether the raw log of a day can be used. build_features begins with the same checks. "
    "Publishes the quarantine and the data report, which build_features then does not change. Ends with "
    "exit code 3 if the log exceeds a limit of the section `quality`."
)


def run(context: RunContext) -> JobSummary:
    """Checks the raw logs of the days in the window that ends on the run date."""
    plan = plan_of(context.config)
    copy_tables_of_run(context, plan)
    raw_days(plan, context.run_date, context.recorder)  # if days are missing, fail before a session starts
    workers = choose_workers(context.config.workflow.engine, lambda: context.spark)
    lake, run_date = context.lake, context.run_date
    has_features = applied_features(workers, plan, lake, run_date, *workflows_of_run(context))
    inspection = check_days(workers, plan, lake, run_date, context.phase, has_features)
    dropped: Counter[str] = Counter()
    for counts in inspection.counts.values():
        dropped.update(counts.dropped)
    return JobSummary(
        output=context.lake.quality(context.config.name).partition(context.run_date).path,
        rows_in=sum(counts.rows_in for counts in inspection.counts.values()),
        rows_out=sum(counts.good for counts in inspection.counts.values()),
        dropped=dropped,
        facts={
            "days": [raw.dt for raw in inspection.in_order],
            "quality_warnings": inspection.quality.warnings,
            "empty_days": list(inspection.empty_days),
            "misdated": misdated_rows(inspection.counts.values()),
        },
    )


if __name__ == "__main__":
    run_job("check_quality", DESCRIPTION, run)
