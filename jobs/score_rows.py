"""A click probability for every feature row of one split of the run date, by the champion: published as `scores`."""

from __future__ import annotations

from conf.feature_spec import ROW_ID
from conf.load import config_digest
from etl.publish import Rules, publish
from jobs.runner import Job, Result, run
from jobs.serving import champion_and_dataset
from scoring.contract import PROBABILITY
from scoring.features import FEATURES_DT, read_split, split_rows
from scoring.score import score_rows as score


def score_rows(job: Job) -> Result:
    """Scores the rows of `score.rows_split`, row for row."""
    model, dataset = champion_and_dataset(job)
    split = job.config.score.rows_split
    names = [each.name for each in model.spec.features]
    rows = read_split(job.spark, job.lake, dataset, [split], [ROW_ID, *names])
    facts = {"split": split, "model_version": model.version, "workflow_version": dataset.workflow_version}
    with job.phase("score and publish"):
        published = publish(
            score(rows, model.spec, model.request(job.config.score), [ROW_ID, FEATURES_DT]),
            job.lake.scores.partition(job.run_date),
            inputs={
                "model": model.version,
                "dataset": dataset.digest,
                "config": config_digest(job.config, "score"),
            },
            row_group_rows=job.config.output.row_group_rows,
            expected_rows=split_rows(job.lake, dataset, split),
            facts=facts,
            rules=Rules(not_null=[ROW_ID, FEATURES_DT], ranges={PROBABILITY: (0.0, 1.0 + 2**-20)}),
            grace_hours=job.config.output.grace_hours,
        )
    return Result(
        output=job.lake.scores.partition(job.run_date).path,
        rows_in=published.rows_in,
        rows_out=published.rows,
        facts=facts,
    )


if __name__ == "__main__":
    run("score_rows", __doc__ or "", score_rows)
