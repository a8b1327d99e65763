"""Learns how to rank candidates by the model's logit and the scores of the sources, from measured pairs.

The blend is a linear function of a pair's features (`features`). Its weights w minimize

    Σ_u ( log Σ_i exp(w·x_ui) − mean of w·x_ui over the clicked items i of user u ) + λ/2 ‖w‖²

where i runs over the candidates of user u that the model or a source ranks high: the cross-entropy of a
softmax over these candidates (the listwise loss of Z. Cao et al., Learning to Rank: From Pairwise Approach to
Listwise Approach, ICML 2007). Other candidates enter no list, so the order among them does not matter. The
function is convex, and Newton's method finds its minimum without random numbers.

The model alone, each source alone and the blend are contenders. Users are divided into folds. The weights
with which a user's lists are measured are learned from the users of the other folds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scoring.evaluation.list_relevance import ideal_gains
from scoring.inputs.requests import BlendRequest

MODEL, BLEND = "model", "blend"
FOLDS = 5
L2 = 1.0

Vector = NDArray[np.float64]

# The contender of one source ranks by this share of the logit the items whose scores are equal, and the items
# that the source did not propose. The latter come last, at this distance from the source's smallest score.
_LOGIT_SHARE = 1e-3
_DISTANCE = 10.0
# A candidate counts in the loss if the model or a source ranks it among the _DEPTH · k best of the user.
_DEPTH = 10
_MOST_STEPS, _SMALL_STEP = 50, 1e-9
_MOST_HALVINGS, _BISECTIONS = 30, 60


@dataclass(frozen=True)
class MeasuredPairs:
    """The candidates of U users, with everything that may rank them. S is the number of sources.

    Attributes:
        starts: (U + 1,) int64, the index of the first candidate of each user; the last number is P.
        items: (P,) int32, the item index of each candidate.
        logits: (P,) float32, the logits of the model.
        scores: (P, S) float32, the scores of the sources; NaN where the source did not propose the item.
        clicked: (P,) bool, whether the user clicked the item later.
        positives: (U,) int64, number of items that the user clicked later, candidates or not; at least 1.
        folds: (U,) int64, the fold of each user, below FOLDS.
    """

    starts: NDArray[np.int64]
    items: NDArray[np.int32]
    logits: NDArray[np.float32]
    scores: NDArray[np.float32]
    clicked: NDArray[np.bool_]
    positives: NDArray[np.int64]
    folds: NDArray[np.int64]

    @property
    def user(self) -> NDArray[np.int64]:
        """Returns the number of the user of each candidate, (P,)."""
        return np.repeat(np.arange(len(self.positives)), np.diff(self.starts))


@dataclass(frozen=True)
class Figures:
    """HR@k and NDCG@k of the lists of one contender, means over all users, also those without candidates."""

    hit_rate: float
    ndcg: float


@dataclass(frozen=True)
class LearnedBlend:
    """The result.

    Attributes:
        chosen: the contender with the highest NDCG@k; of equal ones, the first in the order of `figures`.
        figures: maps each contender to its figures: `model`, the sources in order, `blend`.
        request: the weights that rank like the chosen contender, learned from all users; None for `model`.
    """

    chosen: str
    figures: Mapping[str, Figures]
    request: BlendRequest | None


def learn(pairs: MeasuredPairs, sources: Sequence[str], k: int) -> LearnedBlend:
    """Measures all contenders and chooses the best one.

    Args:
        pairs: the measured pairs.
        sources: the names of the S sources.
        k: length of the lists.
    """
    x, scales = features(pairs)
    weights = {MODEL: np.eye(1, x.shape[1])[0]}
    weights |= {name: _source_weights(pairs, scales, number) for number, name in enumerate(sources)}
    positions = {name: _positions(pairs, x @ w) for name, w in weights.items()}
    figures = {name: _figures(pairs, places, k) for name, places in positions.items()}
    counted = np.min(list(positions.values()), axis=0) < _DEPTH * k
    held_out = np.empty(len(x))
    user = pairs.user
    for fold in range(FOLDS):
        measured = pairs.folds[user] == fold
        held_out[measured] = x[measured] @ fit(x, pairs, counted & (pairs.folds != fold)[user])
    figures[BLEND] = _figures(pairs, _positions(pairs, held_out), k)
    chosen = max(figures, key=lambda name: figures[name].ndcg)  # the first one, if several are equal
    if chosen == MODEL:
        return LearnedBlend(chosen, figures, None)
    best = fit(x, pairs, counted) if chosen == BLEND else weights[chosen]
    return LearnedBlend(chosen, figures, _request(best, scales, _intercept(x @ best, pairs.clicked)))


def features(pairs: MeasuredPairs) -> tuple[Vector, Vector]:
    """Returns the features (P, 1 + 2 S) of the pairs, and the scales (1 + S,) of logit and scores.

    The features are: the logit; the score of each source, or 0 if it did not propose the item; for each
    source, 1 if it did not propose the item, otherwise 0. Logit and scores are divided by their standard
    deviation over all pairs.
    """
    proposed = ~np.isnan(pairs.scores)
    columns = [pairs.logits, *(pairs.scores[here, s] for s, here in enumerate(proposed.T))]
    deviations = [float(column.std(dtype=np.float64)) if len(column) else 0.0 for column in columns]
    scales = np.array([deviation or 1.0 for deviation in deviations])
    x = np.zeros((len(pairs.logits), 1 + 2 * pairs.scores.shape[1]))
    x[:, 0] = pairs.logits / scales[0]
    x[:, 1 : len(scales)] = np.where(proposed, pairs.scores, 0) / scales[1:]
    x[:, len(scales) :] = ~proposed
    return x, scales


def fit(x: Vector, pairs: MeasuredPairs, counted: NDArray[np.bool_]) -> Vector:
    """Returns the weights (D,) that minimize the loss of some candidates.

    Args:
        x: (P, D) features.
        pairs: the pairs.
        counted: (P,) which candidates count. Users without a clicked one among them do not count.
    """
    user = pairs.user
    clicks = np.bincount(user[pairs.clicked & counted], minlength=len(pairs.positives))
    kept = counted & (clicks > 0)[user]
    lengths = np.bincount(user[kept], minlength=len(clicks))[clicks > 0]
    x, share = x[kept], np.where(pairs.clicked, 1 / np.maximum(clicks, 1)[user], 0)[kept]
    target = share @ x
    w, (loss, gradient, hessian) = np.zeros(x.shape[1]), _loss(x, lengths, target, np.zeros(x.shape[1]))
    for _ in range(_MOST_STEPS):
        step = np.linalg.solve(hessian, -gradient)
        for _ in range(_MOST_HALVINGS):
            following = _loss(x, lengths, target, w + step)
            if following[0] <= loss:
                break
            step /= 2
        else:
            break
        w, (loss, gradient, hessian) = w + step, following
        if np.abs(step).max() < _SMALL_STEP:
            break
    return w


def _loss(x: Vector, lengths: NDArray[np.int64], target: Vector, w: Vector) -> tuple[float, Vector, Vector]:
    """Returns the loss, its gradient (D,) and its Hessian matrix (D, D).

    Args:
        x: (P, D) features of the candidates, user after user.
        lengths: (U,) number of candidates of each user, at least 1.
        target: (D,) sum over the users of the mean features of the clicked items.
        w: (D,) weights.
    """
    if not len(lengths):
        return L2 / 2 * float(w @ w), L2 * w, L2 * np.eye(len(w))
    starts = np.cumsum(lengths) - lengths
    scores = x @ w
    highest = np.maximum.reduceat(scores, starts)
    exponentials = np.exp(scores - np.repeat(highest, lengths))
    totals = np.add.reduceat(exponentials, starts)
    weighted = x * (exponentials / np.repeat(totals, lengths))[:, None]
    means = np.add.reduceat(weighted, starts)  # (U, D)
    loss = float((highest + np.log(totals)).sum() - target @ w + L2 / 2 * (w @ w))
    hessian = x.T @ weighted - means.T @ means + L2 * np.eye(len(w))
    return loss, means.sum(axis=0) - target + L2 * w, hessian


def _source_weights(pairs: MeasuredPairs, scales: Vector, source: int) -> Vector:
    """Returns the weights (1 + 2 S,) that rank by the score of one source."""
    weights = np.zeros(2 * len(scales) - 1)
    weights[0], weights[1 + source] = _LOGIT_SHARE, 1.0
    of_source = pairs.scores[:, source]
    known = of_source[~np.isnan(of_source)]
    lowest = known.min() / scales[1 + source] if len(known) else 0.0
    weights[len(scales) + source] = lowest - _DISTANCE
    return weights


def _positions(pairs: MeasuredPairs, scores: Vector) -> NDArray[np.int64]:
    """Returns the place (P,) of each candidate in the user's ranking, from 0. Equal scores: by item."""
    user = pairs.user
    order = np.lexsort((pairs.items, -scores, user))
    positions = np.empty(len(order), np.int64)
    positions[order] = np.arange(len(order)) - pairs.starts[user[order]]
    return positions


