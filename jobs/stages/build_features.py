"""Builds features from the raw click log.

Publishes the quarantine, the data report, the workflow, feature partitions, users, items and the dataset.
"""

from __future__ import annotations

import logging
from collections import Counter

from etl.build import build
from etl.checked_days import raw_days
from etl.quality.day_counts import misdated_rows
from jobs.checks import check_training
from spark.choose_workers import choose_workers
from storage.job_summary import JobSummary
from storage.run_context import RunContext
from training.registry.model_json import read_description
from training.registry.served_experiments import served_experiment
from training.registry.versions import champion_as_of, model_path
from training.registry.warm_or_fresh import fresh_start

log = logging.getLogger("nightrank.build_features")


def run(context: RunContext) -> JobSummary:
    """Reads the raw log up to the run date, and publishes the tables that training and scoring read."""
    if context.config.workflow.mode == "retrain":  # the features are for a training
        check_training(context.config)
    raw_days(
        context.config, context.run_date, context.recorder
    )  # reject a bad window before a session starts
    champion = champion_as_of(context.lake, context.config.name, context.run_date, before=True)
    parent = None
    reason = (
        fresh_start(context.config, context.lake, context.run_date)
        if context.config.workflow.mode == "retrain"
        else None
    )
    if champion and reason:
        log.info("fitting a new workflow instead of extending that of champion %s: %s", champion, reason)
    elif champion:
        parent = read_description(model_path(context.lake, context.config.name, champion))["workflow_version"]
    experiment = served_experiment(context.config, context.lake, context.run_date)
    treatment = experiment.folder if experiment else None
    other = read_description(treatment)["workflow_version"] if treatment else None
    workers = choose_workers(context.config.workflow.engine, lambda: context.spark)
    built = build(workers, context.config, context.lake, context.run_date, parent, context.phase, other)
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
