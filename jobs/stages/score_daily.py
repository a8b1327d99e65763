"""The champion's top-k items for every user: users × candidates scored in Spark workers, published as `recommendations`."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.errors import DataError
from conf.load import config_digest
from scoring.delivery.publish_limits import publish_changes
from scoring.inputs.requests import ListRequest, require_listable
from scoring.model.champion import champion_and_dataset
from scoring.model.context_features import encoded_context
from scoring.ranking.list_summary import summarize_lists
from scoring.rules.rule_tables import ruled_by
from scoring.spark.int8_change import change_of_lists
from scoring.spark.score_frames import score_lists
from storage import file_io
from storage.dataset import Dataset
from storage.feature_spec import USER_KEY
from storage.job_summary import JobSummary
from storage.manifest import Manifest, data_files, read_manifest
from storage.publish import Rules, publish, rows_of
from storage.run_context import RunContext, require

# Users a scoring task streams through at most: bounds what a lost task costs.
USERS_PER_TASK = 50_000


def run(context: RunContext) -> JobSummary:
    """Scores, summarises and publishes the lists of the run date."""
    require(context.config, "keys")
    model, dataset = champion_and_dataset(context)
    require_listable(model.spec)
    users, items, candidates = night_tables(context, dataset)
    context_values = encoded_context(context, model)
    spark = context.spark
    item_files = data_files(
        context.lake.candidate_items(dataset.workflow_version).partition(context.run_date), items
    )
    score = context.config.score
    rules, digests = ruled_by(context)
    request = ListRequest(
        model.request(score), tuple(item_files), tuple(sorted(context_values.items())), score.k, rules
    )
    measured: dict[str, Any] = {}
    if request.model.embeddings == "int8":
        with context.phase("int8"):
            known = rows_of(
                spark, context.lake.users(dataset.workflow_version).partition(context.run_date), users
            )
            measured = {"int8": change_of_lists(known, model.spec, request)}
    with context.phase("score"):
        scored = candidate_users(spark, context, dataset, users, candidates)
        lists = score_lists(scored, model.spec, request).persist()
        facts = summarize_lists(lists, score.k, users.rows, items.rows)
    rows = facts.pop("rows")
    made_of = {"model": model.version, "users": users.digest, "candidates": candidates.digest, **digests}
    with context.phase("compare"):
        changes = publish_changes(context, dataset, lists, facts, rows, made_of)
    with context.phase("publish"):
        versions = {"model_version": model.version, "workflow_version": dataset.workflow_version}
        published = publish(
            lists.select("*", *(F.lit(value).alias(name) for name, value in versions.items())),
            context.lake.recommendations.partition(context.run_date),
            inputs={**made_of, "config": config_digest(context.config, "score")},
            row_group_rows=context.config.output.row_group_rows,
            expected_rows=rows,
            facts={
                **facts,
                **measured,
                **versions,
                "precision": score.precision,
                "scored_at": file_io.utc_now(),
            },
            rules=Rules(
                not_null=["user_id", "item_id", "score", "reason"],
                ranges={"position": (1, score.k + 1), "score": (0.0, 1.0 + 2**-20)},
            ),
            sort_by=["user_id", "position"],
            grace_hours=context.config.output.grace_hours,
        )
    told = ("users", "users_with_fewer", "users_without", "coverage", "k")
    return JobSummary(
        output=context.lake.recommendations.partition(context.run_date).path,
        rows_in=users.rows,
        rows_out=published.rows,
        facts={
            **{name: facts[name] for name in told},
            **measured,
            **versions,
            "churn": changes.get("churn"),
        },
    )


def night_tables(context: RunContext, dataset: Dataset) -> tuple[Manifest, Manifest, Manifest]:
    """Manifests of users, candidate_items and candidates of the run date.

    Raises:
        DataError: one is missing, or the candidates were built from other users or items.
    """
    lake, version = context.lake, dataset.workflow_version
    tables = (lake.users(version), lake.candidate_items(version), lake.candidates(version))
    users, items, candidates = (read_manifest(table.partition(context.run_date)) for table in tables)
    for name, found in (("users", users), ("candidate_items", items)):
        if candidates.inputs[name] != found.digest:
            raise DataError(
                f"{candidates.table} dt={context.run_date} was built from {name} {candidates.inputs[name]}, "
                f"now they are {found.digest}",
                f"run build_candidates for {context.run_date} again",
            )
    return users, items, candidates


def candidate_users(
    spark: SparkSession, context: RunContext, dataset: Dataset, users: Manifest, candidates: Manifest
) -> DataFrame:
    """users with their candidates, as the manifests name them, spread over enough tasks to keep every slot busy."""
    lake, version = context.lake, dataset.workflow_version
    known = rows_of(spark, lake.users(version).partition(context.run_date), users)
    own = rows_of(spark, lake.candidates(version).partition(context.run_date), candidates)
    tasks = max(spark.sparkContext.defaultParallelism, -(-users.rows // USERS_PER_TASK))
    return known.join(own, USER_KEY).repartition(tasks, USER_KEY)
