"""The lists of a date against the clicks that followed: hit rate, NDCG and coverage, beside those of the most popular items;
and what the candidates held of these clicks.

Users without a row in train are measured apart: to the popular items and to the model alike they are cold.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from datetime import date, timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from conf.errors import DataError
from conf.load import config_digest
from etl.raw.files import require_raw
from etl.spark.read_log import good_rows, read_log
from scoring.candidates.clicks import CLICK_COLUMNS
from scoring.candidates.inputs import exclusions, read_beside
from scoring.candidates.popular import popular_items, popularity
from scoring.candidates.recall import measure_recall
from scoring.evaluation.list_relevance import coverage, measure_lists
from scoring.inputs.feature_rows import read_split
from scoring.inputs.requests import CANDIDATES, ITEM_INDEX
from storage.dataset import Dataset, read_dataset, with_present_rows
from storage.feature_spec import ITEM_KEY, LABEL, USER_KEY
from storage.job_summary import JobSummary
from storage.manifest import Manifest, read_manifest
from storage.publish import publish_facts, rows_of
from storage.run_context import RunContext, require

log = logging.getLogger("nightrank.measure")


def run(context: RunContext) -> JobSummary:
    """Measures the lists of the run date and publishes the facts."""
    require(context.config, "keys")
    lake, run_date, against = context.lake, context.run_date, context.config.measure.against
    published = read_manifest(lake.recommendations.partition(run_date))
    # A file that came late, or an upgrade, may have made its days again in a later run; the lists are those of this date.
    dataset, changed = with_present_rows(lake, read_dataset(lake, run_date))
    if changed:
        log.warning(
            "days %s were made again after the lists of %s: measured on their present rows", changed, run_date
        )
    k, items = published.facts["k"], published.facts["items"]
    train = read_split(context.spark, lake, dataset, ["train"], CLICK_COLUMNS)
    # Three measures ask who is warm; the training rows are read once for them.
    warm = train.select(USER_KEY).distinct().persist()
    with context.phase("positives"):
        wanted = positives(context, dataset).persist()
        num_wanted = wanted.count()
    if not num_wanted:
        raise DataError(
            f"nobody clicked anything in what the lists of {run_date} are measured against ({against})",
            "measure another date, or set measure.against",
        )
    with context.phase("lists"):
        lists = recommended(context, published)
        ours = measure_lists(lists, wanted, warm, k)
    with context.phase("popular"):
        lists = most_popular(context, dataset, train, published).persist()
        popular, popular_coverage = measure_lists(lists, wanted, warm, k), coverage(lists, items)
    with context.phase("candidates"):
        recall = candidate_recall(context, wanted, warm, published)
    own, base, cold = ours[True], popular[True], ours[False]
    facts = {
        "recommendations_date": run_date,
        "against": against,
        "k": k,
        "users": own.users,
        "hit_rate": own.hit_rate,
        "ndcg": own.ndcg,
        "coverage": published.facts["coverage"],
        "popular": {"hit_rate": base.hit_rate, "ndcg": base.ndcg, "coverage": popular_coverage},
        "lift": own.hit_rate / base.hit_rate if own.hit_rate is not None and base.hit_rate else None,
        "cold_users": {"users": cold.users, "hit_rate": cold.hit_rate, "ndcg": cold.ndcg}
        if cold.users
        else None,
        "candidates": recall,
    }
    with context.phase("publish"):
        inputs = {
            "recommendations": published.digest,
            "dataset": dataset.digest,
            "config": config_digest(context.config, "measure", "candidates"),
        }
        publish_facts(lake.measures.partition(run_date), inputs=inputs, facts=facts)
    return JobSummary(lake.measures.partition(run_date).path, rows_in=num_wanted, facts=facts)


def positives(context: RunContext, dataset: Dataset) -> DataFrame:
    """Distinct (user_key, item_key) that were clicked: on the day after the lists, or in the test split.

    Raises:
        DataError: the day after has no raw log.
    """
    if context.config.measure.against == "test_split":
        rows = read_split(context.spark, context.lake, dataset, ["test"], CLICK_COLUMNS)
    else:
        day_after = (date.fromisoformat(context.run_date) + timedelta(days=1)).isoformat()
        rows = good_rows(
            read_log(
                context.spark, context.config, require_raw(context.config, context.config.log, day_after)
            )
        )
    return rows.where(F.col(LABEL) == 1).select(USER_KEY, ITEM_KEY).distinct()


def recommended(context: RunContext, published: Manifest) -> DataFrame:
    """The lists of a manifest: (user_key, position, item_key)."""
    lists = rows_of(context.spark, context.lake.recommendations.partition(context.run_date), published)
    return lists.select(F.col("user_id").alias(USER_KEY), "position", F.col("item_id").alias(ITEM_KEY))


def most_popular(context: RunContext, dataset: Dataset, train: DataFrame, published: Manifest) -> DataFrame:
    """The k items with most clicks in train for every user, under the rules of our own lists: same users, same items,
    without what the config excludes. (user_key, position, item_key)
    """
    version = published.facts["workflow_version"]
    items = candidate_items(context, version, numbered_items(context, version))
    excluding = exclusions(context, dataset, version, items, read_beside(context, version))
    lists = popular_items(excluding, popularity(train, items), published.facts["k"])
    entries = lists.select(USER_KEY, F.posexplode(CANDIDATES).alias("place", ITEM_INDEX))
    return entries.join(items, ITEM_INDEX).select(USER_KEY, (F.col("place") + 1).alias("position"), ITEM_KEY)


def numbered_items(context: RunContext, version: str) -> Manifest:
    """The manifest of candidate_items."""
    return read_manifest(context.lake.candidate_items(version).partition(context.run_date))


def candidate_items(context: RunContext, version: str, numbered: Manifest) -> DataFrame:
    """(item_index, item_key) of the items that could be recommended."""
    partition = context.lake.candidate_items(version).partition(context.run_date)
    return rows_of(context.spark, partition, numbered, columns=[ITEM_INDEX, ITEM_KEY])


def candidate_recall(
    context: RunContext, wanted: DataFrame, warm: DataFrame, published: Manifest
) -> dict[str, Any] | None:
    """Recall of the candidates that the lists were chosen from, by source, of warm users and, under `cold_users`, of others.

    None where the candidates were built by a release that did not name their sources.

    Raises:
        DataError: the items were numbered anew since the candidates were built: their numbers mean other items.
    """
    version = published.facts["workflow_version"]
    partition = context.lake.candidates(version).partition(context.run_date)
    candidates = read_manifest(partition)
    sources = candidates.facts.get("sources")
    if sources is None:
        return None
    numbered = numbered_items(context, version)
    if candidates.inputs["candidate_items"] != numbered.digest:
        raise DataError(
            f"{candidates.table} dt={context.run_date} was built from candidate_items {candidates.inputs['candidate_items']}, "
            f"now they are {numbered.digest}",
            f"run build_candidates for {context.run_date} again",
        )
    items = candidate_items(context, version, numbered)
    found = measure_recall(rows_of(context.spark, partition, candidates), items, wanted, warm, sources)
    return {**asdict(found[True]), "cold_users": asdict(found[False]) if found[False].users else None}
