"""Publishes the serving model's click probability for every feature row of one split, as `scores`."""

from __future__ import annotations

from typing import Any

from conf.load import config_digest
from jobs.runner import run_job
from scoring.model.champion import serving_model_and_dataset
from scoring.requests import FEATURES_DT, PROBABILITY
from scoring.rows.file_splits import row_groups
from scoring.spark.int8_change import change_of_rows, sample_of
from scoring.spark.score_frames import divide_split, score_split
from spark.choose_workers import stay_in_process
from storage.feature_spec import ROW_ID
from storage.job_summary import JobSummary
from storage.publish import Rules, new_attempt, publish_files
from storage.run_context import RunContext

DESCRIPTION = (
    "Computes the champion's click probability for every feature row of one split of the run date, and "
    "publishes the probabilities as `scores`."
)


def run(context: RunContext) -> JobSummary:
    """Scores every feature row of the split `score.rows_split`.

    Threads of this process, or Spark's workers, read and write the files.
    """
    split = context.config.score.rows_split
    model, dataset = serving_model_and_dataset(context, scored=split)
    groups = row_groups(context.lake, dataset, split)
    partition, request = context.lake.scores.partition(context.run_date), model.request(context.config.score)
    rows = sum(group.rows for group in groups)
    stay_in_process(context, rows)
    spark = None if context.in_process else context.spark
    facts: dict[str, Any] = {
        "split": split,
        "model_version": model.version,
        "workflow_version": dataset.workflow_version,
        "precision": request.precision,
    }
    if request.embeddings == "int8":
        with context.phase("int8"):
            facts["int8"] = change_of_rows(spark, sample_of(groups), request)
    with context.phase("score"):
        file_rows = context.config.output.row_group_rows
        tasks = divide_split(spark, groups, request, file_rows)
        attempt = new_attempt(partition)
        files = score_split(spark, tasks, request, partition.file(attempt), file_rows)
    with context.phase("publish"):
        published = publish_files(
            partition,
            {f"{attempt}/{name}": None for name in files},
            inputs={
                "model": model.version,
                "dataset": dataset.digest,
                "config": config_digest(context.config, "score"),
            },
            expected_rows=rows,
            facts=facts,
            rules=Rules(not_null=[ROW_ID, FEATURES_DT], ranges={PROBABILITY: (0.0, 1.0 + 2**-20)}),
            grace_hours=context.config.output.grace_hours,
        )
    return JobSummary(
        output=partition.path,
        rows_in=published.rows_in,
        rows_out=published.rows,
        facts=facts,
    )


if __name__ == "__main__":
    run_job("score_rows", DESCRIPTION, run)
