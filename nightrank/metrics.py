"""Measures of predictions and of recommendations, with confidence intervals, on NumPy arrays.

    from nightrank import metrics

    metrics.auc(labels, probabilities)                                    # of rows
    metrics.ndcg([["i3", "i1"], ["i2", "i3"]], [["i1"], ["i3"]], k=2)     # of lists, one per user
    metrics.interval(metrics.auc, labels, probabilities, users=users)     # a bootstrap over users

Measures of rows receive one label and one score per row. Measures of lists receive one list of item ids per
user, best item first, and the relevant items of each user, such as the items that the user clicked after the
list was made. Ids are integers or strings. Users without a relevant item are left out of the mean. Arguments
may be lists, NumPy arrays or columns of pandas.

All errors are subclasses of `nightrank.NightrankError`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conf.errors import ConfigError, DataError
from metrics import bootstrap, clicks, ranking
from metrics.bootstrap import Resample
from metrics.ranking import Hits, ranked_rows

__all__ = [
    "ConfidenceInterval",
    "auc",
    "average_precision",
    "coverage",
    "hit_rate",
    "interval",
    "log_loss",
    "mean_average_precision",
    "mean_reciprocal_rank",
    "ndcg",
    "normalized_entropy",
    "novelty",
    "precision",
    "ranked_rows",
    "recall",
]

Floats = NDArray[np.float64]
Collections = Iterable[ArrayLike]


# Measures of rows.


def auc(labels: ArrayLike, scores: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Returns the area under the ROC curve, as sklearn.metrics.roc_auc_score does.

    It is the share of (positive, negative) pairs of rows whose scores are in the right order. A pair with
    equal scores counts 1/2.

    Args:
        labels: (N,) 0 or 1.
        scores: (N,) finite numbers; a higher score means that label 1 is more likely.
        weights: (N,) finite and not negative; None means 1 for each row.

    Raises:
        DataError: the weights of a class sum to 0, a label is not 0 or 1, a score or weight is invalid, or
            lengths differ.
    """
    return clicks.auc(*_rows(labels, scores, weights))


