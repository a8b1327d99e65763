"""The click probability: a function of the written columns of a row and of its day, and of nothing else.

    logit = OFFSET + Σ taste[left, right] + Σ slope · level + Σ slope · (log(1 + value) − centre)

A field left empty counts by an effect of its own: in a taste it has its own row or column, elsewhere it adds nothing.
The logit is rounded to 1/256, so that there are 4096 probabilities and the AUC of a day can be had exactly from counts.
Whoever ranks by this probability reaches the best AUC there is; no column holds more about the label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etl.synthetic.clicks.columns import BY_NAME, MISSING
from etl.synthetic.clicks.draws import drifting_normals

# Column name → one value a row, MISSING where the field is empty.
Values = Mapping[str, NDArray[np.int64]]

STEPS = 4096
_STEPS_PER_LOGIT = 256
_LOWEST_LOGIT = -8.0
_OFFSET = -4.4
_TASTE_PERIOD_DAYS = 60
_MISSING_TASTE = 0.3  # size of the effect of an empty field, in shares of the taste's strength


@dataclass(frozen=True)
class Interaction:
    """A taste: what a pair of categories adds to the logit, beyond what either adds alone. Strength is its deviation."""

    left: str
    right: str
    strength: float

    @property
    def name(self) -> str:
        return f"{self.left}/{self.right}"


INTERACTIONS = (
    Interaction("user_segment", "item_category", 1.0),
    Interaction("user_interest", "item_theme", 0.8),
    Interaction("user_age_group", "item_brand_tier", 0.5),
    Interaction("user_household", "item_price_band", 0.35),
    Interaction("user_style", "item_colour", 0.3),
    Interaction("device", "item_seller", 0.25),
)
# Category → logit between its first level and its last, rising evenly; zero on average over the levels.
LEVEL_SLOPES = {
    "item_popularity": 1.6,
    "user_plan": 0.8,
    "hour_bucket": 0.6,
    "placement": -0.9,
    "referrer": 0.6,
}
# Integer → (logit for each factor of e, centre of log(1 + value)).
LOG_SLOPES = {
    "item_reviews": (0.1, 3.0),
    "item_rating_tenths": (0.6, 3.7),
    "user_visits": (0.15, 2.0),
    "page_position": (-0.2, 2.0),
}

# Interaction → logits (levels of left + 1, levels of right + 1); the last row and column are those of an empty field.
Tastes = Mapping[str, NDArray[np.float64]]


def tastes_of_day(seed: int, day: int) -> Tastes:
    """What each pair of categories adds to the logit on a day. Tastes turn over within months, little by little."""
    return {each.name: _taste(seed, each, day) for each in INTERACTIONS}


def _taste(seed: int, interaction: Interaction, day: int) -> NDArray[np.float64]:
    rows, columns = (BY_NAME[side].levels + 1 for side in (interaction.left, interaction.right))
    index = np.arange(rows * columns)
    drawn = drifting_normals(seed, f"taste/{interaction.name}", index, day, _TASTE_PERIOD_DAYS)
    taste = drawn.reshape(rows, columns)
    inner = taste[:-1, :-1]
    inner -= inner.mean(
        axis=1, keepdims=True
    )  # no effect of either side alone: a linear model must not see it
    inner -= inner.mean(axis=0, keepdims=True)
    inner /= inner.std()
    taste[-1, :] *= _MISSING_TASTE
    taste[:-1, -1] *= _MISSING_TASTE
    return taste * interaction.strength


def click_steps(tastes: Tastes, values: Values) -> NDArray[np.int64]:
    """Position of each row's click probability among the STEPS there are, from its written columns."""
    rows = len(values["item_popularity"])
    logit = np.full(rows, _OFFSET)
    for each in INTERACTIONS:
        logit += tastes[each.name][
            values[each.left], values[each.right]
        ]  # MISSING, -1, is the last row or column
    for name, slope in LEVEL_SLOPES.items():
        level = values[name]
        logit += np.where(level == MISSING, 0.0, slope * (level / (BY_NAME[name].levels - 1) - 0.5))
    for name, (slope, centre) in LOG_SLOPES.items():
        value = values[name]
        logit += np.where(value == MISSING, 0.0, slope * (np.log1p(np.maximum(value, 0)) - centre))
    steps = np.rint((logit - _LOWEST_LOGIT) * _STEPS_PER_LOGIT).astype(np.int64)
    return np.clip(steps, 0, STEPS - 1)


def probability_of(steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Click probability of each step."""
    return 1.0 / (1.0 + np.exp(-(_LOWEST_LOGIT + steps / _STEPS_PER_LOGIT)))


def auc_of_counts(counts: NDArray[np.int64]) -> float | None:
    """Exact AUC, ties averaged, from rows counted by (label, step) — (2, STEPS). None while one class is empty.

    The probability that a clicked row has a higher score than an unclicked one (Hanley and McNeil 1982).
    """
    negatives, positives = counts
    if not negatives.sum() or not positives.sum():
        return None
    below = np.cumsum(negatives) - negatives
    twice_won = (positives * (2 * below + negatives)).sum()  # integers: exact
    return float(twice_won / (2 * int(negatives.sum()) * int(positives.sum())))
