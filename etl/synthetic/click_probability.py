"""The columns of the generated log, its random numbers, and the click probability of a row.

The docstring of etl.synthetic explains each column.

Counter RNG: each random number is a function of a seed, the name of a stream, and an index.

Users, items and tastes (tables of effects, described below) are drawn with this generator. So all workers get
the same users, items and tastes, in whichever order they draw them. A random number is the hash of seed,
stream and index, computed with the last step (the finaliser) of SplitMix64 (Steele, Lea, Flood: "Fast
splittable pseudorandom number generators", OOPSLA 2014, fig. 17).

The click probability of a row depends only on the fields and the day of the row. It is sigmoid(logit), with

    logit = OFFSET + Σ taste[left, right] + Σ slope · level + Σ slope · (log(1 + value) − centre)

The first sum is over the pairs of columns in INTERACTIONS. A taste is a table with one logit for each pair of
categories of two columns. The second sum is over the columns in LEVEL_SLOPES, whose codes are scaled to
levels in [-0.5, 0.5]. The third sum is over the columns in LOG_SLOPES. These two constants also contain the
slope of each column, and LOG_SLOPES the centre. An empty field has its own row or column in a taste, and adds
0 to the other sums.

The logit is rounded to a multiple of 1/256 and limited to the range from -8 to 8 - 1/256, so there are 4096
possible probabilities. So the exact AUC of a day can be computed from two counts for each probability: the
number of rows with a click, and the number of rows without a click. A ranking by click probability has the
best possible AUC, because the columns contain no other information about the label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

import numpy as np
from numpy.typing import NDArray

MISSING = -1  # stands for a missing value in any column; in a file, the field is empty


@dataclass(frozen=True)
class GeneratedColumn:
    """A column of the generated log.

    Attributes:
        criteo: name of the column in the layout `criteo`.
        name: name of the column in the layout `named`.
        side: what the column describes: the user, the item, or the context of the impression.
        kind: `key` (an id), `category` (a code in [0, levels)) or `integer` (0 or more).
        levels: number of values of a category; 0 for other kinds.
    """

    criteo: str
    name: str
    side: Literal["user", "item", "context"]
    kind: Literal["key", "category", "integer"]
    levels: int = 0


LABEL, EVENT_TIME = "clicked", "event_time"

FEATURES = (
    GeneratedColumn("I1", "user_days_registered", "user", "integer"),
    GeneratedColumn("I2", "user_visits", "user", "integer"),
    GeneratedColumn("I3", "user_spend_cents", "user", "integer"),
    GeneratedColumn("I4", "user_reviews_written", "user", "integer"),
    GeneratedColumn("I5", "user_age", "user", "integer"),
    GeneratedColumn("I6", "item_price_cents", "item", "integer"),
    GeneratedColumn("I7", "item_reviews", "item", "integer"),
    GeneratedColumn("I8", "item_rating_tenths", "item", "integer"),
    GeneratedColumn("I9", "item_days_listed", "item", "integer"),
    GeneratedColumn("I10", "item_weight_grams", "item", "integer"),
    GeneratedColumn("I11", "page_position", "context", "integer"),
    GeneratedColumn("I12", "session_seconds", "context", "integer"),
    GeneratedColumn("I13", "session_views", "context", "integer"),
    GeneratedColumn("C1", "user_id", "user", "key"),
    GeneratedColumn("C2", "item_id", "item", "key"),
    GeneratedColumn("C3", "user_segment", "user", "category", 12),
    GeneratedColumn("C4", "user_interest", "user", "category", 16),
    GeneratedColumn("C5", "user_age_group", "user", "category", 8),
    GeneratedColumn("C6", "user_household", "user", "category", 6),
    GeneratedColumn("C7", "user_plan", "user", "category", 4),
    GeneratedColumn("C8", "user_region", "user", "category", 12),
    GeneratedColumn("C9", "user_style", "user", "category", 8),
    GeneratedColumn("C10", "user_language", "user", "category", 5),
    GeneratedColumn("C11", "user_channel", "user", "category", 6),
    GeneratedColumn("C12", "item_category", "item", "category", 20),
    GeneratedColumn("C13", "item_theme", "item", "category", 12),
    GeneratedColumn("C14", "item_brand_tier", "item", "category", 6),
    GeneratedColumn("C15", "item_price_band", "item", "category", 8),
    GeneratedColumn("C16", "item_popularity", "item", "category", 10),
    GeneratedColumn("C17", "item_origin", "item", "category", 10),
    GeneratedColumn("C18", "item_colour", "item", "category", 10),
    GeneratedColumn("C19", "item_seller", "item", "category", 8),
    GeneratedColumn("C20", "item_material", "item", "category", 8),
    GeneratedColumn("C21", "hour_bucket", "context", "category", 8),
    GeneratedColumn("C22", "device", "context", "category", 4),
    GeneratedColumn("C23", "referrer", "context", "category", 6),
    GeneratedColumn("C24", "placement", "context", "category", 5),
    GeneratedColumn("C25", "connection", "context", "category", 4),
    GeneratedColumn("C26", "browser", "context", "category", 6),
)

BY_NAME = {column.name: column for column in FEATURES}
KEYS = tuple(column.name for column in FEATURES if column.kind == "key")
INTEGERS = tuple(column.name for column in FEATURES if column.kind == "integer")
CATEGORIES = tuple(column.name for column in FEATURES if column.kind == "category")


# Counter RNG: each random number is a function of a seed, the name of a stream, and an index.

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def hashes(seed: int, stream: str, index: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Returns one hash of 64 bits per index, shape (n,). Streams with different names are independent."""
    start = np.uint64(int.from_bytes(sha256(f"{seed}/{stream}".encode()).digest()[:8], "little"))
    state = index.astype(np.uint64) * _GAMMA + start
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))


