"""Compares the lists of a date with later clicks: hit rate, NDCG, coverage, and recall of the candidates.

Lists of the most popular items are measured in the same way. For a generated log, so are lists by the true
probabilities, which are the best possible lists. Users without a row in the train split are measured
separately, because the model has not been trained on their clicks. So are users and items that are new to the
model that made the lists.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from datetime import date, timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from conf.errors import DataError
from conf.load import config_digest
from etl.raw.files import require_raw
from etl.spark.read_log import good_rows, read_log
from etl.synthetic.truth import generated_days
from scoring.candidates.candidate_tables import exclusions, read_candidate_tables
from scoring.candidates.clicks import CLICK_COLUMNS
from scoring.candidates.filters import Exclusions
from scoring.candidates.popular import popular_items, popularity
from scoring.candidates.recall import measure_recall
from scoring.evaluation.cold_start import cold_start_facts, measure_cold_start, users_and_items
from scoring.evaluation.list_relevance import Relevance, coverage, measure_lists
from scoring.evaluation.true_lists import BEST, measure_true_lists, true_lists
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
    """Measures the lists of the run date and publishes the figures as the table `measures`."""
    require(context.config, "keys")
    lake, run_date, against = context.lake, context.run_date, context.config.measure.against
    published = read_manifest(lake.recommendations.partition(run_date))
    # A later run may have replaced days of this dataset, after a late file or an upgrade.
    dataset, changed = with_present_rows(lake, read_dataset(lake, run_date))
    if changed:
        log.warning(
            "days %s were built again after the lists of %s were made: the new rows of these days are used",
            changed,
            run_date,
        )
    k, items = published.facts["k"], published.facts["items"]
    train = read_split(context.spark, lake, dataset, ["train"], CLICK_COLUMNS)
    # Read the training rows once for the three measures that need the warm users.
    warm = train.select(USER_KEY).distinct().persist()
    with context.phase("positives"):
        clicked = positives(context, dataset).persist()
        num_clicked = clicked.count()
    if not num_clicked:
        raise DataError(
            f"there are no clicks to compare the lists of {run_date} with ({against})",
            "measure another date, or change measure.against",
        )
    with context.phase("lists"):
        kinds = {"lists": recommended(context, published)}
        measured = measure_lists(kinds["lists"], clicked, warm, k)
    with context.phase("popular"):
        available, excluding = candidates_of(context, dataset, published)
        kinds["popular"] = most_popular(excluding, available, train, k).persist()
        popular = measure_lists(kinds["popular"], clicked, warm, k)
        popular_coverage = coverage(kinds["popular"], items)
    with context.phase("truth"):
        generated = generated_days(lake, context.config.keys, measured_days(context, dataset))
        true = None
        if generated is not None:
            both = true_lists(excluding, available, generated, k).persist()
            true = measure_true_lists(both, clicked, warm, k, items)
            kinds["best"] = both.where(F.col("ranking") == BEST).drop("ranking")
    with context.phase("cold start"):
        cold_start = cold_start_of(context, published, train, kinds, clicked)
    with context.phase("candidates"):
        recall = candidate_recall(context, clicked, warm, published)
    facts = {
        "recommendations_date": run_date,
        "against": against,
        **relevance_facts(published, measured, popular, popular_coverage),
        "truth": truth_facts(measured[True], true),
        "cold_start": cold_start,
        "candidates": recall,
    }
    with context.phase("publish"):
        inputs = {
            "recommendations": published.digest,
            "dataset": dataset.digest,
            "config": config_digest(context.config, "measure", "candidates"),
        }
        publish_facts(lake.measures.partition(run_date), inputs=inputs, facts=facts)
    return JobSummary(lake.measures.partition(run_date).path, rows_in=num_clicked, facts=facts)


def relevance_facts(
    published: Manifest,
    lists: Mapping[bool, Relevance],
    popular: Mapping[bool, Relevance],
    popular_coverage: float,
) -> dict[str, Any]:
    """Returns hit rate, NDCG and coverage of our lists and of lists of the most popular items.

    Only users with rows in the train split are included. The key `cold_users` has the hit rate and NDCG of
    our lists for all other users.

    Args:
        published: the manifest of the lists.
        lists: the figures of our lists. The key True has those of users with rows in the train split, the key
            False those of all other users.
        popular: the same for the lists of the most popular items.
        popular_coverage: the share of all items that are in at least one list of the most popular items.
    """
    warm, popular_warm, cold = lists[True], popular[True], lists[False]
    return {
        "k": published.facts["k"],
        "users": warm.users,
        "hit_rate": warm.hit_rate,
        "ndcg": warm.ndcg,
        "coverage": published.facts["coverage"],
        "popular": {
            "hit_rate": popular_warm.hit_rate,
            "ndcg": popular_warm.ndcg,
            "coverage": popular_coverage,
        },
        "lift": warm.hit_rate / popular_warm.hit_rate
        if warm.hit_rate is not None and popular_warm.hit_rate
        else None,
        "cold_users": {"users": cold.users, "hit_rate": cold.hit_rate, "ndcg": cold.ndcg}
        if cold.users
        else None,
    }


def truth_facts(lists: Relevance, true: Mapping[str, Mapping[str, Any]] | None) -> dict[str, Any] | None:
    """Returns the figures of the lists by the true probabilities, and the share of the best that ours reach.

    Args:
        lists: the figures of our lists for users with rows in the train split.
        true: the result of `measure_true_lists`; None if the true probabilities are unknown.
    """
    if true is None:
        return None
    best = true[BEST]["hit_rate"]
    return {**true, "share_of_best": lists.hit_rate / best if lists.hit_rate is not None and best else None}


def cold_start_of(
    context: RunContext,
    published: Manifest,
    train: DataFrame,
    kinds: Mapping[str, DataFrame],
    clicked: DataFrame,
) -> dict[str, Any]:
    """Returns the figures of users and items that are new to the model (`cold_start_facts`).

    Args:
        context: the context of the run.
        published: the manifest of the lists.
        train: the rows of the train split.
        kinds: maps the name of each kind of lists to a frame with user_key, position and item_key. `lists`
            are the published ones.
        clicked: the clicks that the lists are compared with.
    """
    users, items = users_and_items(context, published.facts["workflow_version"], train)
    users, items = users.persist(), items.persist()
    measured = {
        kind: measure_cold_start(lists, clicked, users, items, published.facts["k"])
        for kind, lists in kinds.items()
    }
    return cold_start_facts(measured, kinds["lists"], clicked, items)


def measured_days(context: RunContext, dataset: Dataset) -> list[str]:
    """Returns the days of the clicks that the lists are compared with.

    Returns no day if the test split is not made of whole days.
    """
    if context.config.measure.against == "next_day":
        return [_day_after(context.run_date)]
    whole = context.config.split.by == "day"
    return [member.dt for member in dataset.splits["test"]] if whole else []


def _day_after(day: str) -> str:
    return (date.fromisoformat(day) + timedelta(days=1)).isoformat()


def positives(context: RunContext, dataset: Dataset) -> DataFrame:
    """Returns the clicks of the day after the run date, or of the test split, as (user_key, item_key).

    Each pair occurs once.

    Raises:
        DataError: the day after the lists has no raw log.
    """
    if context.config.measure.against == "test_split":
        rows = read_split(context.spark, context.lake, dataset, ["test"], CLICK_COLUMNS)
    else:
        day_after = _day_after(context.run_date)
        rows = good_rows(
            read_log(
                context.spark,
                context.config,
                require_raw(context.config, context.config.log, day_after, recorder=context.recorder),
            )
        )
    return rows.where(F.col(LABEL) == 1).select(USER_KEY, ITEM_KEY).distinct()


def recommended(context: RunContext, published: Manifest) -> DataFrame:
    """Returns the published lists with the columns user_key, position and item_key."""
    lists = rows_of(context.spark, context.lake.recommendations.partition(context.run_date), published)
    return lists.select(F.col("user_id").alias(USER_KEY), "position", F.col("item_id").alias(ITEM_KEY))


def candidates_of(context: RunContext, dataset: Dataset, published: Manifest) -> tuple[DataFrame, Exclusions]:
    """Returns the items that could be recommended, and the excluded items of each user of the lists."""
    version = published.facts["workflow_version"]
    items = candidate_items(context, version, numbered_items(context, version))
    return items, exclusions(context, dataset, version, items, read_candidate_tables(context, version))


def most_popular(excluding: Exclusions, items: DataFrame, train: DataFrame, k: int) -> DataFrame:
    """Returns lists of the k items with the most clicks in the train split.

    The columns are user_key, position and item_key. The lists are for the same users as the published
    lists, are made from the same items, and leave out the same excluded (user, item) pairs.
    """
    lists = popular_items(excluding, popularity(train, items), k)
    entries = lists.select(USER_KEY, F.posexplode(CANDIDATES).alias("place", ITEM_INDEX))
    return entries.join(items, ITEM_INDEX).select(USER_KEY, (F.col("place") + 1).alias("position"), ITEM_KEY)


def numbered_items(context: RunContext, version: str) -> Manifest:
    """Returns the manifest of the table `candidate_items` of the run date."""
    return read_manifest(context.lake.candidate_items(version).partition(context.run_date))


def candidate_items(context: RunContext, version: str, numbered: Manifest) -> DataFrame:
    """Returns the items that could be recommended, with the columns item_index and item_key."""
    partition = context.lake.candidate_items(version).partition(context.run_date)
    return rows_of(context.spark, partition, numbered, columns=[ITEM_INDEX, ITEM_KEY])


def candidate_recall(
    context: RunContext, clicked: DataFrame, warm: DataFrame, published: Manifest
) -> dict[str, Any] | None:
    """Returns the recall of the candidates, in total and by source, for users with rows in the train split.

    The key `cold_users` has the recall for all other users. Returns None if the candidates were built by a
    release that did not record the sources.

    Raises:
        DataError: candidate_items was replaced after the candidates were built, so item indices do not match.
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
            f"{candidates.table} dt={context.run_date} was built from candidate_items with the digest "
            f"{candidates.inputs['candidate_items']}, but the digest of candidate_items is now "
            f"{numbered.digest}",
            f"run build_candidates for {context.run_date} again",
        )
    items = candidate_items(context, version, numbered)
    recall = measure_recall(rows_of(context.spark, partition, candidates), items, clicked, warm, sources)
    return {**asdict(recall[True]), "cold_users": asdict(recall[False]) if recall[False].users else None}
