"""The sampled protocols of two papers, for benchmarks/lists.py. It imports only NumPy.

A sampled protocol does not rank all items. It ranks the test item among items that are drawn for the user, from those
that the user has not rated before the test.

* `ncf`: 99 items, drawn uniformly (He et al. 2017, Neural Collaborative Filtering, section 4.1).
* `bert4rec`: 100 items, drawn by popularity, the number of users who chose the item in the train split (Sun et al.
  2019, BERT4Rec, section 4.2).

The drawn items of a user are distinct. Every contender ranks the same items. Krichene and Rendle 2020 (On Sampled
Metrics for Item Recommendation) show that such figures may order models differently than a full ranking.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.list_measures import Lists, Matrix, gains

SAMPLES: Mapping[str, int] = {"ncf": 99, "bert4rec": 100}

_SEED = 2019
_USERS_AT_ONCE = 512


def draw_samples(protocol: str, test: Lists, excluded: Any, chosen: NDArray[np.int64]) -> Lists:
    """Returns the test item of each user and the drawn items, in the order of the items, (U, 1 + drawn).

    -1 fills the row of a user without a test item, and of a user for whom fewer items can be drawn.

    Args:
        protocol: a name in SAMPLES.
        test: (U,), the test item of each user, or -1.
        excluded: a sparse matrix (U, I) of rows (CSR): not 0 where the user rated the item before the test.
        chosen: (I,), number of users who chose each item in the train split.
    """
    weights = chosen.astype(np.float64) if protocol == "bert4rec" else np.ones(len(chosen))
    count, draw = SAMPLES[protocol], np.random.default_rng(_SEED)
    samples = np.full((len(test), 1 + count), -1, np.int64)
    for first in range(0, len(test), _USERS_AT_ONCE):
        users = slice(first, min(first + _USERS_AT_ONCE, len(test)))
        # The smallest of independent exponential times with these rates are a draw without replacement in which
        # each item is drawn with a probability proportional to its weight among the items that are left.
        with np.errstate(divide="ignore"):
            times = draw.exponential(size=(users.stop - first, len(chosen))) / weights
        times[excluded[users].toarray() != 0] = np.inf
        rows = np.flatnonzero(test[users] >= 0)
        times[rows, test[users][rows]] = np.inf
        first_items = np.argpartition(times, min(count, len(chosen)) - 1, axis=1)[:, :count]
        drawn = np.where(np.isfinite(np.take_along_axis(times, first_items, axis=1)), first_items, -1)
        samples[users, 0], samples[users, 1 : 1 + drawn.shape[1]] = test[users], drawn
    samples[test < 0] = -1
    return np.sort(samples, axis=1)


def best_samples(scores_of: Callable[[slice], Matrix], samples: Lists, k: int) -> Lists:
    """Returns the k best of the samples of each user, (U, k); equal scores by item.

    Args:
        scores_of: returns the scores (u, I) of a range of users.
        samples: (U, C) items in ascending order; -1 for no item.
        k: items per list. -1 fills a list with fewer items.
    """
    lists = [np.zeros((0, k), np.int64)]
    for first in range(0, len(samples), _USERS_AT_ONCE):
        users = slice(first, min(first + _USERS_AT_ONCE, len(samples)))
        scores = np.take_along_axis(np.asarray(scores_of(users)), samples[users].clip(0), axis=1)
        lists.append(best_of_scores(scores, samples[users], k))
    return np.concatenate(lists)


def best_of_scores(scores: NDArray[Any], samples: Lists, k: int) -> Lists:
    """Returns the k best of the samples of each user, (U, k); equal scores by item.

    Args:
        scores: (U, C) the score of each sample.
        samples: (U, C) as in `best_samples`.
        k: items per list.
    """
    costs = np.where(samples < 0, np.inf, -scores.astype(np.float64))
    order = np.argsort(costs, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(np.where(np.isfinite(costs), samples, -1), order, axis=1)


def sampled_figures(lists: Mapping[str, list[Lists]], test: Lists) -> dict[str, dict[str, float]]:
    """Returns hit rate and NDCG of each protocol, means over seeds, as JSON values.

    Args:
        lists: maps the name of a protocol to the lists (U, k) of each seed.
        test: (U,), the test item of each user, or -1 for a user who is not measured.
    """
    figures = {}
    for protocol, of_seeds in lists.items():
        hit_rate, ndcg, _ = np.mean([gains(one, test).mean(0) for one in of_seeds], axis=0).tolist()
        figures[protocol] = {"hit_rate": hit_rate, "ndcg": ndcg}
    return figures
