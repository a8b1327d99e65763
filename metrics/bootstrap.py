"""Confidence interval of the difference between two models, by a bootstrap over users.

The rows may be distributed over several tasks. Each replicate draws a weight from Poisson(1) for every user.
This approximates drawing users with replacement (N. Chamandy et al., Estimating Uncertainty for Massive Data
Streams, Google 2012). All rows of a user have the same weight, because the clicks of one user are not
independent.

A weight is computed from the seed, the index of the replicate and the user's hash. So both models use the
same resamples, although their rows are in different frames and in different ranges of scores (see below). The
rows of the two models need not be joined, and weights need not be stored.

The rows of a model are divided into ranges of scores: a range contains the rows whose scores are in one
interval (scoring.evaluation.prediction_quality). A task computes the sums of one range for each replicate.
The AUC of a replicate is exact. The sums are integers. If two rows are in different ranges, the order of the
ranges shows which row has the higher score. A task needs memory for a few vectors of the length of its range,
and returns four integers per replicate. The time is proportional to rows × replicates.
"""

from __future__ import annotations

import ctypes
import logging
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conf.compiled import open_library

SUMS = ("positives", "negatives", "doubled_wins", "loss_units")
_DRAWS_A_HASH = 4  # each draw uses 16 bits, so probabilities of Poisson weights are accurate to 1/65,536
_USABLE_SHARE = 0.9
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Resample:
    """The number of replicates of a bootstrap, and the seed of their weights."""

    replicates: int
    seed: int = 0


@dataclass(frozen=True)
class Interval:
    """The confidence interval of a difference: a measure of the challenger minus the measure of the champion.

    Attributes:
        difference: the difference on the original rows, without resampling.
        low, high: the lower and the upper bound of the interval.
        confidence: the confidence of the interval, such as 0.95.
        replicates: number of replicates in which the difference is defined, because both classes have a
            positive weight.
    """

    difference: float
    low: float
    high: float
    confidence: float
    replicates: int


def _poisson_table() -> NDArray[np.uint8]:
    """Returns 65,536 quantiles of Poisson(1): entry i is the quantile at (i + 1/2) / 65,536."""
    cumulative = np.cumsum([math.exp(-1) / math.factorial(k) for k in range(12)])
    return np.searchsorted(cumulative, (np.arange(2**16) + 0.5) / 2**16).astype(np.uint8)


_POISSON = _poisson_table()


