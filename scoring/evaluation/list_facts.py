"""Turns figures of lists into facts: our lists, the most popular items, and the best possible lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scoring.evaluation.measured_lists import NO_ITEMS, NO_LISTS, ItemCounts, MeasuredLists
from scoring.evaluation.true_lists import BEST, RANKINGS
from storage.manifest import Manifest

# The kinds of lists, beside those of scoring.evaluation.true_lists.
PUBLISHED, POPULAR = "lists", "popular"


def relevance_facts(
    published: Manifest, measured: Mapping[str, MeasuredLists], counts: Mapping[str, ItemCounts]
) -> dict[str, Any]:
    """Returns hit rate, NDCG and coverage of our lists and of lists of the most popular items.

    Only users with rows in the train split are included. The key `cold_users` has the hit rate and NDCG of
    our lists for all other users.

    Args:
        published: the manifest of the lists.
        measured: the relevance of each kind of lists.
        counts: the counts of items of each kind of lists.
    """
    lists, popular = measured.get(PUBLISHED, NO_LISTS), measured.get(POPULAR, NO_LISTS).warm
    warm, cold = lists.warm, lists.cold
    return {
        "k": published.facts["k"],
        "users": warm.users,
        "hit_rate": warm.hit_rate,
        "ndcg": warm.ndcg,
        "coverage": published.facts["coverage"],
        "popular": {
            "hit_rate": popular.hit_rate,
            "ndcg": popular.ndcg,
            "coverage": coverage(counts, POPULAR, published),
        },
        "lift": warm.hit_rate / popular.hit_rate if warm.hit_rate is not None and popular.hit_rate else None,
        "cold_users": {"users": cold.users, "hit_rate": cold.hit_rate, "ndcg": cold.ndcg}
        if cold.users
        else None,
    }


def coverage(counts: Mapping[str, ItemCounts], kind: str, published: Manifest) -> float:
    """Returns the share of all items that are in at least one list of a kind; 0 if there are no items."""
    items = published.facts["items"]
    return counts.get(kind, NO_ITEMS).distinct / items if items else 0.0


def truth_facts(
    published: Manifest, measured: Mapping[str, MeasuredLists], counts: Mapping[str, ItemCounts]
) -> dict[str, Any] | None:
    """Returns the figures of the lists by the true probabilities, and the share of the best that ours reach.

    These lists were made only for users with clicks, so their coverage is that of fewer lists than ours.

    The arguments are those of `relevance_facts`. Returns None if the true probabilities are unknown.
    """
    if BEST not in counts:
        return None
    true = {}
    for ranking in RANKINGS:
        warm = measured.get(ranking, NO_LISTS).warm
        true[ranking] = {
            "hit_rate": warm.hit_rate,
            "ndcg": warm.ndcg,
            "coverage": coverage(counts, ranking, published),
        }
    ours, best = measured.get(PUBLISHED, NO_LISTS).warm.hit_rate, true[BEST]["hit_rate"]
    return {**true, "share_of_best": ours / best if ours is not None and best else None}


def shown_kinds(
    measured: Mapping[str, MeasuredLists], counts: Mapping[str, ItemCounts]
) -> dict[str, MeasuredLists]:
    """Returns the kinds of lists in the facts of new users and items: with BEST if the truth is known."""
    kinds = [PUBLISHED, POPULAR, *([BEST] if BEST in counts else [])]
    return {kind: measured.get(kind, NO_LISTS) for kind in kinds}
