"""Publishes the serving model's top-k items for every user as `recommendations`, scored by Spark workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame

from conf.load import config_digest
from scoring.delivery.publish_limits import publish_changes
from scoring.inputs.list_tables import list_manifests
from scoring.inputs.requests import ListRequest, require_listable
from scoring.model.champion import serving_model_and_dataset
from scoring.model.context_features import encoded_context
from scoring.model.model_info import ModelInfo
from scoring.model.served_blend import blend_request, served_blend
from scoring.ranking.list_summary import summarize_lists
from scoring.rules.rule_tables import read_rules
from scoring.spark.int8_change import change_of_lists
from scoring.spark.score_frames import score_lists
from spark.arrow_frames import table_of
from spark.choose_workers import stay_in_process
from spark.rows import Rows, query, read_rows, spread, with_value
from storage import file_io
from storage.dataset import Dataset
from storage.feature_spec import USER_KEY
from storage.job_summary import JobSummary
from storage.manifest import Manifest, data_files
from storage.publish import Rules, rows_of
from storage.publish_rows import publish_rows
from storage.run_context import RunContext, require

# Largest number of users per scoring task. It limits the work to repeat if a task is lost.
USERS_PER_TASK = 50_000
# Lists of at most this number of entries are collected from Spark to the driver: some 100 MB.
ENTRIES_IN_DRIVER = 2_000_000
_REPORTED = ("users", "users_with_fewer", "users_without", "coverage", "k")


def run(context: RunContext) -> JobSummary:
    """Scores, summarises and publishes the lists of the run date."""
    require(context.config, "keys")
    model, dataset = serving_model_and_dataset(context)
    require_listable(model.spec)
    users, items, candidates = list_manifests(context.lake, dataset.workflow_version, context.run_date)
    stay_in_process(context, users.rows * context.config.score.k)
    request, rule_digests = list_request(context, model, items)
    blend = served_blend(context, candidates)
    if blend is not None:
        request = replace(request, blend=blend_request(blend, candidates))
    score = context.config.score
    measured: dict[str, Any] = {}
    if request.model.embeddings == "int8":
        with context.phase("int8"):
            known = rows_of(
                context.spark, context.lake.users(dataset.workflow_version).partition(context.run_date), users
            )
            measured = {"int8": change_of_lists(known, model.spec, request)}
    with context.phase("score"):
        scored = candidate_users(context, dataset, users, candidates)
        lists = score_lists(scored, model.spec, request)
        if isinstance(lists, DataFrame):
            # Small lists are one query and then Arrow, because planning queries takes longer than the work.
            lists = table_of(lists) if users.rows * score.k <= ENTRIES_IN_DRIVER else lists.persist()
        facts = summarize_lists(lists, score.k, users.rows, items.rows)
    rows = facts.pop("rows")
    inputs = {"model": model.version, "users": users.digest, "candidates": candidates.digest, **rule_digests}
    ranked_by = {}
    if blend is not None:
        inputs["blend"], ranked_by = blend.digest, {"blend": blend.to_facts()}
    with context.phase("compare"):
        changes = publish_changes(context, dataset, lists, facts, rows, inputs)
    with context.phase("publish"):
        versions = {"model_version": model.version, "workflow_version": dataset.workflow_version}
        refit = {"refit_of": model.refit_of} if model.refit_of else {}
        published = publish_rows(
            _with_versions(lists, versions),
            context.lake.recommendations.partition(context.run_date),
            inputs={**inputs, "config": config_digest(context.config, "score")},
            row_group_rows=context.config.output.row_group_rows,
            expected_rows=rows,
            facts={
                **facts,
                **measured,
                **versions,
                **refit,
                **ranked_by,
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
    return JobSummary(
        output=context.lake.recommendations.partition(context.run_date).path,
        rows_in=users.rows,
        rows_out=published.rows,
        facts={
            **{name: facts[name] for name in _REPORTED},
            **measured,
            **versions,
            **refit,
            **({"ranked_by": blend.chosen} if blend else {}),
            "churn": changes.get("churn"),
        },
    )


def _with_versions(lists: Rows, versions: Mapping[str, str]) -> Rows:
    """Adds a column with the same text in all rows for each of `versions`."""
    for name, value in versions.items():
        lists = with_value(lists, name, value)
    return lists


def list_request(
    context: RunContext, model: ModelInfo, items: Manifest
) -> tuple[ListRequest, dict[str, str]]:
    """Returns the request that workers need to score lists, and the digests of the tables of rules.

    The rules are the business rules of the section `score`.
    """
    values = encoded_context(context, model)
    table = context.lake.candidate_items(model.spec.workflow_version)
    item_files = data_files(table.partition(context.run_date), items)
    rules, digests = read_rules(context)
    score = context.config.score
    request = ListRequest(
        model.request(score), tuple(item_files), tuple(sorted(values.items())), score.k, rules
    )
    return request, digests


def candidate_users(context: RunContext, dataset: Dataset, users: Manifest, candidates: Manifest) -> Rows:
    """Returns the rows of users with their candidates. A frame has enough Spark partitions for all cores.

    The rows are read from the files that the two manifests name, even if the tables are replaced meanwhile.
    """
    lake, version = context.lake, dataset.workflow_version
    joined = query(
        "SELECT * FROM {users} AS users JOIN {candidates} AS candidates USING (user_key)",
        users=read_rows(context, lake.users(version).partition(context.run_date), users),
        candidates=read_rows(context, lake.candidates(version).partition(context.run_date), candidates),
    )
    return spread(joined, USER_KEY, -(-users.rows // USERS_PER_TASK))