def draw_weights(units: Ints, resample: Resample) -> Iterator[NDArray[np.uint8]]:
    """Yields, for each replicate, the (m,) weights of m units.

    A unit is a user, or a row if the rows have no user ids. `units` are (m,) hashes of the units. The
    function computes the weights from these hashes with the last step (the finaliser) of SplitMix64 (G.
    Steele et al., Fast Splittable Pseudorandom Number Generators, 2014).
    """
    base = _mixed(units.view(np.uint64) ^ _mixed(np.array([resample.seed], np.int64).view(np.uint64)))
    for first in range(0, resample.replicates, _DRAWS_A_HASH):
        offset = np.uint64((first // _DRAWS_A_HASH + 1) * 0x9E3779B97F4A7C15 % 2**64)
        hashed = _mixed(base + offset)
        for draw in range(min(_DRAWS_A_HASH, resample.replicates - first)):
            yield _POISSON[(hashed >> np.uint64(16 * draw)) & np.uint64(0xFFFF)]


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns the hash of each value, computed with the last step (the finaliser) of SplitMix64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def reduce_replicates(
    units: Ints, click: NDArray[np.bool_], score: Floats, loss_units: Ints, resample: Resample
) -> dict[str, list[int]]:
    """Returns the sums of one range of n rows.

    The result maps each name in SUMS to one integer per replicate.

    Args:
        units: (n,) hash of the user of each row. Rows with equal hashes are resampled together.
        click, score: (n,) label and probability of each row.
        loss_units: (n,) loss of each row, rounded to an integer number of small units (see
            `combine_replicates`).
        resample: number of replicates, and seed.
    """
    distinct, unit_of_row = np.unique(units, return_inverse=True)  # (m,), (n,)
    losses = _sums_by_unit(loss_units, unit_of_row, len(distinct))
    by_score = np.argsort(score, kind="stable")
    rows = unit_of_row[by_score].astype(np.int32), click[by_score], score[by_score]
    blocks = list(block_sums(*rows, draw_weights(distinct, resample)))
    positives, negatives, doubled_wins = np.concatenate(blocks, axis=1)
    of_losses = [int(weights.astype(np.int64) @ losses) for weights in draw_weights(distinct, resample)]
    sums = (positives.tolist(), negatives.tolist(), doubled_wins.tolist(), of_losses)
    return dict(zip(SUMS, sums, strict=True))


def block_sums(
    units: NDArray[np.int32], clicks: NDArray[np.bool_], scores: Floats, draws: Iterator[NDArray[np.uint8]]
) -> Iterator[Ints]:
    """Yields three sums for each replicate, as one array (3, replicates) for each block of replicates.

    The first two sums are the weights of the clicks, and the weights of the other rows. The third is twice
    the weight of the (click, other row) pairs in which the click has the higher score.

    Args:
        units: (n,) index of the unit of each row. The rows are in ascending order of their scores.
        clicks, scores: (n,) whether each row is a click, and its score.
        draws: yields the weights of the units in each replicate.
    """
    library = replicates_library()
    if library is None:
        yield from numpy_sums(units, clicks, scores, draws)
        return
    tied = np.zeros(len(scores), np.bool_)
    np.equal(scores[1:], scores[:-1], out=tied[1:])
    while block := list(islice(draws, REPLICATES)):
        weights = np.zeros((len(block[0]), REPLICATES), np.uint8)
        weights[:, : len(block)] = np.stack(block, axis=1)
        sums = replicate_sums(library, units, clicks, tied, weights)
        yield sums[:, : len(block)]


def numpy_sums(
    units: NDArray[np.int32], clicks: NDArray[np.bool_], scores: Floats, draws: Iterable[NDArray[np.uint8]]
) -> Iterator[Ints]:
    """Yields the same sums as `block_sums`, computed with NumPy: one array (3, 1) for each replicate."""
    of_negatives = scores[~clicks]
    # A click has a higher score than the negatives before `low`, and the same score as the negatives from
    # `low` to `high`.
    low = np.searchsorted(of_negatives, scores[clicks], "left")
    high = np.searchsorted(of_negatives, scores[clicks], "right")
    below = np.zeros(len(of_negatives) + 1, np.int64)
    click_units, other_units = units[clicks], units[~clicks]
    for weights in draws:
        of_clicks = weights[click_units].astype(np.int64)
        np.cumsum(weights[other_units], out=below[1:])
        yield np.array([[of_clicks.sum()], [below[-1]], [of_clicks @ (below[low] + below[high])]])


def reduce_means(units: Ints, values: Mapping[str, Ints], resample: Resample) -> dict[str, list[int]]:
    """Returns the sums of one partition of m units, for each replicate. Each unit has one row.

    The result has the key `weights` with the sums of the weights of the units, and the keys of `values` with
    the weighted sums of these values. Each sum is one integer per replicate.

    Args:
        units: (m,) hash of each unit.
        values: maps the name of each measure to its (m,) values, as integer multiples of a small number.
        resample: number of replicates, and seed.
    """
    sums: dict[str, list[int]] = {name: [] for name in ("weights", *values)}
    for weights in draw_weights(units, resample):
        weight = weights.astype(np.int64)
        sums["weights"].append(int(weight.sum()))
        for name, of_units in values.items():
            sums[name].append(int(weight @ of_units))
    return sums


def combine_means(
    partitions: Iterable[Mapping[str, Any]], units_of_value: Mapping[str, int]
) -> dict[str, Floats]:
    """Returns the mean of each measure in each of B replicates, from the sums of all partitions.

    The arrays have the shape (B,). A mean is NaN if all weights of the replicate are 0.

    Args:
        partitions: the results of reduce_means for all partitions, in any order.
        units_of_value: maps the name of each measure to the integer that stands for 1.0.
    """
    names, collected = ("weights", *units_of_value), list(partitions)
    total = {name: sum(np.array(sums[name], dtype=object) for sums in collected) for name in names}
    return {name: _ratios(total[name], total["weights"] * units) for name, units in units_of_value.items()}


def _sums_by_unit(values: Ints, unit_of_row: Ints, units: int) -> Ints:
    """Returns, for each resampled unit (such as a user), the sum of its rows' values, shape (units,)."""
    order = np.argsort(unit_of_row, kind="stable")
    first = np.searchsorted(unit_of_row[order], np.arange(units))
    return np.add.reduceat(values[order], first)


def combine_replicates(ranges: Iterable[Mapping[str, Any]], units_of_loss: int) -> dict[str, Floats]:
    """Returns the AUC and the log loss of each of B replicates, from the sums of all ranges.

    Both arrays have the shape (B,). The AUC is NaN if the replicate lacks a class, and the log loss is NaN if
    it has no rows.

    Args:
        ranges: the results of reduce_replicates for all ranges, in ascending order of scores.
        units_of_loss: the integer that stands for a loss of 1.0 in `loss_units`.
    """
    total: dict[str, Any] = dict.fromkeys(SUMS, 0)
    for range_sums in ranges:
        # Python integers, because 2 × clicks × non-clicks exceeds 2⁶³ for four billion rows.
        sums = {name: np.array(range_sums[name], dtype=object) for name in SUMS}
        sums["doubled_wins"] = sums["doubled_wins"] + 2 * sums["positives"] * total["negatives"]
        total = {name: total[name] + sums[name] for name in SUMS}
    positives, negatives = total["positives"], total["negatives"]
    return {
        "auc": _ratios(total["doubled_wins"], 2 * positives * negatives),
        "log_loss": _ratios(total["loss_units"], (positives + negatives) * units_of_loss),
    }


def _ratios(numerators: Any, denominators: Any) -> Floats:
    """Returns the quotients of numerators and denominators; NaN where the denominator is 0."""
    pairs = zip(numerators, denominators, strict=True)
    return np.array([above / below if below else math.nan for above, below in pairs], np.float64)


def interval(difference: float, ours: Floats, theirs: Floats, confidence: float) -> Interval | None:
    """Returns the percentile interval of the difference between the measures of two models.

    The method is that of B. Efron and R. Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13.

    Args:
        difference: the difference on the original rows, without resampling.
        ours, theirs: (B,) the measure of each model in the replicates, NaN if it is undefined.
        confidence: share of the replicates whose difference is between the bounds.

    Returns: The interval. None if the difference is undefined in more than a tenth of the replicates, which
    happens if a class has too few rows.
    """
    differences = ours - theirs
    differences = differences[np.isfinite(differences)]
    if len(differences) < max(1.0, _USABLE_SHARE * len(ours)):
        return None
    low, high = np.quantile(differences, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(difference, float(low), float(high), confidence, len(differences))


# The code below calls a compiled library that sums bootstrap replicates (metrics/native/replicates.cpp).
#
# `make setup` builds the library. If it is missing, `numpy_sums` computes the same sums with NumPy,
# which takes longer.

log = logging.getLogger("nightrank.evaluate_model")

# The path of the library below sys.prefix. setup/build_native.py writes the library.
LIBRARY = Path("lib/nightrank/libnightrank_metrics.so")
VERSION = 1  # version of the interface; must equal the number in metrics/native/replicates.cpp
REPLICATES = 32  # number of replicates in a block; must equal kReplicates in metrics/native/replicates.cpp
_pointer, _long = ctypes.c_void_p, ctypes.c_int64


@lru_cache(maxsize=1)
def replicates_library() -> ctypes.CDLL | None:
    """Returns the compiled library; None, with a logged warning, if it is missing or has another version."""
    opened = open_library(LIBRARY, "nightrank_metrics_version", VERSION)
    if opened is None:
        log.warning(
            "%s is missing or has another version, so the gate is slower: run `make setup`",
            Path(sys.prefix) / LIBRARY,
        )
        return None
    opened.nightrank_replicate_sums.restype = None
    opened.nightrank_replicate_sums.argtypes = (_long, *[_pointer] * 5)
    return opened


def replicate_sums(
    opened: ctypes.CDLL,
    units: NDArray[np.int32],
    clicks: NDArray[np.bool_],
    tied: NDArray[np.bool_],
    weights: NDArray[np.uint8],
) -> NDArray[np.int64]:
    """Returns the sums over n rows, in ascending order of their scores, for one block of replicates.

    The result has the shape (3, REPLICATES). The first two sums are the weights of the clicks, and the
    weights of the other rows. The third is twice the weight of the (click, other row) pairs in which the
    click has the higher score. A pair with equal scores counts half.

    Args:
        opened: the library.
        units: (n,) index of the unit of each row.
        clicks: (n,) whether each row is a click.
        tied: (n,) whether the score of each row equals that of the row before.
        weights: (units, REPLICATES), the weight of each unit in each replicate, at most 15.
    """
    sums = np.empty((3, REPLICATES), np.int64)
    arrays = [np.ascontiguousarray(array) for array in (units, clicks, tied, weights)]
    opened.nightrank_replicate_sums(len(units), *(array.ctypes.data for array in arrays), sums.ctypes.data)
    return sums