def uniforms(seed: int, stream: str, index: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns one random number per index, shape (n,), uniformly distributed in [0, 1)."""
    return (hashes(seed, stream, index) >> np.uint64(11)) * 2.0**-53


def normals(seed: int, stream: str, index: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns one standard normal number per index, shape (n,) (Box and Muller 1958)."""
    radius = np.sqrt(-2.0 * np.log1p(-uniforms(seed, f"{stream}/radius", index)))
    return np.asarray(radius * np.cos(2.0 * np.pi * uniforms(seed, f"{stream}/angle", index)))


def drifting_normals(
    seed: int, stream: str, index: NDArray[np.int64], day: int, period: int
) -> NDArray[np.float64]:
    """Returns one standard normal number per index, shape (n,). The numbers change a little each day.

    Time is divided into periods of `period` days. On day d of a period, the result is cos(a)·x + sin(a)·y.
    Here a is d / period · π/2, x is a normal number drawn for this period, and y is a normal number drawn for
    the next period. The variance is always 1. The correlation of the results of day 0 and day d of a period
    is cos(a).
    """
    index_of_period, step = divmod(day, period)
    angle = step / period * np.pi / 2.0
    start = normals(seed, f"{stream}/{index_of_period}", index)
    end = normals(seed, f"{stream}/{index_of_period + 1}", index)
    return np.asarray(np.cos(angle) * start + np.sin(angle) * end)


# The code below computes the click probability of a row, which depends only on the fields and the day of the
# row.

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
# Maps an integer column to (slope, centre). If 1 + value is multiplied by e, the logit grows by the slope.
# The column adds 0 to the logit if log(1 + value) is equal to the centre.
LOG_SLOPES = {
    "item_reviews": (0.1, 3.0),
    "item_rating_tenths": (0.6, 3.7),
    "user_visits": (0.15, 2.0),
    "page_position": (-0.2, 2.0),
}

# Maps the name of an interaction to a table of logits, shape (levels of left + 1, levels of right + 1). The
# last row and column are for an empty field.
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
