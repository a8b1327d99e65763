"""Measures of lists with one held-out item per user, and the lists themselves. It imports only NumPy.

Notation: U users, I items, k items per list. Items are numbered in the order of their keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Lists = NDArray[np.int64]
Matrix = NDArray[np.float64]

_USERS_AT_ONCE = 1024


@dataclass(frozen=True)
class Figures:
    """Means over users with one held-out item each.

    Attributes:
        hit_rate: share of the users whose held-out item is in their list.
        ndcg: mean of 1 / log2(1 + position) of the held-out item, 0 if it is not in the list.
        average_precision: mean of 1 / position, 0 if it is not in the list. With one relevant item, this is MAP.
        hit_rate_error: standard error of the hit rate.
        coverage: share of all items that are in at least one list.
        novelty: mean over list entries of -log2(share of the users who chose the item in the train split), in
            bits. Items that no user chose are left out.
    """

    hit_rate: float
    ndcg: float
    average_precision: float
    hit_rate_error: float
    coverage: float
    novelty: float


def top(scores_of: Callable[[slice], Matrix], excluded: Any, k: int) -> Lists:
    """Returns the k best items of each user, (U, k), without the excluded ones. Equal scores are ordered by item.

    Args:
        scores_of: returns the scores (u, I) of a range of users.
        excluded: a sparse matrix (U, I) of rows (CSR): not 0 where the item must not be in the user's list.
        k: items per list. -1 fills a list with fewer than k items.
    """
    lists = np.full((excluded.shape[0], k), -1, np.int64)
    for first in range(0, len(lists), _USERS_AT_ONCE):
        users = slice(first, first + _USERS_AT_ONCE)
        costs = np.where(excluded[users].toarray() != 0, np.inf, -scores_of(users))
        last = np.partition(costs, min(k, costs.shape[1]) - 1, axis=1)[:, min(k, costs.shape[1]) - 1]
        for user, (cost, limit) in enumerate(zip(costs, last, strict=True), first):
            items = np.flatnonzero((cost <= limit) & np.isfinite(cost))
            best = items[np.argsort(cost[items], kind="stable")[:k]]
            lists[user, : len(best)] = best
    return lists


def gains(lists: Lists, held_out: Lists) -> Matrix:
    """Returns (hit, gain, reciprocal rank) of each user with a held-out item, shape (users, 3).

    Args:
        lists: (U, k), -1 for no item.
        held_out: (U,), the held-out item, or -1 for a user without one.
    """
    users = held_out >= 0
    hits = lists[users] == held_out[users][:, None]
    position = np.arange(1, lists.shape[1] + 1)
    return np.stack([hits.any(1), (hits / np.log2(1 + position)).sum(1), (hits / position).sum(1)], axis=1)


def measure(lists: Lists, held_out: Lists, chosen: NDArray[np.int64], users: int) -> Figures:
    """Returns the figures of lists.

    Args:
        lists: (U, k), -1 for no item.
        held_out: (U,), the held-out item, or -1 for a user without one.
        chosen: (I,), number of users who chose each item in the train split.
        users: number of users with a row in the train split.
    """
    hit_rate, ndcg, average_precision = gains(lists, held_out).mean(0).tolist()
    shown = lists[held_out >= 0]
    shown = shown[shown >= 0]
    known = shown[chosen[shown] > 0]
    return Figures(
        hit_rate,
        ndcg,
        average_precision,
        float(np.sqrt(hit_rate * (1 - hit_rate) / (held_out >= 0).sum())),
        len(np.unique(shown)) / len(chosen),
        float(-np.log2(chosen[known] / users).mean()) if len(known) else 0.0,
    )


def mean_figures(
    lists: Sequence[Lists], held_out: Lists, chosen: NDArray[np.int64], users: int
) -> dict[str, float]:
    """Returns the means over seeds of all figures, by name; arguments as of `measure`, with lists of each seed."""
    of_seeds = [asdict(measure(one, held_out, chosen, users)) for one in lists]
    return {name: float(np.mean([of[name] for of in of_seeds])) for name in of_seeds[0]}


def paired_interval(
    ours: Matrix, theirs: Matrix, replicates: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Returns the 95% bootstrap interval of mean(ours - theirs), resampled by user (Efron 1979).

    Args:
        ours: (users,), one number per user.
        theirs: (users,), the same users in the same order.
        replicates: number of resamples.
        seed: seed of the resamples.
    """
    differences = ours - theirs
    draw = np.random.default_rng(seed)
    means = [
        differences[draw.integers(0, len(differences), (100, len(differences)))].mean(1)
        for _ in range(replicates // 100)
    ]
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975]).tolist()
    return low, high
