"""Raw click log → quarantine, data report, workflow, feature partitions, users and items, and the dataset of the run date."""

from __future__ import annotations

import logging
from collections import Counter

from etl.build import build, window
from jobs.checks import check_training
from jobs.runner import Job, Result, run
from training.description import read_description
from training.parent import fresh_start
from training.registry import champion_as_of, model_path

log = logging.getLogger("nightrank.build_features")


def build_features(job: Job) -> Result:
    """Reads the window of raw days that ends on the run date and publishes what training and scoring read."""
    if job.config.workflow.mode == "retrain":  # the features are made for a training
        check_training(job.config)
    window(job.config, job.run_date)  # what can be refused without a session is refused before one starts
    champion = champion_as_of(job.lake, job.config.name, job.run_date, before=True)
    parent = None
    reason = (
        fresh_start(job.config, job.lake, job.run_date) if job.config.workflow.mode == "retrain" else None
    )
    if champion and reason:
        log.info("fitting a workflow and not extending champion %s's: %s", champion, reason)
    elif champion:
        parent = read_description(model_path(job.lake, job.config.name, champion))["workflow_version"]
    built = build(job.spark, job.config, job.lake, job.run_date, parent, job.phase)
    dropped: Counter[str] = Counter()
    for counts in built.counts.values():
        dropped.update(counts.dropped)
    return Result(
        output=job.lake.features(built.workflow.version).path,
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
            "quality_warnings": built.quality.warnings,
        },
    )


if __name__ == "__main__":
    run("build_features", __doc__ or "", build_features)
