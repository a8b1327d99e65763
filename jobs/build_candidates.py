"""Users, items and past clicks → which items each user is scored against: `candidate_items` and `candidates`."""

from __future__ import annotations

from conf.dataset import Dataset, read_dataset
from conf.feature_spec import ITEM_KEY, USER_KEY
from conf.load import config_digest
from conf.manifest import Manifest, read_manifest
from etl.publish import Rules, publish, rows_of
from jobs.candidate_inputs import Beside, candidate_rows, exclusions, read_beside, retrieve, table_digests
from jobs.runner import Job, Result, require, run
from scoring.candidates.clicks import within
from scoring.candidates.items import available_items, number_items
from scoring.candidates.make import Tables, make_candidates
from scoring.contract import ITEM_INDEX


def build_candidates(job: Job) -> Result:
    """Numbers the items of the run date and publishes one candidate list a user."""
    require(job.config, "keys")
    dataset = read_dataset(job.lake, job.run_date)
    with job.phase("tables"):
        beside = read_beside(job, dataset.workflow_version)
    with job.phase("candidate_items"):
        items = publish_items(job, dataset, beside)
    with job.phase("candidates"):
        candidates = publish_candidates(job, dataset, items, beside)
    return Result(
        output=job.lake.candidates(dataset.workflow_version).partition(job.run_date).path,
        rows_in=beside.users.rows,
        rows_out=candidates.rows,
        dropped=items.dropped,
        facts={"items": items.rows, **candidates.facts, "workflow_version": dataset.workflow_version},
    )


def publish_items(job: Job, dataset: Dataset, beside: Beside) -> Manifest:
    """`candidate_items`: the items that may be recommended, numbered in the order of their key."""
    config = job.config.candidates
    source = job.lake.items(dataset.workflow_version).partition(job.run_date)
    known = read_manifest(source)
    scalars = [name for name, kind in known.schema if not kind.startswith("list")]
    seen = None
    if config.active_days is not None:
        seen = within(candidate_rows(job, dataset, config.splits), config.active_days, job.run_date)
    items, dropped = available_items(rows_of(job.spark, source, known), seen, beside.out_of_stock)
    left = known.rows - sum(dropped.values())
    chosen_by = {
        "dataset": dataset.digest,
        "config": config_digest(job.config, "candidates"),
        **table_digests(job),
    }
    return publish(
        number_items(items),
        job.lake.candidate_items(dataset.workflow_version).partition(job.run_date),
        inputs={"items": known.digest, **(chosen_by if dropped else {})},
        row_group_rows=job.config.output.row_group_rows,
        expected_rows=left,
        rows_in=known.rows,
        dropped=dropped,
        sort_by=[ITEM_INDEX],
        rules=Rules(not_null=scalars, ranges={ITEM_INDEX: (0, left)}),
        grace_hours=job.config.output.grace_hours,
    )


def publish_candidates(job: Job, dataset: Dataset, numbered: Manifest, beside: Beside) -> Manifest:
    """`candidates`: one row a user of the users table. Facts: names of the sources, and pairs excluded by filter."""
    lake, config, version = job.lake, job.config.candidates, dataset.workflow_version
    published = lake.candidate_items(version).partition(job.run_date)
    items = rows_of(job.spark, published, numbered, columns=[ITEM_INDEX, ITEM_KEY])
    excluding = exclusions(job, dataset, version, items, beside)
    tables = Tables(
        excluding,
        items,
        candidate_rows(job, dataset, config.splits),
        job.run_date,
        beside.segments,
        retrieve(job, version, beside, numbered, excluding),
    )
    return publish(
        make_candidates(config, tables),
        lake.candidates(version).partition(job.run_date),
        inputs={
            "users": beside.users.digest,
            "candidate_items": numbered.digest,
            "dataset": dataset.digest,
            "config": config_digest(job.config, "candidates"),
            **table_digests(job),
            **({"retriever": beside.retriever.version} if beside.retriever else {}),
        },
        row_group_rows=job.config.output.row_group_rows,
        expected_rows=beside.users.rows,
        facts={"sources": [each.name for each in config.sources], "excluded": dict(excluding.counts)},
        rules=Rules(not_null=[USER_KEY]),
        grace_hours=job.config.output.grace_hours,
    )


if __name__ == "__main__":
    run("build_candidates", __doc__ or "", build_candidates)
