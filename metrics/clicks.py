"""Computes AUC, average precision, log loss and normalised entropy, of arrays or of partial sums.

scoring/evaluation/prediction_quality.py computes the AUC and the log loss of evaluate_model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conf.errors import DataError


def auc(labels: ArrayLike, scores: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Returns the area under the ROC curve.

    This is the share of (positive, negative) pairs whose scores are in the right order. A pair with equal
    scores counts half.

    Args:
        labels: (N,) 1 for a click, otherwise 0.
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


def average_precision(labels: ArrayLike, scores: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Returns the average precision, which summarises precision and recall at all thresholds of the score.

    The n-th threshold is the n-th distinct score in descending order. All rows with at least this score count
    as predicted clicks. P_n is the precision of this prediction, and R_n its recall. The average precision is
    Σ (R_n - R_{n-1}) · P_n. This is the definition of scikit-learn (sklearn.metrics.average_precision_score),
    without interpolation. Rows with equal scores are counted together, so the result does not depend on their
    order. Arguments are those of `auc`.

    Raises:
        DataError: the weights of the positive rows sum to 0, so the recall is undefined; or a score is not
            finite.
    """
    label, score, weight = vectors(labels, scores, weights)
    if not (weight * label).sum():
        raise DataError(
            f"the average precision of {len(label)} rows is undefined: no row is positive",
            "measure on rows of which at least one is a click",
        )
    order = np.argsort(-score, kind="stable")
    last = np.flatnonzero(np.diff(score[order], append=-np.inf))  # last row of each distinct score
    positives = np.cumsum((weight * label)[order])[last]
    rows = np.cumsum(weight[order])[last]
    gained = np.diff(positives, prepend=0.0)
    precision = np.divide(positives, rows, out=np.zeros_like(rows), where=rows > 0)
    return float(np.dot(gained, precision) / positives[-1])


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

    The result has the keys that `combine` documents.

    Raises:
        DataError: lengths differ, or a probability is not finite.
    """
    counts = count_scores(labels, probabilities)
    return combine([sum_range(counts)], sum_deciles(counts, 0, int(counts.rows.sum())))


# The functions below check the arguments of measures, here and in metrics/ranking.py.

Vector = NDArray[np.float64]


def vectors(
    labels: ArrayLike, scores: ArrayLike, weights: ArrayLike | None = None
) -> tuple[Vector, Vector, Vector]:
    """Returns labels, scores and weights as float64 vectors of length N. If `weights` is None, all are 1.

    Raises:
        DataError: the arguments are not vectors of numbers of the same length, or a score is not finite.
    """
    label, score = doubles("labels", labels), doubles("scores", scores)
    weight = np.ones_like(label) if weights is None else doubles("weights", weights)
    if not label.shape == score.shape == weight.shape or label.ndim != 1:
        raise DataError(
            "labels, scores and weights must be vectors of the same length, but have the shapes "
            f"{label.shape}, {score.shape} and {weight.shape}",
            "pass one value per row",
        )
    if not np.isfinite(score).all():
        raise DataError(
            f"{int((~np.isfinite(score)).sum())} of {len(score)} scores are not finite",
            "check whether features have infinite values, or whether training diverged",
        )
    return label, score, weight


def doubles(name: str, values: ArrayLike) -> Vector:
    """Returns values as float64. Raises DataError if a value is not a number."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (OverflowError, TypeError, ValueError) as error:
        raise DataError(f"the {name} are not numbers: {error}", "convert them to numbers") from error


# The code below computes measures from partial sums. Each process sums the rows of one range of scores.
#
# Within a range, rows with equal scores are combined into one entry with counts. Then the range is reduced to
# a few sums. The AUC is exact: the process that has all rows of a range counts the pairs within the range.
# For two rows in different ranges, the order of the ranges shows which score is higher.

# A probability of exactly 0 or 1 would make the loss of one row infinite. 1 − 2⁻²⁴ is the largest float32
# below 1.
EPSILON = 2.0**-24
DECILES = 10
Counts = NDArray[np.int64]


class ScoreCounts(NamedTuple):
    """The number of clicks and of non-clicks with each distinct score, for some rows.

    Attributes:
        scores: (M,) the distinct scores, ascending, float64.
        positives, negatives: (M,) number of clicks, and number of non-clicks, with each score.
    """

    scores: Vector
    positives: Counts
    negatives: Counts

    @property
    def rows(self) -> Counts:
        """Returns the number of rows with each score, shape (M,)."""
        return self.positives + self.negatives


class RangeSums(NamedTuple):
    """Sums over the rows of one range of scores, from which `combine` computes the measures of all rows.

    Attributes:
        positives, negatives: number of clicks, and number of non-clicks.
        doubled_wins: twice the number of (click, non-click) pairs within the range in which the click has the
            higher score; a pair with equal scores counts as half a pair.
        loss: sum of the cross entropy of the rows, in nats.
        predicted: sum of the probabilities of the rows.
    """

    positives: int
    negatives: int
    doubled_wins: int
    loss: float
    predicted: float


