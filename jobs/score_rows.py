"""A click probability for every feature row of one split of the run date, by the champion: published as `scores`."""

from __future__ import annotations

from typing import Any

from conf.feature_spec import ROW_ID
from conf.load import config_digest
from etl.publish import Rules, new_attempt, publish_files
from jobs.runner import Job, Result, run
from jobs.serving import champion_and_dataset
from scoring.contract import FEATURES_DT, PROBABILITY
from scoring.int8_change import change_of_rows, sample_of
from scoring.rows.pieces import deal, row_groups
from scoring.score import score_split


def score_rows(job: Job) -> Result:
    """Scores the rows of `score.rows_split`, row for row: the workers read and write the files."""
    model, dataset = champion_and_dataset(job)
    split = job.config.score.rows_split
    groups = row_groups(job.lake, dataset, split)
    partition, request = job.lake.scores.partition(job.run_date), model.request(job.config.score)
    spark = job.spark
    facts: dict[str, Any] = {
        "split": split,
        "model_version": model.version,
        "workflow_version": dataset.workflow_version,
        "precision": request.precision,
    }
    if request.embeddings == "int8":
        with job.phase("int8"):
            facts["int8"] = change_of_rows(spark, sample_of(groups), request)
    with job.phase("score"):
        tasks = deal(groups, spark.sparkContext.defaultParallelism, job.config.output.row_group_rows)
        attempt = new_attempt(partition)
        files = score_split(spark, tasks, request, partition.file(attempt))
    with job.phase("publish"):
        published = publish_files(
            partition,
            {f"{attempt}/{name}": None for name in files},
            inputs={
                "model": model.version,
                "dataset": dataset.digest,
                "config": config_digest(job.config, "score"),
            },
            expected_rows=sum(each.rows for each in groups),
            facts=facts,
            rules=Rules(not_null=[ROW_ID, FEATURES_DT], ranges={PROBABILITY: (0.0, 1.0 + 2**-20)}),
            grace_hours=job.config.output.grace_hours,
        )
    return Result(
        output=partition.path,
        rows_in=published.rows_in,
        rows_out=published.rows,
        facts=facts,
    )


if __name__ == "__main__":
    run("score_rows", __doc__ or "", score_rows)
