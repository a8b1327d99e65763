"""Users, items and past clicks → which items each user is scored against: `candidate_items` and `candidates`."""

from __future__ import annotations

from pyspark.sql import SparkSession

from conf.dataset import Dataset, read_dataset
from conf.feature_spec import ITEM_KEY, USER_KEY
from conf.load import config_digest
from conf.manifest import Manifest, read_manifest
from etl.publish import Rules, publish, read_published
from jobs.runner import Job, Result, require, run
from scoring.candidates import CLICK_COLUMNS, clicked_items, make_candidates, number_items
from scoring.contract import ITEM_INDEX
from scoring.features import read_split


def build_candidates(job: Job) -> Result:
    """Numbers the items of the run date and publishes one candidate list a user."""
    require(job.config, "keys")
    dataset = read_dataset(job.lake, job.run_date)
    users = read_manifest(job.lake.users(dataset.workflow_version).partition(job.run_date))
    spark = job.spark
    with job.phase("candidate_items"):
        items = publish_items(spark, job, dataset)
    with job.phase("candidates"):
        candidates = publish_candidates(spark, job, dataset, users, items)
    strategy = job.config.candidates.strategy
    return Result(
        output=job.lake.candidates(dataset.workflow_version).partition(job.run_date).path,
        rows_in=users.rows,
        rows_out=candidates.rows,
        facts={"items": items.rows, "strategy": strategy, "workflow_version": dataset.workflow_version},
    )


def publish_items(spark: SparkSession, job: Job, dataset: Dataset) -> Manifest:
    """`candidate_items`: the items table, numbered in the order of its key."""
    source = job.lake.items(dataset.workflow_version).partition(job.run_date)
    known = read_manifest(source)
    scalars = [name for name, kind in known.schema if not kind.startswith("list")]
    return publish(
        number_items(read_published(spark, source)),
        job.lake.candidate_items(dataset.workflow_version).partition(job.run_date),
        inputs={"items": known.digest},
        row_group_rows=job.config.output.row_group_rows,
        expected_rows=known.rows,
        sort_by=[ITEM_INDEX],
        rules=Rules(not_null=scalars, ranges={ITEM_INDEX: (0, known.rows)}),
        grace_hours=job.config.output.grace_hours,
    )


def publish_candidates(
    spark: SparkSession, job: Job, dataset: Dataset, users: Manifest, numbered: Manifest
) -> Manifest:
    """`candidates`: one row a user of the users table."""
    lake, config, version = job.lake, job.config.candidates, dataset.workflow_version
    items = read_published(
        spark, lake.candidate_items(version).partition(job.run_date), columns=[ITEM_INDEX, ITEM_KEY]
    )
    keys = read_published(spark, lake.users(version).partition(job.run_date), columns=[USER_KEY])
    clicked = None
    if config.exclude_clicked:
        clicked = clicked_items(
            read_split(spark, lake, dataset, config.exclude_clicked, CLICK_COLUMNS), items
        )
    train = read_split(spark, lake, dataset, ["train"], CLICK_COLUMNS)
    return publish(
        make_candidates(config, keys, items, train, clicked),
        lake.candidates(version).partition(job.run_date),
        inputs={
            "users": users.digest,
            "candidate_items": numbered.digest,
            "dataset": dataset.digest,
            "config": config_digest(job.config, "candidates"),
        },
        row_group_rows=job.config.output.row_group_rows,
        expected_rows=users.rows,
        rules=Rules(not_null=[USER_KEY]),
        grace_hours=job.config.output.grace_hours,
    )


if __name__ == "__main__":
    run("build_candidates", __doc__ or "", build_candidates)
