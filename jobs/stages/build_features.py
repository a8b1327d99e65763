"""Builds features from the raw click log.

Publishes the quarantine, the data report, the workflow, feature partitions, users, items and the dataset.
"""

from __future__ import annotations

from collections import Counter

from etl.build import build
from etl.checked_days import raw_days
from etl.quality.day_counts import misdated_rows
from etl.workflow.feature_plan import plan_of
from jobs.checks import check_training
from jobs.stages.table_copies import copy_tables_of_run
from jobs.stages.workflows_of_run import workflows_of_run
from spark.choose_workers import choose_workers
from storage.job_summary import JobSummary
from storage.run_context import RunContext


def run(context: RunContext) -> JobSummary:
    """Reads the raw log up to the run date, and publishes the tables that training and scoring read."""
    if context.config.workflow.mode == "retrain":  # the features are for a training
        check_training(context.config)
    plan = plan_of(context.config)
    copy_tables_of_run(context, plan)
    raw_days(plan, context.run_date, context.recorder)  # reject a bad window before a session starts
    parent, other = workflows_of_run(context)
    workers = choose_workers(context.config.workflow.engine, lambda: context.spark)
    built = build(workers, plan, context.lake, context.run_date, parent, context.phase, other)
    dropped: Counter[str] = Counter()
    for counts in built.counts.values():
        dropped.update(counts.dropped)
    return JobSummary(
        output=context.lake.features(built.workflow.version).path,
        rows_in=sum(counts.rows_in for counts in built.counts.values()),
        rows_out=sum(manifest.rows for manifest in built.features.values()),
        dropped=dropped,
        facts={
            "workflow_version": built.workflow.version,
            "mode": built.dataset.mode,
            "days": built.dataset.days,
            "features": len(built.workflow.spec.features),
            "embedding_rows": sum(built.workflow.spec.cardinalities),
            "changed_days": list(built.dataset.changed_days),
            **{missing.check: missing.without_row for missing in built.missing},
            "quality_warnings": list(built.warnings),
            "empty_days": list(built.empty_days),
            "misdated": misdated_rows(built.counts.values()),
        },
    )