def _figures(pairs: MeasuredPairs, positions: NDArray[np.int64], k: int) -> Figures:
    """Returns the figures of the lists that consist of the candidates at positions below k."""
    user = pairs.user
    hit = pairs.clicked & (positions < k)
    gains = np.bincount(user[hit], 1 / np.log2(positions[hit] + 2), len(pairs.positives))
    ideal = np.array(ideal_gains(k))[np.minimum(pairs.positives, k) - 1]
    hits = np.bincount(user[hit], minlength=len(pairs.positives)) > 0
    return Figures(float(hits.mean()), float((gains / ideal).mean()))


def _intercept(scores: Vector, clicked: NDArray[np.bool_]) -> float:
    """Returns the number b for which the sigmoids of scores + b add up to the number of clicked items.

    So the sigmoids are small, and float32 can tell them apart.
    """
    wanted = max(float(clicked.sum()), 0.5)
    low, high = -float(scores.max()) - 50.0, -float(scores.min()) + 50.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        total = (1 / (1 + np.exp(-np.clip(scores + middle, -500, 500)))).sum()
        low, high = (middle, high) if total < wanted else (low, middle)
    return (low + high) / 2


def _request(weights: Vector, scales: Vector, intercept: float) -> BlendRequest:
    """Returns the weights for logits and scores that are not divided by their scales."""
    plain = weights[: len(scales)] / scales
    absent = weights[len(scales) :]
    return BlendRequest(intercept, float(plain[0]), tuple(plain[1:].tolist()), tuple(absent.tolist()))
