"""Compares the lists of a date with later clicks: hit rate, NDCG, coverage, and recall of the candidates.

Lists of the most popular items are measured in the same way. For a generated log, the best possible lists are
also measured. They follow from the true probabilities. Users without a row in the train split are measured
separately, because the model has not been trained on their clicks. Users and items that are new to the model
that made the lists are also measured separately.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from datetime import date, timedelta
from typing import Any, assert_never

from conf.errors import DataError
from conf.load import config_digest
from etl.synthetic.truth import generated_days
from etl.workflow.feature_plan import plan_of
from jobs.runner import run_job
from jobs.table_copies import copy_tables_of_run
from scoring.candidates.candidate_tables import exclusions, frames_needed, read_candidate_tables
from scoring.candidates.clicks import CLICK_COLUMNS
from scoring.candidates.exclusions import Exclusions
from scoring.candidates.popular import popular_items, popularity
from scoring.candidates.recall import measure_recall
from scoring.evaluation.experiment_measures import measure_experiment
from scoring.evaluation.impression_measures import find_impressions, measure_impressions
from scoring.evaluation.list_facts import (
    POPULAR,
    PUBLISHED,
    cold_start_facts,
    relevance_facts,
    shown_kinds,
    true_lists,
    truth_facts,
    users_and_items,
)
from scoring.evaluation.measured_lists import KIND, count_items, measure_kinds
from scoring.evaluation.rows_of_day import new_rows_of_day, rows_of_day
from scoring.feature_rows import count_rows, read_split
from scoring.requests import CANDIDATES, ITEM_INDEX
from spark.choose_workers import stay_in_process, workers_of
from spark.rows import Rows, count, list_entries, persist, query, read_rows, union_all, with_value
from storage.dataset import Dataset, read_dataset, with_present_rows
from storage.feature_spec import ITEM_KEY
from storage.job_summary import JobSummary
from storage.manifest import Manifest, read_manifest
from storage.publish import publish_facts
from storage.run_context import RunContext, require

DESCRIPTION = (
    "Compares the lists of a date with later clicks: hit rate, NDCG and coverage of the lists and of the "
    "most popular items, and the recall of the candidates. Users without a row in the train split are "
    "measured separately, because the model was not trained on their rows. For a log of "
    "generate_clicks, the job also measures the best possible lists, which follow from the true "
    "probabilities."
)

log = logging.getLogger("nightrank.measure")


def run(context: RunContext) -> JobSummary:
    """Measures the lists of the run date and publishes the figures as the table `measures`."""
    require(context.config, "keys")
    copy_tables_of_run(context, plan_of(context.config), [_day_after(context.run_date)])
    lake, run_date, against = context.lake, context.run_date, context.config.measure.against
    published = read_manifest(lake.recommendations.partition(run_date))
    if against == "test_split":
        require_no_refit(published)
    # A later run may have replaced days of this dataset, because a file came late, or because the project was
    # upgraded.
    dataset, changed = with_present_rows(lake, read_dataset(lake, run_date))
    if changed:
        log.warning(
            "days %s were built again after the lists of %s were made: the new rows of these days are used",
            changed,
            run_date,
        )
    k = published.facts["k"]
    if not frames_needed(context.config):
        stay_in_process(context, count_rows(lake, dataset) + published.rows)
    train = read_split(context, dataset, ["train"], CLICK_COLUMNS)
    warm = persist(query("SELECT DISTINCT user_key FROM {train}", train=train))
    with context.phase("positives"):
        clicked = persist(positives(context, dataset))
        num_clicked = count(clicked)
    unmeasured = {}
    if not num_clicked:
        unmeasured = {"unmeasured": why_unmeasured(context, dataset)}
        log.warning(
            "the lists of %s cannot be measured, and their measures are null: %s",
            run_date,
            unmeasured["unmeasured"],
        )
    with context.phase("lists"):
        kinds = persist(all_kinds(context, dataset, published, train, clicked))
        users, items = users_and_items(context, published.facts["workflow_version"], train)
        items = persist(items)
        measured = measure_kinds(kinds, clicked, warm, users, items, k)
    with context.phase("items"):
        counts = count_items(kinds, clicked, items)
    with context.phase("candidates"):
        recall = candidate_recall(context, clicked, warm, published)
    experiment = measure_experiment(context, published, clicked)
    shown = find_impressions(context)
    impressions = measure_impressions(context, published, clicked, shown)
    facts = {
        "recommendations_date": run_date,
        "against": against,
        **unmeasured,
        **relevance_facts(published, measured, counts),
        "truth": truth_facts(published, measured, counts),
        "cold_start": cold_start_facts(shown_kinds(measured, counts), counts, PUBLISHED),
        "candidates": recall,
        **({"blend": published.facts["blend"]} if "blend" in published.facts else {}),
        **({"experiment": experiment} if experiment else {}),
        **({"impressions": impressions} if impressions else {}),
    }
    with context.phase("publish"):
        inputs = {
            "recommendations": published.digest,
            "dataset": dataset.digest,
            "config": config_digest(context.config, "measure", "candidates"),
            **({"serving": config_digest(context.config, "serving")} if experiment or impressions else {}),
            **({"impressions": shown.digest} if shown else {}),
        }
        publish_facts(lake.measures.partition(run_date), inputs=inputs, facts=facts)
    return JobSummary(lake.measures.partition(run_date).path, rows_in=num_clicked, facts=facts)


def require_no_refit(published: Manifest) -> None:
    """Raises DataError if a refit, which was also trained on the test split, made the lists (train.refit)."""
    if published.facts.get("refit_of"):
        raise DataError(
            f"the lists of {published.partition} were made by refit {published.facts['model_version']}, "
            "which was also trained on the test split, so measure.against=test_split cannot measure them",
            "set train.refit=false and run score_daily again, or set measure.against=next_day",
        )


def all_kinds(context: RunContext, dataset: Dataset, published: Manifest, train: Rows, clicked: Rows) -> Rows:
    """Returns all kinds of lists that are compared: the columns kind, user_key, position and item_key.

    The kinds are the published lists (PUBLISHED), lists of the most popular items (POPULAR) and, for a
    generated log, the best possible lists (scoring.evaluation.list_facts). All kinds have lists of the same
    users: those with a published list. The best possible lists take long to compute, so they are made only
    for the users in `clicked`. The lists of other users cannot be compared with clicks.
    """
    k = published.facts["k"]
    lists = recommended(context, published)
    items, of_all_users = candidates_of(context, dataset, published)
    with_list = query(
        "SELECT * FROM {users} WHERE user_key IN (SELECT user_key FROM {lists})",
        users=of_all_users.users,
        lists=lists,
    )
    excluding = replace(of_all_users, users=with_list)
    kinds = [
        with_value(lists, KIND, PUBLISHED),
        with_value(most_popular(excluding, items, train, k), KIND, POPULAR),
    ]
    generated = generated_days(context.lake, context.config.keys, measured_days(context, dataset))
    if generated is not None:
        compared = query(
            "SELECT * FROM {users} WHERE user_key IN (SELECT user_key FROM {clicked})",
            users=excluding.users,
            clicked=clicked,
        )
        with_clicks = replace(excluding, users=compared)
        kinds.append(true_lists(workers_of(context), with_clicks, items, generated, k))
    return union_all(kinds)


def measured_days(context: RunContext, dataset: Dataset) -> list[str]:
    """Returns the days of the clicks that the lists are compared with.

    Returns no day if the test split does not consist of complete days.
    """
    if context.config.measure.against == "next_day":
        return [_day_after(context.run_date)]
    if context.config.measure.against == "test_split":
        whole = context.config.split.by == "day"
        return [member.dt for member in dataset.splits["test"]] if whole else []
    assert_never(context.config.measure.against)


def _day_after(day: str) -> str:
    return (date.fromisoformat(day) + timedelta(days=1)).isoformat()


def positives(context: RunContext, dataset: Dataset) -> Rows:
    """Returns the clicks of the day after the run date, or of the test split, as (user_key, item_key).

    Each pair occurs once. If the path of the log has no date, clicks that the run may have read
    before it made the lists are left out.

    Raises:
        DataError: the day after the lists has no raw log.
    """
    if context.config.measure.against == "test_split":
        rows = read_split(context, dataset, ["test"], CLICK_COLUMNS)
    elif context.config.measure.against == "next_day":
        day = _day_after(context.run_date)
        by_day = context.config.log.by_day
        rows = rows_of_day(context, day) if by_day else new_rows_of_day(context, dataset, day)
    else:
        assert_never(context.config.measure.against)
    return query("SELECT DISTINCT user_key, item_key FROM {rows} WHERE label = 1", rows=rows)


def why_unmeasured(context: RunContext, dataset: Dataset) -> str:
    """Returns the reason why there is no click with which the lists can be compared."""
    config, against = context.config, context.config.measure.against
    days = measured_days(context, dataset) or ["the test split"]
    reason = f"there is no click on {', '.join(days)} ({against})"
    if against == "test_split" or config.log.by_day:
        return reason
    if config.log.event_time is None:
        return (
            f"log.path={config.log.path!r} has no {{date}} and rows have no log.event_time, so the clicks "
            f"after {context.run_date} are unknown"
        )
    return f"{reason} that is later than the rows of the run of {context.run_date}"


def recommended(context: RunContext, published: Manifest) -> Rows:
    """Returns the published lists with the columns user_key, position and item_key."""
    partition, columns = (
        context.lake.recommendations.partition(context.run_date),
        ["user_id", "position", "item_id"],
    )
    lists = read_rows(context, partition, published, columns=columns)
    return query("SELECT user_id AS user_key, position, item_id AS item_key FROM {lists}", lists=lists)


def candidates_of(context: RunContext, dataset: Dataset, published: Manifest) -> tuple[Rows, Exclusions]:
    """Returns the items that could be recommended, and the excluded items of each user of the lists."""
    version = published.facts["workflow_version"]
    items = candidate_items(context, version, numbered_items(context, version))
    return items, exclusions(context, dataset, version, items, read_candidate_tables(context, version))


def most_popular(excluding: Exclusions, items: Rows, train: Rows, k: int) -> Rows:
    """Returns lists of the k items with the most clicks in the train split.

    The columns are user_key, position and item_key. There is one list for each user in `excluding`, and its
    items are chosen from `items`, without the items that are excluded for the user.
    """
    lists = popular_items(excluding, popularity(train, items), k)
    return query(
        """
        SELECT user_key, position, item_key
        FROM {entries} AS entries JOIN {items} AS items ON items.item_index = entries.item_index
        """,
        entries=list_entries(lists, CANDIDATES, ITEM_INDEX),
        items=items,
    )


def numbered_items(context: RunContext, version: str) -> Manifest:
    """Returns the manifest of the table `candidate_items` of the run date."""
    return read_manifest(context.lake.candidate_items(version).partition(context.run_date))


def candidate_items(context: RunContext, version: str, numbered: Manifest) -> Rows:
    """Returns the items that could be recommended, with the columns item_index and item_key."""
    partition = context.lake.candidate_items(version).partition(context.run_date)
    return read_rows(context, partition, numbered, columns=[ITEM_INDEX, ITEM_KEY])


def candidate_recall(
    context: RunContext, clicked: Rows, warm: Rows, published: Manifest
) -> dict[str, Any] | None:
    """Returns the recall of the candidates, in total and by source, for users with rows in the train split.

    The key `cold_users` has the recall for users without train rows. Returns None if the candidates were
    built by a release that did not record the sources.

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
    recall = measure_recall(read_rows(context, partition, candidates), items, clicked, warm, sources)
    return {**asdict(recall[True]), "cold_users": asdict(recall[False]) if recall[False].users else None}


if __name__ == "__main__":
    run_job("measure_recommendations", DESCRIPTION, run)
