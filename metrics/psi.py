"""Population stability index (PSI): the distance between the histograms of a day and the training window.

A cell is one value of a column in one row. The cells are divided into B bins. For each bin, let e be its
share of the cells in the training window, and a its share of the cells on the day. Then PSI is the sum over
all bins of (a - e) ln(a / e). PSI is symmetric, it is zero for equal shares, and it is the sum of both
Kullback-Leibler divergences. A PSI below 0.1 counts as stable; a PSI above 0.25 counts as a shift that needs
action (N. Siddiqi, Credit Risk Scorecards, 2006, ch. 11).

For samples of M and N cells from the same distribution, PSI is about (1/M + 1/N) χ² with B - 1 degrees of
freedom (B. Yurdakul, Statistical Properties of Population Stability Index, 2018). So a day with few rows can
have a large PSI by chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

NULL, OTHER = "(null)", "(other)"
_GROUPS = 10
_EMPTY = 0.5  # added to each bin's count (Jeffreys' prior), so that no logarithm is infinite
_Z_999 = 3.0902  # the 99.9% quantile of the standard normal distribution


@dataclass(frozen=True)
class Binned:
    """The number of cells (values of a column) in each of B bins, one of which is for nulls.

    Attributes:
        labels: (B,) names of the bins.
        train, day: (B,) number of cells of each bin in the training window, and on the day.
    """

    labels: tuple[str, ...]
    train: tuple[int, ...]
    day: tuple[int, ...]


@dataclass(frozen=True)
class ColumnDrift:
    """The PSI of one column.

    Attributes:
        psi: the index.
        noise: the value that the index exceeds by chance on one day in a thousand.
        moved: label of the bin that contributes most to the index.
        moved_train_share, moved_day_share: the share of the bin `moved` in the cells of the training window,
            and in the cells of the day.
    """

    psi: float
    noise: float
    moved: str
    moved_train_share: float
    moved_day_share: float

    @property
    def psi_above_noise(self) -> float:
        """Returns the PSI if it is above `noise`, otherwise 0."""
        return above_noise(self.psi, self.noise)


def psi_terms(train: ArrayLike, day: ArrayLike) -> NDArray[np.float64]:
    """Returns the terms of the PSI, one for each of B bins: (B,) float64.

    `train` and `day` are the numbers of cells of each bin in the training window and on the day. A term is at
    least 0. It is 0 if the bin is empty both in the training window and on the day. The share of a bin is
    (count + 1/2) / (cells + b/2). Here count is the number of cells in the bin, and cells is the sum of all
    counts. And b is the number of bins that have a cell in the training window or on the day.

    Raises:
        ValueError: the lengths differ, or the training window or the day has no cell.
    """
    e, a = np.asarray(train, np.float64), np.asarray(day, np.float64)  # (B,), (B,)
    if e.shape != a.shape or e.sum() <= 0 or a.sum() <= 0:
        raise ValueError(
            "PSI needs counts of the same bins in the training window and on the day, and each of the two "
            f"must have a count above 0; the counts are {e.tolist()} and {a.tolist()}"
        )
    used = (e > 0) | (a > 0)
    e, a = (np.where(used, counts + _EMPTY, 0.0) for counts in (e, a))
    e, a = e / e.sum(), a / a.sum()
    terms = np.zeros(e.shape)
    terms[used] = (a[used] - e[used]) * np.log(a[used] / e[used])
    return terms


def above_noise(psi: float, noise: float) -> float:
    """Returns the PSI if it is above `noise`, otherwise 0.

    A day with few rows can have a large PSI by chance.
    """
    return psi if psi > noise else 0.0


def psi_noise(bins: int, train_cells: int, day_cells: int) -> float:
    """Returns the 99.9% quantile of the PSI of two random samples from the same distribution.

    The PSI is computed over `bins` bins. The quantile of χ² is approximated by k (1 - 2/9k + z √(2/9k))³ (E.
    B. Wilson and M. M. Hilferty, 1931). Here k is the number of degrees of freedom, and z is the 99.9%
    quantile of the normal distribution.
    """
    k = bins - 1
    if k < 1:
        return 0.0
    spread = 2 / (9 * k)
    return (1 / train_cells + 1 / day_cells) * k * (1 - spread + _Z_999 * math.sqrt(spread)) ** 3


def drift_of(binned: Binned) -> ColumnDrift | None:
    """Returns the drift (PSI) of a column; None if all bins of the training window or the day are empty."""
    train, day = np.asarray(binned.train), np.asarray(binned.day)
    if not train.sum() or not day.sum():
        return None
    terms = psi_terms(train, day)
    used = int(np.count_nonzero((train > 0) | (day > 0)))
    most = int(terms.argmax())
    return ColumnDrift(
        psi=float(terms.sum()),
        noise=psi_noise(used, int(train.sum()), int(day.sum())),
        moved=binned.labels[most],
        moved_train_share=float(train[most] / train.sum()),
        moved_day_share=float(day[most] / day.sum()),
    )


def bin_names(
    top: Sequence[tuple[str, int, int]],
    train_cells: int,
    day_cells: int,
    train_nulls: int,
    day_nulls: int,
) -> Binned:
    """Divides the cells of a text column into bins.

    There is one bin for each frequent value of the training window, one for all other values, and one for
    null.

    Args:
        top: for each frequent value, (value, number of its cells in the training window, number of its cells
            on the day).
        train_cells, day_cells: number of cells that are not null, in the training window and on the day.
        train_nulls, day_nulls: number of null cells, in the training window and on the day.
    """
    rest = (train_cells - sum(train for _, train, _ in top), day_cells - sum(day for _, _, day in top))
    bins = [*top, (OTHER, *rest), (NULL, train_nulls, day_nulls)]
    labels, train, day = zip(*bins, strict=True)
    return Binned(labels, train, day)


def bin_numbers(
    train_bins: Mapping[int, int], day_bins: Mapping[int, int], train_nulls: int, day_nulls: int
) -> Binned:
    """Divides the cells of a numeric column into at most ten bins of about equal size, and three more.

    Here the size of a bin is its number of cells in the training window. The three other bins are for numbers
    below all numbers of the training window, for numbers above all of them, and for nulls. All other bins
    consist of consecutive histogram keys (`bin_keys`). The cells of the training window, in ascending order,
    are divided into tenths. All cells of a key are in the tenth that contains the first of them. So a number
    that fills several tenths has its own bin. In this case, there are fewer than ten bins. The bins depend
    only on the training window.

    Args:
        train_bins, day_bins: map each histogram key to its number of cells.
        train_nulls, day_nulls: number of null cells.
    """
    keys = sorted(key for key, count in train_bins.items() if count)
    if not keys:
        return bin_names([], 0, sum(day_bins.values()), train_nulls, day_nulls)
    counts = np.array([train_bins[key] for key in keys], np.int64)  # (K,)
    before = np.cumsum(counts) - counts
    tenth = before * _GROUPS // counts.sum()  # (K,) ascending
    first = np.flatnonzero(np.diff(tenth, prepend=-1))  # (G,) index of each bin's first key
    last = np.append(first[1:] - 1, len(keys) - 1)  # (G,) index of its last key
    train = np.add.reduceat(counts, first)
    low, high = keys[0], keys[-1]
    ends = np.array(keys, np.int64)[last]  # (G,)
    day = np.zeros(len(first), np.int64)
    below = above = 0
    for key, count in day_bins.items():
        if key < low:
            below += count
        elif key > high:
            above += count
        else:
            day[np.searchsorted(ends, key)] += count
    named = [_interval(keys[start], keys[end]) for start, end in zip(first, last, strict=True)]
    labels = (f"below {named[0][0]}", *(f"{a} to {b}" for a, b in named), f"above {named[-1][1]}", NULL)
    return Binned(labels, (0, *train.tolist(), 0, train_nulls), (below, *day.tolist(), above, day_nulls))


def _interval(first: int, last: int) -> tuple[str, str]:
    """Returns, as text, the lower bound of the bin `first` and the upper bound of the bin `last`."""
    return f"{bin_bounds(first)[0]:.6g}", f"{bin_bounds(last)[1]:.6g}"


# The code below computes the bins of histograms. They are the same for every day and column, so that
# histograms of several days can be added.
#
# The bins are log-linear, as in HdrHistogram (G. Tene): the range from each power of two to the next is
# divided into 16 equal bins. The bins of negative numbers mirror those of positive numbers, and zero has its
# own bin. The width of a bin is at most 1/16 of the number at which it starts. Each integer between -31 and
# 31 has its own bin. The key of a bin is computed from the bits of a number and not by a logarithm, so it is
# equal on every machine.

_PARTS = 16
_SHIFT = 1074  # makes keys of positive numbers positive; the lowest exponent is -1073


def bin_keys(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns, for each of n finite numbers, the key of its bin: (n,) int64.

    Keys have the same order as the numbers. A key is negative for a number below 0, and 0 for zero. There are
    at most 2 × 2,098 × 16 keys other than 0: two signs, 2,098 powers of two, and 16 bins for each of them.
    """
    mantissa, exponent = np.frexp(np.abs(values))  # |value| = mantissa * 2**exponent, mantissa in [1/2, 1)
    part = ((mantissa - 0.5) * (2 * _PARTS)).astype(np.int64)
    key = (exponent.astype(np.int64) + _SHIFT) * _PARTS + part
    return np.where(values == 0, 0, np.where(values < 0, -key, key))


def bin_bounds(key: int) -> tuple[float, float]:
    """Returns the bounds (low, high) of the bin with this key.

    If the key is positive, the bin contains the numbers in [low, high). If the key is negative, the bin
    contains the numbers in (low, high]. Key 0 contains only zero. The highest bin ends at infinity, and the
    lowest bin begins at minus infinity.
    """
    if key == 0:
        return 0.0, 0.0
    power, part = divmod(abs(key), _PARTS)
    low = math.ldexp(0.5 + part / (2 * _PARTS), power - _SHIFT)
    last = part + 1 == _PARTS and power - _SHIFT == 1024
    high = math.inf if last else math.ldexp(0.5 + (part + 1) / (2 * _PARTS), power - _SHIFT)
    return (low, high) if key > 0 else (-high, -low)
