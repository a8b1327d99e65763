"""The champion's top-k items for every user: users × candidates scored in Spark workers, published as `recommendations`."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf import storage
from conf.dataset import Dataset
from conf.errors import DataError
from conf.feature_spec import USER_KEY
from conf.load import config_digest
from conf.manifest import Manifest, data_files, read_manifest
from etl.publish import Rules, publish, rows_of
from etl.workflow import load_local
from jobs.list_changes import publish_changes
from jobs.list_rules import ruled_by
from jobs.runner import Job, Result, require, run
from jobs.serving import champion_and_dataset
from scoring.contract import ListRequest, require_context, require_listable
from scoring.int8_change import change_of_lists
from scoring.lists.summary import summarize_lists
from scoring.model_info import ModelInfo
from scoring.score import score_lists

# Users a scoring task streams through at most: bounds what a lost task costs.
USERS_PER_TASK = 50_000


def score_daily(job: Job) -> Result:
    """Scores, summarises and publishes the lists of the run date."""
    require(job.config, "keys")
    model, dataset = champion_and_dataset(job)
    require_listable(model.spec)
    users, items, candidates = night_tables(job, dataset)
    context = encoded_context(job, model)
    spark = job.spark
    item_files = data_files(job.lake.candidate_items(dataset.workflow_version).partition(job.run_date), items)
    score = job.config.score
    rules, digests = ruled_by(job)
    request = ListRequest(
        model.request(score), tuple(item_files), tuple(sorted(context.items())), score.k, rules
    )
    measured: dict[str, Any] = {}
    if request.model.embeddings == "int8":
        with job.phase("int8"):
            known = rows_of(spark, job.lake.users(dataset.workflow_version).partition(job.run_date), users)
            measured = {"int8": change_of_lists(known, model.spec, request)}
    with job.phase("score"):
        scored = candidate_users(spark, job, dataset, users, candidates)
        lists = score_lists(scored, model.spec, request).persist()
        facts = summarize_lists(lists, score.k, users.rows, items.rows)
    rows = facts.pop("rows")
    made_of = {"model": model.version, "users": users.digest, "candidates": candidates.digest, **digests}
    with job.phase("compare"):
        changes = publish_changes(job, dataset, lists, facts, rows, made_of)
    with job.phase("publish"):
        versions = {"model_version": model.version, "workflow_version": dataset.workflow_version}
        published = publish(
            lists.select("*", *(F.lit(value).alias(name) for name, value in versions.items())),
            job.lake.recommendations.partition(job.run_date),
            inputs={**made_of, "config": config_digest(job.config, "score")},
            row_group_rows=job.config.output.row_group_rows,
            expected_rows=rows,
            facts={
                **facts,
                **measured,
                **versions,
                "precision": score.precision,
                "scored_at": storage.utc_now(),
            },
            rules=Rules(
                not_null=["user_id", "item_id", "score", "reason"],
                ranges={"position": (1, score.k + 1), "score": (0.0, 1.0 + 2**-20)},
            ),
            sort_by=["user_id", "position"],
            grace_hours=job.config.output.grace_hours,
        )
    told = ("users", "users_with_fewer", "users_without", "coverage", "k")
    return Result(
        output=job.lake.recommendations.partition(job.run_date).path,
        rows_in=users.rows,
        rows_out=published.rows,
        facts={
            **{name: facts[name] for name in told},
            **measured,
            **versions,
            "churn": changes.get("churn"),
        },
    )


def night_tables(job: Job, dataset: Dataset) -> tuple[Manifest, Manifest, Manifest]:
    """Manifests of users, candidate_items and candidates of the run date.

    Raises:
        DataError: one is missing, or the candidates were built from other users or items.
    """
    lake, version = job.lake, dataset.workflow_version
    tables = (lake.users(version), lake.candidate_items(version), lake.candidates(version))
    users, items, candidates = (read_manifest(table.partition(job.run_date)) for table in tables)
    for name, found in (("users", users), ("candidate_items", items)):
        if candidates.inputs[name] != found.digest:
            raise DataError(
                f"{candidates.table} dt={job.run_date} was built from {name} {candidates.inputs[name]}, "
                f"now they are {found.digest}",
                f"run build_candidates for {job.run_date} again",
            )
    return users, items, candidates


def encoded_context(job: Job, model: ModelInfo) -> dict[str, Any]:
    """Tonight's values of the context features, encoded by the model's workflow; a list of ids as a tuple.

    Raises:
        ConfigError: score.context does not give exactly the raw columns they are made of.
    """
    names = [each.name for each in model.spec.scoped("context")]
    given = job.config.score.context
    if not names:
        require_context([], given)
        return {}
    workflow = load_local(job.lake, model.spec.workflow_version)
    require_context(workflow.raw_columns(names), given)
    encoded = workflow.encode_values(given, names)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in encoded.items()}


def candidate_users(
    spark: SparkSession, job: Job, dataset: Dataset, users: Manifest, candidates: Manifest
) -> DataFrame:
    """users with their candidates, as the manifests name them, spread over enough tasks to keep every slot busy."""
    lake, version = job.lake, dataset.workflow_version
    known = rows_of(spark, lake.users(version).partition(job.run_date), users)
    own = rows_of(spark, lake.candidates(version).partition(job.run_date), candidates)
    tasks = max(spark.sparkContext.defaultParallelism, -(-users.rows // USERS_PER_TASK))
    return known.join(own, USER_KEY).repartition(tasks, USER_KEY)


if __name__ == "__main__":
    run("score_daily", __doc__ or "", score_daily)
