"""Builds the features of a run, and finds the workflows that it applies or extends.

The job build_features publishes the quarantine, the data report, the workflow, feature partitions, users,
items and the dataset. check_quality uses the same workflows.
"""

from __future__ import annotations

import logging
from collections import Counter

from etl.build import build
from etl.passes import raw_days
from etl.quality.day_counts import misdated_rows
from etl.workflow.feature_plan import plan_of
from jobs.checks import check_training
from jobs.table_copies import copy_tables_of_run
from spark.choose_workers import choose_workers
from storage.job_summary import JobSummary
from storage.run_context import RunContext
from training.registry.model_json import read_description
from training.registry.served_experiments import served_experiment
from training.registry.versions import champion_as_of, model_path
from training.registry.warm_or_fresh import fresh_start

log = logging.getLogger("nightrank.build_features")


def build_of_run(context: RunContext) -> JobSummary:
    """Reads the raw log up to the run date, and publishes the tables that training and scoring read."""
    if context.config.workflow.mode == "retrain":  # a model will be trained on the new features
        check_training(context.config)
    plan = plan_of(context.config)
    copy_tables_of_run(context, plan)
    raw_days(plan, context.run_date, context.recorder)  # if days are missing, fail before a session starts
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


def workflows_of_run(context: RunContext) -> tuple[str | None, str | None]:
    """Returns two workflow versions: of the champion before the run date, and of the served experiment.

    With workflow.mode=apply, the first version is that of the champion at the end of the run date, because
    this champion makes the lists. The first version is None if there is no champion, or if a retraining must
    fit a new workflow. The second version is None if no experiment is served.
    """
    config, lake, run_date = context.config, context.lake, context.run_date
    champion = champion_as_of(lake, config.name, run_date, before=config.workflow.mode != "apply")
    parent = None
    reason = fresh_start(config, lake, run_date) if config.workflow.mode == "retrain" else None
    if champion and reason:
        log.info(
            "fitting a new workflow instead of extending the workflow of champion %s: %s", champion, reason
        )
    elif champion:
        parent = read_description(model_path(lake, config.name, champion))["workflow_version"]
    experiment = served_experiment(config, lake, run_date)
    treatment = experiment.folder if experiment else None
    return parent, read_description(treatment)["workflow_version"] if treatment else None
