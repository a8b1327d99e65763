"""MAP@k and NDCG@k of ranked groups of rows, such as the ads of one display.

In each group, rows are ranked by descending score. Ties are broken to the disadvantage of the model: among
rows with equal scores, rows without a click come first. So a model with a constant score gets the lowest
possible value, and neither the order of rows nor the number of processes changes a measure. Groups without a
click are left out of the mean over groups, because every ranking of their rows is equally good.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conf.errors import ConfigError, DataError
from metrics.clicks import Vector, vectors


class _Clicked(NamedTuple):
    """The M clicked rows among the first k of their groups, and the G groups that have a click.

    Attributes:
        group: (M,) index of the row's group among the groups that have a click.
        position: (M,) position of the row in its group; 1 is the position of the highest score.
        nth: (M,) number of clicks in the group up to this position, including this row.
        clicks: (G,) number of clicks of each group, including clicks at positions after k.
    """

    group: NDArray[np.int64]
    position: NDArray[np.int64]
    nth: NDArray[np.int64]
    clicks: NDArray[np.int64]


def map_at_k(labels: ArrayLike, scores: ArrayLike, groups: ArrayLike, k: int) -> float:
    """Returns the mean over groups of the average precision of their first k rows.

    AP@k = Σ_{i ≤ k} label_i · precision(i) / min(clicks, k), as in Kaggle's Outbrain competition. Here
    precision(i) is the share of clicks among the first i rows, and clicks is the number of clicks in the
    group. For a group with one click, AP@k is 1 / (position of the click), or 0 if the click is after
    position k.

    Args:
        labels: (N,) 0 or 1.
        scores: (N,) finite numbers; a higher score means that a click is more likely.
        groups: (N,) the group of each row, of any type that can be sorted.
        k: number of positions that are measured, from the first.

    Raises:
        DataError: lengths differ, a score is not finite, a label is neither 0 nor 1, or no group has a click.
        ConfigError: k is below 1.
    """
    clicked = _clicked(labels, scores, groups, k)
    precisions = clicked.nth / clicked.position
    sums = np.bincount(clicked.group, weights=precisions, minlength=len(clicked.clicks))
    return float(np.mean(sums / np.minimum(clicked.clicks, k)))


def ndcg_at_k(labels: ArrayLike, scores: ArrayLike, groups: ArrayLike, k: int) -> float:
    """Returns the mean over groups of the normalised discounted cumulative gain of their first k rows.

    The normalised gain of a group is its DCG@k divided by the DCG@k of a ranking with all clicks first
    (Järvelin and Kekäläinen 2002). Here DCG@k = Σ_{i ≤ k} label_i / log2(i + 1). Arguments and errors are
    those of `map_at_k`.
    """
    clicked = _clicked(labels, scores, groups, k)
    gains = 1 / np.log2(clicked.position + 1)
    sums = np.bincount(clicked.group, weights=gains, minlength=len(clicked.clicks))
    ideal = np.cumsum(1 / np.log2(np.arange(k) + 2))
    return float(np.mean(sums / ideal[np.minimum(clicked.clicks, k) - 1]))


def _clicked(labels: ArrayLike, scores: ArrayLike, groups: ArrayLike, k: int) -> _Clicked:
    """Ranks the rows of each group; arguments and errors are those of `map_at_k`."""
    if k < 1:
        raise ConfigError(f"k={k} is below 1", "measure at a k of 1 or more")
    label, score, _ = vectors(labels, scores)
    group = _as_numbers(groups, label)
    order = np.lexsort((label, -score, group))
    label, group = label[order], group[order]
    first = np.flatnonzero(np.diff(group, prepend=-1))  # first row of each group
    clicks = np.add.reduceat(label, first).astype(np.int64)
    sizes = np.diff(first, append=len(group))
    position = np.arange(len(group)) - np.repeat(first, sizes) + 1
    before = np.cumsum(label) - label  # clicks above this row, over all groups
    nth = (before - np.repeat(before[first], sizes)).astype(np.int64) + 1
    counted = (label == 1) & (position <= k)
    dense = np.cumsum(clicks > 0) - 1  # index of a group among those with a click
    return _Clicked(dense[group[counted]], position[counted], nth[counted], clicks[clicks > 0])


def _as_numbers(groups: ArrayLike, label: Vector) -> NDArray[np.int64]:
    """Returns, for each of N rows, the index of its group among all groups in sorted order: (N,) int64."""
    group = np.asarray(groups)
    if group.shape != label.shape:
        raise DataError(
            f"groups {group.shape} and labels {label.shape} differ in length", "pass one group per row"
        )
    if not np.isin(label, (0, 1)).all():
        raise DataError("the labels of a ranking must be 0 or 1", "convert the label to 0 or 1 first")
    if not label.any():
        raise DataError(
            f"no group among {len(label)} rows has a click, so there is no ranking to measure",
            "measure on a split with clicks, for example by adding days to the split",
        )
    return np.unique(group, return_inverse=True)[1].astype(np.int64)
