"""Generates a click log of `generate.days` days, and publishes each day with the best possible AUC."""

from __future__ import annotations

from etl.synthetic.generate import generate_days, generate_settings, generated_dates
from jobs.runner import run_job
from spark.choose_workers import choose_workers
from storage.job_summary import JobSummary
from storage.run_context import RunContext

DESCRIPTION = "Generates the raw files of a click log, for several days that begin with the run date."


def run(context: RunContext) -> JobSummary:
    """Writes and publishes the log from the run date on, and reports the best possible AUC of each day."""
    generate = generate_settings(context.config)
    dates = generated_dates(generate, context.run_date)
    workers = choose_workers(context.config.workflow.engine, lambda: context.spark)
    with context.phase("generate"):
        manifests = generate_days(workers, context.lake, generate, dates)
    return JobSummary(
        output=context.lake.raw.path,
        rows_out=sum(manifest.rows for manifest in manifests),
        facts={
            "days": len(manifests),
            "malformed_rows": sum(manifest.facts["malformed_rows"] for manifest in manifests),
            "best_auc": {manifest.partition: manifest.facts["best_auc"] for manifest in manifests},
        },
    )


if __name__ == "__main__":
    run_job("generate_clicks", DESCRIPTION, run)
