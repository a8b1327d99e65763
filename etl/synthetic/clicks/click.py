"""Computes the click probability of a row. It depends only on the fields and the day of the row.

    logit = OFFSET + Σ taste[left, right] + Σ slope · level + Σ slope · (log(1 + value) − centre)

The first sum is over the pairs of columns in INTERACTIONS. A taste is a table with one logit for each pair of
categories of two columns. The second sum is over the columns in LEVEL_SLOPES, whose codes are scaled to
levels in [-0.5, 0.5]. The third sum is over the columns in LOG_SLOPES. An empty field has its own row or
column in a taste, and adds 0 to the other sums.

The logit is rounded to a multiple of 1/256 and limited to the range from -8 to 8 - 1/256, so there are 4096
possible probabilities. So the exact AUC of a day can be computed from two numbers for each probability: of
the clicked rows, and of the rows without a click. A ranking by click probability has the best possible AUC,
because the columns contain no other information about the label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etl.synthetic.clicks.columns import BY_NAME, MISSING
from etl.synthetic.clicks.draws import drifting_normals

# Maps each column name to (rows,) values. An empty field is MISSING.
Values = Mapping[str, NDArray[np.int64]]

STEPS = 4096
_STEPS_PER_LOGIT = 256
_LOWEST_LOGIT = -8.0
OFFSET = -4.4
_TASTE_PERIOD_DAYS = 60
_MISSING_TASTE = 0.3  # strength of the effect of an empty field, as a multiple of the taste's strength


@dataclass(frozen=True)
class Interaction:
    """The definition of a taste.

    A taste is a table with one logit for each pair of categories of two columns.

    Attributes:
        left, right: the names of the two columns.
        strength: standard deviation of the logits in the table.
    """

    left: str
    right: str
    strength: float

    @property
    def name(self) -> str:
        """Returns the name of the taste: `left/right`."""
        return f"{self.left}/{self.right}"


INTERACTIONS = (
    Interaction("user_segment", "item_category", 1.0),
    Interaction("user_interest", "item_theme", 0.8),
    Interaction("user_age_group", "item_brand_tier", 0.5),
    Interaction("user_household", "item_price_band", 0.35),
    Interaction("user_style", "item_colour", 0.3),
    Interaction("device", "item_seller", 0.25),
)
# Maps a category column to the difference in logit between its last level and its first level. The effect is
# linear, and its mean over the levels is 0.
LEVEL_SLOPES = {
    "item_popularity": 1.6,
    "user_plan": 0.8,
    "hour_bucket": 0.6,
    "placement": -0.9,
    "referrer": 0.6,
}
# Maps an integer column to (slope: logit per factor of e, centre of log(1 + value)).
LOG_SLOPES = {
    "item_reviews": (0.1, 3.0),
    "item_rating_tenths": (0.6, 3.7),
    "user_visits": (0.15, 2.0),
    "page_position": (-0.2, 2.0),
}

# Maps the name of an interaction to logits (levels of left + 1, levels of right + 1). The last row and column
# are for an empty field.
Tastes = Mapping[str, NDArray[np.float64]]


def tastes_of_day(seed: int, day: int) -> Tastes:
    """Returns the tastes of a day by name.

    A taste is a table with the logits that pairs of categories add. The logits change a little each day.
    """
    return {interaction.name: _taste(seed, interaction, day) for interaction in INTERACTIONS}


def _taste(seed: int, interaction: Interaction, day: int) -> NDArray[np.float64]:
    rows, columns = (BY_NAME[side].levels + 1 for side in (interaction.left, interaction.right))
    index = np.arange(rows * columns)
    drawn = drifting_normals(seed, f"taste/{interaction.name}", index, day, _TASTE_PERIOD_DAYS)
    taste = drawn.reshape(rows, columns)
    inner = taste[:-1, :-1]
    # The mean of each row and of each column of the table is 0, so that a linear model cannot learn the
    # taste.
    inner -= inner.mean(axis=1, keepdims=True)
    inner -= inner.mean(axis=0, keepdims=True)
    inner /= inner.std()
    taste[-1, :] *= _MISSING_TASTE
    taste[:-1, -1] *= _MISSING_TASTE
    return taste * interaction.strength


def click_steps(tastes: Tastes, values: Values) -> NDArray[np.int64]:
    """Returns the index of each row's click probability among STEPS probabilities, shape (rows,)."""
    rows = len(values["item_popularity"])
    logit = np.full(rows, OFFSET)
    for taste in INTERACTIONS:  # MISSING is -1, so it selects the last row or column
        logit += tastes[taste.name][values[taste.left], values[taste.right]]
    for name in (*LEVEL_SLOPES, *LOG_SLOPES):
        logit += column_logits(name, values[name])
    steps = np.rint((logit - _LOWEST_LOGIT) * _STEPS_PER_LOGIT).astype(np.int64)
    return np.clip(steps, 0, STEPS - 1)


def column_logits(name: str, values: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns the logit that each value of a column of LEVEL_SLOPES or LOG_SLOPES adds, shape (n,).

    MISSING adds 0.
    """
    if name in LEVEL_SLOPES:
        added = LEVEL_SLOPES[name] * (values / (BY_NAME[name].levels - 1) - 0.5)
    else:
        slope, centre = LOG_SLOPES[name]
        added = slope * (np.log1p(np.maximum(values, 0)) - centre)
    return np.where(values == MISSING, 0.0, added)


def probability_of(steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns the click probability for each index that `click_steps` returns, shape (rows,)."""
    return 1.0 / (1.0 + np.exp(-(_LOWEST_LOGIT + steps / _STEPS_PER_LOGIT)))


def auc_of_counts(counts: NDArray[np.int64]) -> float | None:
    """Returns the exact AUC of the click probability; None if no row or every row is clicked.

    AUC is the probability that a clicked row has a higher score than a row without a click (Hanley and McNeil
    1982). Rows with equal scores count half.

    Args:
        counts: (2, STEPS). counts[l, s] is the number of rows with the label l and the click probability with
            index s.
    """
    negatives, positives = counts
    if not negatives.sum() or not positives.sum():
        return None
    below = np.cumsum(negatives) - negatives
    twice_won = (positives * (2 * below + negatives)).sum()  # the sum is an integer, so it is exact
    return float(twice_won / (2 * int(negatives.sum()) * int(positives.sum())))
