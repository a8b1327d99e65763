"""Measures of predictions from sums over ranges of scores, which add up however many hold the rows.

Rows that score alike are one entry with its counts. A range reduces to a few sums; a pair of rows in different ranges is
decided by the order of the ranges, a pair in one range by whoever holds it, so that the AUC of all is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metrics.arrays import Vector, vectors

# A probability of exactly 0 or 1 would make one wrong row's loss infinite; float32 cannot come closer to 1 than this.
EPSILON = 2.0**-24

DECILES = 10

Counts = NDArray[np.int64]


class ScoreCounts(NamedTuple):
    """The M distinct scores of some rows, ascending float64, and how many clicks and non-clicks have each."""

    scores: Vector
    positives: Counts
    negatives: Counts

    @property
    def rows(self) -> Counts:
        return self.positives + self.negatives


class RangeSums(NamedTuple):
    """What a range of scores adds to the measures of all.

    Attributes:
        doubled_wins: twice the (click, non-click) pairs within the range in the right order, ties counting one half.
        loss: sum of the rows' cross entropy, in nats.
        predicted: sum of their probabilities.
    """

    positives: int
    negatives: int
    doubled_wins: int
    loss: float
    predicted: float


def count_scores(labels: ArrayLike, probabilities: ArrayLike) -> ScoreCounts:
    """Raises DataError as `vectors` does."""
    label, score, _ = vectors(labels, probabilities)
    distinct, place = np.unique(score, return_inverse=True)
    click = label > 0
    size = len(distinct)
    return ScoreCounts(
        distinct, np.bincount(place[click], minlength=size), np.bincount(place[~click], minlength=size)
    )


def merge_counts(parts: Sequence[ScoreCounts]) -> ScoreCounts:
    """The counts of all parts together; a score may occur in several."""
    scores, positives, negatives = (np.concatenate(each) for each in zip(*parts, strict=True))
    distinct, place = np.unique(scores, return_inverse=True)
    merged = np.zeros((2, len(distinct)), np.int64)
    np.add.at(merged[0], place, positives)
    np.add.at(merged[1], place, negatives)
    return ScoreCounts(distinct, merged[0], merged[1])


def sum_range(counts: ScoreCounts) -> RangeSums:
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
    """(10, 3) rows, clicks and sum of probabilities of each tenth of all rows by score.

    Rows that score alike are not parted: they belong where the middle of them lies.

    Args:
        rows_below: of all rows, those in ranges below this one.
        rows: all rows.
    """
    middles = rows_below + np.cumsum(counts.rows) - (counts.rows + 1) // 2
    decile = middles * DECILES // max(rows, 1)
    columns = (counts.rows, counts.positives, counts.scores * counts.rows)
    return np.stack([np.bincount(decile, weights=each, minlength=DECILES) for each in columns], axis=1)


def combine(ranges: Sequence[RangeSums], deciles: NDArray[np.float64]) -> dict[str, Any]:
    """The measures of all rows.

    Args:
        ranges: ascending by score.
        deciles: (10, 3) of `sum_deciles`, summed over the ranges.

    Returns:
        auc; log_loss in nats; normalized_entropy; rows; positives; calibration {ratio: predicted over observed clicks,
        expected_error: |mean probability − click rate| of the deciles, weighted by rows (Naeini et al. 2015, section 2, with
        bins of equal size), deciles [{rows, mean_probability, click_rate}]}. What the rows leave undefined is None.
    """
    positives, negatives = sum(each.positives for each in ranges), sum(each.negatives for each in ranges)
    rows = positives + negatives
    doubled = below = 0
    for each in ranges:
        doubled += each.doubled_wins + 2 * each.positives * below
        below += each.negatives
    loss = sum(each.loss for each in ranges) / rows if rows else None
    both = positives > 0 and negatives > 0
    return {
        "auc": doubled / (2 * positives * negatives) if both else None,
        "log_loss": loss,
        "normalized_entropy": loss / _entropy(positives / rows) if both and loss is not None else None,
        "rows": rows,
        "positives": positives,
        "calibration": _calibration(sum(each.predicted for each in ranges), positives, rows, deciles),
    }


def _entropy(rate: float) -> float:
    return float(-(rate * np.log(rate) + (1 - rate) * np.log1p(-rate)))


def _calibration(
    predicted: float, positives: int, rows: int, deciles: NDArray[np.float64]
) -> dict[str, Any] | None:
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
