"""How sure is a difference between two models on the same rows? A bootstrap by user whose rows never meet in one place.

Each replicate gives every user a weight drawn from Poisson(1), which is what drawing users with replacement tends to
(N. Chamandy et al., Estimating Uncertainty for Massive Data Streams, Google 2012). A weight follows from the seed, the
replicate and the user's hash alone, so both models meet the same resamples although each has its own frame, cut into its
own ranges; rows need not be joined, and no weight is stored. All rows of a user share a weight, because clicks of one
user are not independent.

Within a replicate everything is exact: sums are integers, and a pair of rows in different ranges is decided by the order of
the ranges (scoring.evaluation.prediction_quality). A task works through replicates one after another and keeps a few vectors of its range's length;
what leaves it is four integers a replicate. Time grows with rows × replicates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SUMS = ("positives", "negatives", "doubled_wins", "loss_units")

_DRAWS_A_HASH = 4  # 16 bits each: a Poisson weight to within 1/65,536 of its probability
_USABLE_SHARE = 0.9

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Resample:
    """How often to resample, and from which seed."""

    replicates: int
    seed: int = 0


@dataclass(frozen=True)
class Interval:
    """A difference, challenger minus champion, and between which bounds it lies with this confidence.

    `replicates` are those in which both classes had weight; the others have no AUC and are left out.
    """

    difference: float
    low: float
    high: float
    confidence: float
    replicates: int


def _poisson_table() -> NDArray[np.uint8]:
    """(65536,) the quantile function of Poisson(1) at the middle of each 65,536th."""
    upto = np.cumsum([math.exp(-1) / math.factorial(k) for k in range(12)])
    return np.searchsorted(upto, (np.arange(2**16) + 0.5) / 2**16).astype(np.uint8)


_POISSON = _poisson_table()


def draw_weights(units: Ints, resample: Resample) -> Iterable[NDArray[np.uint8]]:
    """The (m,) weights of m hashed units in each replicate, in order of the replicates.

    The hash is the finaliser of SplitMix64 (G. Steele et al., Fast Splittable Pseudorandom Number Generators, 2014).
    """
    base = _mixed(units.view(np.uint64) ^ _mixed(np.array([resample.seed], np.int64).view(np.uint64)))
    for first in range(0, resample.replicates, _DRAWS_A_HASH):
        offset = np.uint64((first // _DRAWS_A_HASH + 1) * 0x9E3779B97F4A7C15 % 2**64)
        hashed = _mixed(base + offset)
        for draw in range(min(_DRAWS_A_HASH, resample.replicates - first)):
            yield _POISSON[(hashed >> np.uint64(16 * draw)) & np.uint64(0xFFFF)]


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def reduce_replicates(
    units: Ints, click: NDArray[np.bool_], score: Floats, loss_units: Ints, resample: Resample
) -> dict[str, list[int]]:
    """The sums of one range of n rows in each replicate: name of SUMS → as many integers as there are replicates.

    Args:
        units: (n,) hash of the unit that is resampled: the row's user.
        click, score, loss_units: (n,) label, probability, and the loss in whole units.
    """
    distinct, place = np.unique(units, return_inverse=True)  # (m,), (n,)
    by_score = np.argsort(score, kind="stable")
    positive, negative = by_score[click[by_score]], by_score[~click[by_score]]
    # A click beats the negatives below the first place, and ties with those up to the second.
    low = np.searchsorted(score[negative], score[positive], "left")
    high = np.searchsorted(score[negative], score[positive], "right")
    place_positive, place_negative = place[positive], place[negative]
    losses = _sums_by_unit(loss_units, place, len(distinct))
    below = np.zeros(len(negative) + 1, np.int64)
    sums: dict[str, list[int]] = {name: [] for name in SUMS}
    for weights in draw_weights(distinct, resample):
        weight_positive = weights[place_positive].astype(np.int64)
        np.cumsum(weights[place_negative], out=below[1:])
        sums["positives"].append(int(weight_positive.sum()))
        sums["negatives"].append(int(below[-1]))
        sums["doubled_wins"].append(int(weight_positive @ (below[low] + below[high])))
        sums["loss_units"].append(int(weights.astype(np.int64) @ losses))
    return sums


def _sums_by_unit(values: Ints, place: Ints, units: int) -> Ints:
    order = np.argsort(place, kind="stable")
    first = np.searchsorted(place[order], np.arange(units))
    return np.add.reduceat(values[order], first)


def combine_replicates(ranges: Iterable[Mapping[str, Any]], units_of_loss: int) -> dict[str, Floats]:
    """AUC and log loss of every replicate, NaN where it lacks a class (or any row).

    Args:
        ranges: sums of the ranges (reduce_replicates), in ascending order of their scores.
        units_of_loss: units that make a loss of one.
    """
    total: dict[str, Any] = dict.fromkeys(SUMS, 0)
    for each in ranges:
        # Python's own integers: 2 × clicks × non-clicks passes 2⁶³ at four billion rows.
        sums = {name: np.array(each[name], dtype=object) for name in SUMS}
        sums["doubled_wins"] = sums["doubled_wins"] + 2 * sums["positives"] * total["negatives"]
        total = {name: total[name] + sums[name] for name in SUMS}
    positives, negatives = total["positives"], total["negatives"]
    return {
        "auc": _ratios(total["doubled_wins"], 2 * positives * negatives),
        "log_loss": _ratios(total["loss_units"], (positives + negatives) * units_of_loss),
    }


def _ratios(numerators: Any, denominators: Any) -> Floats:
    pairs = zip(numerators, denominators, strict=True)
    return np.array([above / below if below else math.nan for above, below in pairs], np.float64)


def interval(difference: float, ours: Floats, theirs: Floats, confidence: float) -> Interval | None:
    """The percentile interval of a difference (B. Efron, R. Tibshirani, An Introduction to the Bootstrap, 1993, ch. 13).

    Args:
        difference: on the rows themselves.
        ours, theirs: (B,) the measure in each replicate, NaN where it is undefined.

    Returns:
        None where more than a tenth of the replicates leaves the difference undefined: too few rows of a class to resample.
    """
    found = ours - theirs
    found = found[np.isfinite(found)]
    if len(found) < max(1.0, _USABLE_SHARE * len(ours)):
        return None
    low, high = np.quantile(found, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(difference, float(low), float(high), confidence, len(found))
