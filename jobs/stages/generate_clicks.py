"""Generates a click log: `generate.days` days of raw files from the run date on, each published with its best AUC."""

from __future__ import annotations

from etl.synthetic.generate import generate_days, generate_settings, generated_dates
from storage.job_summary import JobSummary
from storage.run_context import RunContext


def run(context: RunContext) -> JobSummary:
    """Writes and publishes the days; reports the best AUC each of them allows."""
    generate = generate_settings(context.config)
    dates = generated_dates(generate, context.run_date)
    spark = context.spark
    with context.phase("generate"):
        manifests = generate_days(spark, context.lake, generate, dates)
    return JobSummary(
        output=context.lake.raw.path,
        rows_out=sum(each.rows for each in manifests),
        facts={
            "days": len(manifests),
            "malformed_rows": sum(each.facts["malformed_rows"] for each in manifests),
            "best_auc": {each.partition: each.facts["best_auc"] for each in manifests},
        },
    )