def average_precision(labels: ArrayLike, scores: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Returns the average precision of rows, as sklearn.metrics.average_precision_score does.

    Rows with equal scores have one common threshold. Arguments and errors are those of `auc`, but the weights
    of the negative rows may sum to 0.
    """
    return clicks.average_precision(*_rows(labels, scores, weights))


def log_loss(labels: ArrayLike, probabilities: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Returns the mean cross entropy of probabilities in nats, as sklearn.metrics.log_loss does.

    Probabilities are clipped to [2⁻²⁴, 1 − 2⁻²⁴], so that a probability of 0 has a finite loss. (scikit-learn
    clips to the smallest step of the type of the probabilities.) Arguments are those of `auc`.

    Raises:
        DataError: a probability is outside [0, 1], all weights are 0, or an argument breaks a rule of `auc`.
    """
    return clicks.log_loss(*_probabilities(labels, probabilities, weights))


def normalized_entropy(
    labels: ArrayLike, probabilities: ArrayLike, weights: ArrayLike | None = None
) -> float:
    """Returns the log loss divided by the log loss of always predicting the share of positive rows.

    A value below 1 is better than this constant prediction (X. He et al., ADKDD 2014, section 3). Arguments
    and errors are those of `log_loss`, and both classes must have rows.
    """
    return clicks.normalized_entropy(*_probabilities(labels, probabilities, weights))


def _rows(labels: ArrayLike, scores: ArrayLike, weights: ArrayLike | None) -> tuple[Floats, Floats, Floats]:
    """Checks labels, scores and weights, and returns them as float64 vectors."""
    label, score, weight = clicks.vectors(labels, scores, weights)
    wrong = ~np.isin(label, (0, 1))
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(f"row {row}: the label {label[row]} is not 0 or 1", "convert labels to 0 and 1")
    return label, score, _checked_weights(weight)


def _probabilities(
    labels: ArrayLike, probabilities: ArrayLike, weights: ArrayLike | None
) -> tuple[Floats, Floats, Floats]:
    label, probability, weight = _rows(labels, probabilities, weights)
    wrong = (probability < 0) | (probability > 1)
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(
            f"row {row}: the probability {probability[row]} is outside [0, 1]",
            "pass probabilities, or measure scores by `auc` or `average_precision`",
        )
    return label, probability, weight


def _checked_weights(weights: Floats) -> Floats:
    wrong = ~np.isfinite(weights) | (weights < 0)
    if wrong.any():
        place = int(wrong.argmax())
        raise DataError(
            f"weight {place} is {weights[place]}, but weights must be finite and not negative",
            "correct the weights",
        )
    return weights


# Measures of lists. Each measure except `coverage` is a mean over users.


class _Terms(NamedTuple):
    """A weighted mean: Σ weight · value / Σ weight. `values` and `weights` have one number per user."""

    values: Floats
    weights: Floats

    def mean(self) -> float:
        """Returns the mean. Raises DataError if all weights are 0."""
        if not self.weights.sum():
            raise DataError("the weights sum to 0, so the mean is undefined", "pass positive weights")
        return float(np.average(self.values, weights=self.weights))


def hit_rate(
    recommended: Collections, relevant: Collections, k: int, weights: ArrayLike | None = None
) -> float:
    """Returns the share of users with a relevant item among the first k of their list (HR@k).

    Args:
        recommended: U lists of distinct item ids, the best item first, such as the rows of an array. An empty
            list counts as a list without a relevant item.
        relevant: the relevant items of the same U users. Users without relevant items are left out.
        k: number of positions that are measured.
        weights: (U,) weight of each user; None means 1.

    Raises:
        ConfigError: k is not a positive integer.
        DataError: the numbers of users differ; no user has a relevant item; a list has an item twice; an id
            is missing or has another type; or a weight is negative or not finite.
    """
    return _terms(ranking.any_hits, recommended, relevant, k, weights).mean()


def ndcg(recommended: Collections, relevant: Collections, k: int, weights: ArrayLike | None = None) -> float:
    """Returns the mean NDCG@k with binary relevance. Arguments and errors are those of `hit_rate`.

    The value of a user is the DCG@k of the list, divided by the DCG@k of a list whose first min(k, r) items
    are relevant (Järvelin and Kekäläinen 2002). DCG@k is Σ_{i ≤ k} relevant_i / log2(i + 1), where relevant_i
    is 1 if the item at position i is relevant, and otherwise 0. r is the number of relevant items of the
    user.
    """
    return _terms(ranking.normalized_gains, recommended, relevant, k, weights).mean()


def mean_average_precision(
    recommended: Collections, relevant: Collections, k: int, weights: ArrayLike | None = None
) -> float:
    """Returns the mean over users of the average precision at k (MAP@k).

    AP@k is Σ_{i ≤ k} relevant_i · precision(i) / min(r, k). relevant_i is 1 if the item at position i is
    relevant, and otherwise 0. precision(i) is the share of relevant items among the first i, and r is the
    number of relevant items of the user. Arguments and errors are those of `hit_rate`.
    """
    return _terms(ranking.average_precisions, recommended, relevant, k, weights).mean()


def mean_reciprocal_rank(
    recommended: Collections, relevant: Collections, k: int, weights: ArrayLike | None = None
) -> float:
    """Returns the mean over users of 1 / (position of the first relevant item), the MRR@k.

    If this position is after k, the value of the user is 0.
    Arguments and errors are those of `hit_rate`.
    """
    return _terms(ranking.reciprocal_ranks, recommended, relevant, k, weights).mean()


def recall(
    recommended: Collections, relevant: Collections, k: int, weights: ArrayLike | None = None
) -> float:
    """Returns the mean share of a user's relevant items that are in the first k of the list (recall@k).

    Arguments and errors are those of `hit_rate`.
    """
    return _terms(ranking.recalls, recommended, relevant, k, weights).mean()


def precision(
    recommended: Collections, relevant: Collections, k: int, weights: ArrayLike | None = None
) -> float:
    """Returns the mean number of relevant items among the first k of a list, divided by k (precision@k).

    For a list with fewer than k items, the divisor is also k. Arguments and errors are those of `hit_rate`.
    """
    return _terms(ranking.precisions, recommended, relevant, k, weights).mean()


def _terms(
    values: Callable[[Hits, int], Floats],
    recommended: Collections,
    relevant: Collections,
    k: int,
    weights: ArrayLike | None = None,
) -> _Terms:
    """Returns a measure's value for each user with relevant items, and the weights of these users."""
    hits, measured = ranking.hits_of_lists(recommended, relevant, k)
    return _Terms(values(hits, k), _user_weights(weights, len(measured))[measured])


def _user_weights(weights: ArrayLike | None, users: int) -> Floats:
    """Returns one weight per user: those in `weights`, or 1."""
    weight = np.ones(users) if weights is None else clicks.doubles("weights", weights)
    if weight.shape != (users,):
        raise DataError(
            f"there are {users} lists, but weights of shape {weight.shape}", "pass one weight per list"
        )
    return _checked_weights(weight)


def novelty(
    recommended: Collections, seen: Collections, k: int | None = None, weights: ArrayLike | None = None
) -> float:
    """Returns the mean over users of the mean self-information of the items in their list, in bits.

    The self-information of an item is log2(V / c), where c of V users have seen the item (T. Zhou et al.,
    PNAS 2010, equation 5). An item that no user has seen counts like an item that one user has seen. Users
    with empty lists are left out.

    Args:
        recommended: U lists of distinct item ids.
        seen: V collections of item ids: the items that each user has seen, such as the items of the training
            rows. Repeated ids count once.
        k: number of positions that are measured; None for all positions.
        weights: (U,) weight of each user; None means 1.

    Raises:
        ConfigError: k is not a positive integer.
        DataError: all lists are empty, there are no users in `seen`, or an argument breaks a rule of
            `hit_rate`.
    """
    return _novelties(recommended, seen, k, weights).mean()


def _novelties(
    recommended: Collections, seen: Collections, k: int | None = None, weights: ArrayLike | None = None
) -> _Terms:
    listed, watched = _numbered_lists(recommended, seen, "seen", k)
    if not len(watched.lengths):
        raise DataError("seen has no users", "pass the items that each user has seen")
    watched = ranking.distinct_pairs(watched)
    size = int(max(listed.ids.max(initial=0), watched.ids.max(initial=0))) + 1
    users = np.maximum(np.bincount(watched.ids, minlength=size), 1)
    information = np.log2(len(watched.lengths) / users)
    filled = np.flatnonzero(listed.lengths)
    if not len(filled):
        raise DataError("all lists are empty, so their novelty is undefined", "pass lists with items")
    sums = np.bincount(listed.owner, weights=information[listed.ids], minlength=len(listed.lengths))
    return _Terms(
        (sums[filled] / listed.lengths[filled]), _user_weights(weights, len(listed.lengths))[filled]
    )


def coverage(recommended: Collections, catalogue: ArrayLike, k: int | None = None) -> float:
    """Returns the share of the items of a catalogue that are in at least one list.

    RecBole has the same measure (recbole/evaluator/metrics.py, class ItemCoverage).

    Args:
        recommended: U lists of distinct item ids.
        catalogue: the ids of all items. Repeated ids count once.
        k: number of positions that are measured; None for all positions.

    Raises:
        ConfigError: k is not a positive integer.
        DataError: the catalogue is empty, a list has an item that is not in the catalogue, or the lists break
            a rule of `hit_rate`.
    """
    listed, known = _numbered_lists(recommended, [catalogue], "catalogue", k)
    if not len(known.ids):
        raise DataError("the catalogue is empty, so the coverage is undefined", "pass the ids of all items")
    distinct = np.unique(known.ids)
    used = np.unique(listed.ids)
    outside = np.setdiff1d(used, distinct)
    if len(outside):
        raise DataError(
            f"{len(outside)} of {len(used)} recommended items are not in the catalogue",
            "pass the ids of all items that can be recommended",
        )
    return len(used) / len(distinct)


def _numbered_lists(
    recommended: Collections, others: Collections, name: str, k: int | None
) -> tuple[ranking.IdLists, ranking.IdLists]:
    """Returns the first k items of each list in `recommended`, and `others`. Numbers replace item ids."""
    if k is not None:
        ranking.require_k(k)
    names = ("recommended", name)
    lists = ranking.read_lists(names[0], recommended), ranking.read_lists(name, others)
    listed, numbered = ranking.numbered(names, lists)
    ranking.require_distinct(names[0], listed, lists[0].ids)
    if k is not None:
        listed = ranking.IdLists(np.minimum(listed.lengths, k), listed.ids[listed.position <= k])
    return listed, numbered


# Confidence intervals.

_OF_LISTS: dict[Callable[..., float], Callable[..., _Terms]] = {
    hit_rate: lambda *arguments, **named: _terms(ranking.any_hits, *arguments, **named),
    ndcg: lambda *arguments, **named: _terms(ranking.normalized_gains, *arguments, **named),
    mean_average_precision: lambda *arguments, **named: _terms(
        ranking.average_precisions, *arguments, **named
    ),
    mean_reciprocal_rank: lambda *arguments, **named: _terms(ranking.reciprocal_ranks, *arguments, **named),
    recall: lambda *arguments, **named: _terms(ranking.recalls, *arguments, **named),
    precision: lambda *arguments, **named: _terms(ranking.precisions, *arguments, **named),
    novelty: _novelties,
}
_OF_ROWS = (auc, average_precision, log_loss, normalized_entropy)


@dataclass(frozen=True)
class ConfidenceInterval:
    """The value of a measure with its confidence interval.

    Attributes:
        value: the measure of all rows or lists.
        low, high: bounds of the interval; NaN if lists have too few users for an interval.
        confidence: the confidence, such as 0.95.
        replicates: number of resamples in which the measure is defined.
    """

    value: float
    low: float
    high: float
    confidence: float
    replicates: int

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


def interval(
    measure: Callable[..., float],
    *arguments: Any,
    users: ArrayLike | None = None,
    replicates: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    **named: Any,
) -> ConfidenceInterval:
    """Returns the value of a measure with a percentile interval from a bootstrap over users.

    Each resample gives every user a weight from Poisson(1), which approximates drawing users with replacement
    (N. Chamandy et al., Google 2012). The bounds are quantiles of the measure over all resamples (B. Efron
    and R. Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13). The result depends only on the
    arguments.

    A measure of lists is undefined in a resample in which all users have the weight 0. If it is undefined in
    more than a tenth of the resamples, as for one or two users, the bounds are NaN.

    Args:
        measure: a function of this module except `coverage`. A resample has fewer distinct users, so its
            coverage would be too small.
        arguments, named: the arguments of the measure.
        users: (N,) the user of each row, of any sortable type. Rows of one user are not independent. None
            means that all rows are independent. For measures of lists, `users` must be None, because each
            list belongs to one user.
        replicates: number of resamples.
        confidence: share of the resamples whose measure is between the bounds.
        seed: seed of the weights.

    Raises:
        ConfigError: `measure` is not one of the accepted functions, `users` is set for a measure of lists,
            `replicates` is not a positive integer, `confidence` is not between 0 and 1, or `seed` is not an
            integer of 64 bits.
        DataError: the measure is undefined for the arguments, a measure of rows is undefined in more than a
            tenth of the resamples, or an argument is invalid.
    """
    for name, number in (("replicates", replicates), ("seed", seed)):
        if not isinstance(number, Integral) or not -(2**63) <= number < 2**63:
            raise ConfigError(f"{name}={number!r} is not an integer of 64 bits", "pass such an integer")
    if replicates < 1 or not 0 < confidence < 1:
        raise ConfigError(
            f"replicates={replicates} and confidence={confidence} are not allowed",
            "pass replicates of 1 or more, and a confidence between 0 and 1",
        )
    resample = Resample(replicates, seed)
    if measure in _OF_LISTS:
        if users is not None:
            raise ConfigError(
                f"`users` is for rows, but {measure.__name__} is a measure of lists", "remove `users`"
            )
        terms = _OF_LISTS[measure](*arguments, **named)
        value, measured = terms.mean(), _resampled_means(terms, resample)
    elif measure in _OF_ROWS:
        value = measure(*arguments, **named)
        bound = inspect.signature(measure).bind(*arguments, **named)  # labels, scores and maybe weights
        measured = _resampled_rows(measure, *bound.args, users=users, resample=resample)
    else:
        known = [one.__name__ for one in (*_OF_ROWS, *_OF_LISTS)]
        raise ConfigError(f"{measure!r} is not a measure with an interval", f"pass one of {known}")
    bounds = bootstrap.interval(value, measured, np.zeros_like(measured), confidence)
    if bounds is None and measure in _OF_LISTS:
        defined = int(np.isfinite(measured).sum())
        return ConfidenceInterval(value, math.nan, math.nan, confidence, defined)
    if bounds is None:
        raise DataError(
            f"{measure.__name__} is undefined in more than a tenth of the resamples, because there are too "
            "few users, or too few users with one of the labels",
            "measure more users",
        )
    return ConfidenceInterval(value, bounds.low, bounds.high, confidence, bounds.replicates)


def _resampled_means(terms: _Terms, resample: Resample) -> Floats:
    """Returns the mean in each resample of the users: (replicates,). NaN if all weights are 0."""
    weighted = terms.values * terms.weights
    units = np.arange(len(weighted))
    sums = [(draw @ weighted, draw @ terms.weights) for draw in _draws(units, resample)]
    above, below = np.array(sums).T
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)