def count_scores(labels: ArrayLike, probabilities: ArrayLike) -> ScoreCounts:
    """Counts the clicks and non-clicks among N rows for each distinct probability. Labels are 0 or 1.

    Raises:
        DataError: lengths differ, or a probability is not finite.
    """
    label, score, _ = vectors(labels, probabilities)
    distinct, index = np.unique(score, return_inverse=True)
    click = label > 0
    size = len(distinct)
    return ScoreCounts(
        distinct, np.bincount(index[click], minlength=size), np.bincount(index[~click], minlength=size)
    )


def merge_counts(parts: Sequence[ScoreCounts]) -> ScoreCounts:
    """Adds the counts of several sets of rows. A score may occur in more than one set."""
    scores, positives, negatives = (np.concatenate(column) for column in zip(*parts, strict=True))
    distinct, index = np.unique(scores, return_inverse=True)
    merged = np.zeros((2, len(distinct)), np.int64)
    np.add.at(merged[0], index, positives)
    np.add.at(merged[1], index, negatives)
    return ScoreCounts(distinct, merged[0], merged[1])


def sum_range(counts: ScoreCounts) -> RangeSums:
    """Returns the sums over the rows of one range of scores from which `combine` computes the measures."""
    below = np.cumsum(counts.negatives) - counts.negatives
    clipped = np.clip(counts.scores, EPSILON, 1 - EPSILON)
    losses = -(counts.positives * np.log(clipped) + counts.negatives * np.log1p(-clipped))
    return RangeSums(
        int(counts.positives.sum()),
        int(counts.negatives.sum()),
        int((counts.positives * (2 * below + counts.negatives)).sum()),
        float(losses.sum()),
        float((counts.scores * counts.rows).sum()),
    )


def sum_deciles(counts: ScoreCounts, rows_below: int, rows: int) -> NDArray[np.float64]:
    """Divides all rows into deciles by score, and sums the rows of one range in each decile.

    The result has the shape (10, 3). For each of the ten deciles, it contains the number of rows, the number
    of clicks, and the sum of the probabilities. Only rows of the range count. Rows with equal scores are all
    in the decile of their middle row.

    Args:
        counts: the number of clicks and non-clicks of the range for each distinct score.
        rows_below: number of rows in ranges with lower scores.
        rows: number of rows in all ranges.
    """
    middles = rows_below + np.cumsum(counts.rows) - (counts.rows + 1) // 2
    decile = middles * DECILES // max(rows, 1)
    columns = (counts.rows, counts.positives, counts.scores * counts.rows)
    return np.stack([np.bincount(decile, weights=column, minlength=DECILES) for column in columns], axis=1)


def combine(ranges: Sequence[RangeSums], deciles: NDArray[np.float64]) -> dict[str, Any]:
    """Computes the measures of all rows from the sums of all ranges.

    Args:
        ranges: the sums of all ranges, in ascending order of scores.
        deciles: (10, 3) the results of `sum_deciles`, summed over the ranges.

    Returns:
        A mapping with the keys `auc`, `log_loss` (in nats), `normalized_entropy`, `rows`, `positives` and
        `calibration`. An undefined measure is None. The value of `calibration` has these keys:

        * `ratio`: predicted clicks divided by observed clicks.
        * `expected_error`: mean over the deciles, weighted by rows, of |mean probability − click rate|
          (Naeini et al. 2015, section 2, with bins that have equal numbers of rows).
        * `deciles`: a list of {rows, mean_probability, click_rate}.
    """
    positives, negatives = sum(sums.positives for sums in ranges), sum(sums.negatives for sums in ranges)
    rows = positives + negatives
    doubled = below = 0
    for sums in ranges:
        doubled += sums.doubled_wins + 2 * sums.positives * below
        below += sums.negatives
    loss = sum(sums.loss for sums in ranges) / rows if rows else None
    both = positives > 0 and negatives > 0
    return {
        "auc": doubled / (2 * positives * negatives) if both else None,
        "log_loss": loss,
        "normalized_entropy": loss / _entropy(positives / rows) if both and loss is not None else None,
        "rows": rows,
        "positives": positives,
        "calibration": _calibration(sum(sums.predicted for sums in ranges), positives, rows, deciles),
    }


def _entropy(rate: float) -> float:
    """Returns the log loss, in nats, of always predicting the click rate."""
    return float(-(rate * np.log(rate) + (1 - rate) * np.log1p(-rate)))


def _calibration(
    predicted: float, positives: int, rows: int, deciles: NDArray[np.float64]
) -> dict[str, Any] | None:
    """Returns the value of the key `calibration` in the result of `combine`; None if there are no rows."""
    if not rows:
        return None
    filled = deciles[deciles[:, 0] > 0]
    counts, means, rates = filled[:, 0], filled[:, 2] / filled[:, 0], filled[:, 1] / filled[:, 0]
    return {
        "ratio": predicted / positives if positives else None,
        "expected_error": float((counts * np.abs(means - rates)).sum() / rows),
        "deciles": [
            {"rows": int(count), "mean_probability": float(mean), "click_rate": float(rate)}
            for count, mean, rate in zip(counts, means, rates, strict=True)
        ],
    }
