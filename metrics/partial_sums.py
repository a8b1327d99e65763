"""Computes measures of predictions from partial sums. Each process sums the rows of one range of scores.

Within a range, rows with equal scores are combined into one entry with counts. Then the range is reduced to a
few sums. The AUC is exact: pairs of rows within a range are counted by the process that has all rows of the
range, and for two rows in different ranges, the order of the ranges says which score is higher.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metrics.arrays import Vector, vectors

# A probability of exactly 0 or 1 would make the loss of one row infinite. 1 − 2⁻²⁴ is the float32 below 1.
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
    """Returns the sums over the rows of one range."""
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
    """Returns what the rows of one range contribute to the ten deciles of all rows by score.

    The result has the shape (10, 3). It contains, for each decile, the number of rows, the number of clicks,
    and the sum of the probabilities. Rows with equal scores are all in the decile of the middle row among
    them.

    Args:
        counts: the counts of the range.
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