def _resampled_rows(
    measure: Callable[..., float],
    labels: ArrayLike,
    scores: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    users: ArrayLike | None,
    resample: Resample,
) -> Floats:
    """Returns the measure in each resample of the users of rows: (replicates,). NaN if it is undefined."""
    label, score, weight = _rows(labels, scores, weights)
    unit = _units(users, len(label))
    if measure is auc and weights is None:
        sums = bootstrap.reduce_replicates(unit, label > 0, score, np.zeros(len(unit), np.int64), resample)
        return bootstrap.combine_replicates([sums], 1)["auc"]
    order = np.argsort(score, kind="stable")  # `measure` sorts; sorted rows make it faster
    label, score, weight, unit = label[order], score[order], weight[order], unit[order]
    values = []
    for draw in _draws(np.arange(unit.max() + 1), resample):
        try:
            values.append(measure(label, score, weight * draw[unit]))
        except DataError:  # in this resample, a class has no rows
            values.append(np.nan)
    return np.array(values)


def _draws(units: NDArray[np.int64], resample: Resample) -> Iterator[Floats]:
    return (draw.astype(np.float64) for draw in bootstrap.draw_weights(units, resample))


def _units(users: ArrayLike | None, rows: int) -> NDArray[np.int64]:
    """Returns the index of the user of each row, (rows,).

    If `users` is None, returns the index of the row.
    """
    if users is None:
        return np.arange(rows)
    user_of_row = ranking.plain_array(users)
    if user_of_row.shape != (rows,):
        raise DataError(
            f"there are {rows} rows, but users of shape {user_of_row.shape}", "pass the user of each row"
        )
    return ranking.distinct_index("users", user_of_row)
