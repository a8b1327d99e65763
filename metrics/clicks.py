"""Measures of predicted click probabilities: AUC, log loss and normalised entropy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from conf.errors import DataError
from metrics.arrays import vectors
from metrics.partial_sums import EPSILON, combine, count_scores, sum_deciles, sum_range


def auc(labels: ArrayLike, scores: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Returns the area under the ROC curve.

    This is the share of (positive, negative) pairs whose scores are in the right order. A pair with equal
    scores counts half.

    Args:
        labels: (N,) 0 or 1.
        scores: (N,) finite numbers; a higher score means that a click is more likely.
        weights: (N,) non-negative; None means 1 for each row.

    Raises:
        DataError: the weights of a class sum to 0, so the area is undefined; or a score is not finite.
    """
    label, score, weight = vectors(labels, scores, weights)
    positive, negative = weight * label, weight * (1 - label)
    if not positive.sum() or not negative.sum():
        raise DataError(
            f"the AUC of {len(label)} rows with {int(label.sum())} positives is undefined: "
            "it needs both classes",
            "measure on a split with clicks and non-clicks, for example by adding days to the split",
        )
    order = np.argsort(score, kind="stable")
    first = np.flatnonzero(np.diff(score[order], prepend=-np.inf))  # first row of each distinct score
    positives = np.add.reduceat(positive[order], first)
    negatives = np.add.reduceat(negative[order], first)
    below = np.cumsum(negatives) - negatives
    return float(np.dot(positives, below + negatives / 2) / (positives.sum() * negatives.sum()))


def log_loss(labels: ArrayLike, probabilities: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Returns the mean cross entropy in nats. Probabilities are clipped to [2⁻²⁴, 1 − 2⁻²⁴].

    Raises:
        DataError: there are no rows, or a probability is not finite.
    """
    label, probability, weight = vectors(labels, probabilities, weights)
    if not weight.sum():
        raise DataError("there are no rows, so the log loss is undefined", "measure on a split with rows")
    clipped = np.clip(probability, EPSILON, 1 - EPSILON)
    losses = -(label * np.log(clipped) + (1 - label) * np.log1p(-clipped))
    return float(np.average(losses, weights=weight))


def normalized_entropy(
    labels: ArrayLike, probabilities: ArrayLike, weights: ArrayLike | None = None
) -> float:
    """Returns the log loss divided by the log loss of always predicting the click rate.

    A value below 1 means that the model is better than this constant prediction. The measure is defined by X.
    He et al., ADKDD 2014, section 3.

    Raises:
        DataError: the weights of a class sum to 0, so the divisor is 0.
    """
    label, _, weight = vectors(labels, probabilities, weights)
    rate = float(np.average(label, weights=weight)) if weight.sum() else 0.0
    if rate in (0.0, 1.0):
        raise DataError(
            f"the normalised entropy of {len(label)} rows with click rate {rate} is undefined: "
            "it needs both classes",
            "measure on a split with clicks and non-clicks, for example by adding days to the split",
        )
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
    return log_loss(labels, probabilities, weights) / float(entropy)


def summarize(labels: ArrayLike, probabilities: ArrayLike) -> dict[str, Any]:
    """Returns AUC, log loss, normalised entropy and calibration; an undefined measure is None.

    The result has the keys that `partial_sums.combine` documents.

    Raises:
        DataError: lengths differ, or a probability is not finite.
    """
    counts = count_scores(labels, probabilities)
    return combine([sum_range(counts)], sum_deciles(counts, 0, int(counts.rows.sum())))
