"""Computes the true probabilities of users and items on one day. The best possible lists follow from them.

Let a be the probability that an impression of a day is an impression of a certain user. Let e be the
probability that an impression of this user shows a certain item, and p the probability that the user clicks
the shown item. `Exposure` computes a and e, and `ExpectedClicks` computes p. The impressions of a day are
independent. So if a list contains the items L, the probability that no click of the user hits the list is

    (1 - a · Σ e·p)^rows, where the sum is over L, and rows is the number of impressions of the day.

So lists of the items with the largest e·p have the highest expected hit rate.

The hour of an impression depends on its position in the log. The formula above replaces the probability of
each row by the average over the day. For each row, this replacement changes the probability of a hit by less
than the square of this probability, which is small.

`ExpectedClicks` averages the click probability of a user and a shown item over all other random values of a
row.

The click probability of a row (`click_probability.py`) is sigmoid(S). S is a sum of terms. Each column occurs
in at most one term. A taste is a term of two columns, and each other term depends on one column. The
generator draws the columns of the context, and which fields are empty, independently of each other and of the
user and the item. So for a fixed user and item, the terms of S are independent random variables. The mean of
exp(iwS) is therefore the product of the characteristic functions of the terms. The characteristic function of
a term T is the mean of exp(iwT). The mean of sigmoid(S) follows from a Fourier series:

    sigmoid(x) = 1/2 + 2π/H · Σ sin(w·x) / sinh(π·w)        w = π/H, 3π/H, 5π/H, …

The series is the Fourier series of a function with the period 2H. The derivative of this function is
Σ (-1)^n · sigmoid'(x - n·H). The terms of the series follow from the Fourier transform of sigmoid', which is
π·w / sinh(π·w). The function differs from sigmoid(x) by at most 2·exp(|x| - H). With the values of H and of
the number of terms that are set below, the difference is less than 2e-7 for logits between -10 and 10, and
less than 2e-6 at -12. Logits are between about -12 and 6.

The generator also rounds the logit of a row to a multiple of 1/256, and limits the logit to the range from -8
to 8 - 1/256. This module leaves out both steps. Rounding changes the mean by about 1e-6. The lower limit
raises the mean by less than 4e-4, and only for pairs that are almost never clicked.

The products of characteristic functions are computed as complex64. This changes a probability by less than
1e-6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from conf.types import Generate, Keys
from etl.synthetic.click_probability import (
    BY_NAME,
    INTERACTIONS,
    LEVEL_SLOPES,
    LOG_SLOPES,
    OFFSET,
    Interaction,
    column_logits,
)
from etl.synthetic.generate import kind_of
from etl.synthetic.impressions import CHOICE_FOCUS, CHOICES, ClickWorld, context_shares, world_of_day
from etl.synthetic.lines import ImpressionLayout
from storage.manifest import is_published, read_manifest
from storage.paths import LakePaths, Partition

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Complexes = NDArray[np.complex128]
Complexes64 = NDArray[np.complex64]
_HALF_PERIOD = 26.0
# (F,); terms of higher frequencies are below 3e-7, so they are left out.
_FREQUENCIES = np.arange(1, 41, 2) * np.pi / _HALF_PERIOD
_WEIGHTS = 2.0 * np.pi / _HALF_PERIOD / np.sinh(np.pi * _FREQUENCIES)


@dataclass(frozen=True)
class _Factors:
    """The characteristic functions of a taste between a user column and an item column.

    Attributes:
        column: the user column.
        of_level: (levels of the user column, levels of the item column, F) complex64: the value of each
            function at F frequencies.
        levels: (items,) the level of the item column for each item.
    """

    column: str
    of_level: Complexes64
    levels: Ints


class ExpectedClicks:
    """The mean click probabilities of all pairs of a user and an item on one day."""

    def __init__(self, world: ClickWorld, missing_share: float) -> None:
        """Computes the characteristic functions that do not depend on the user.

        Args:
            world: users, items and tastes of the day.
            missing_share: probability that a field is left empty.
        """
        self._world = world
        self._missing = missing_share
        self._tastes = {taste.name: self._pairs(world.tastes[taste.name]) for taste in INTERACTIONS}
        context: Complexes = np.exp(1j * _FREQUENCIES * OFFSET)  # (F,)
        items: Complexes = np.ones((len(world.items["item_id"]), 1), dtype=np.complex128)
        for name in (*LEVEL_SLOPES, *LOG_SLOPES):
            side = BY_NAME[name].side
            if side == "item":
                items = items * self._column(name, world.items[name])
            elif side == "context":
                values, shares = context_shares()[name]
                context = context * (shares @ self._column(name, values))
            elif side != "user":  # `_of_columns` computes the terms of the user's columns
                assert_never(side)
        for taste in _of_side("context"):
            values, shares = context_shares()[taste.left]
            of_value = np.tensordot(shares, self._tastes[taste.name][values], axes=1)  # (right, F)
            items = items * of_value[world.items[taste.right]]
        self._context = context * _WEIGHTS  # (F,)
        self._items: Complexes64 = items.astype(np.complex64)  # (items, F)
        *outer, left, right = [self._factors(taste) for taste in _of_side("user")]
        self._outer, self._left, self._right = outer, left, right
        # Each item has a pair of levels in the last two tastes. Compute the pair's index among all pairs.
        self._pairs_of_items: Ints = left.levels * right.of_level.shape[1] + right.levels

    def of_user(self, user: int) -> Floats:
        """Returns the mean probability that one user clicks each item of the day, if it is shown.

        The shape is (items,). `user` is the position of the user in `world.users`.
        """
        return np.asarray(self.of_users(np.array([user]))[0])

    def of_users(self, users: Ints) -> Floats:
        """Returns the mean click probabilities of several users, float64 of the shape (users, items).

        `users` are positions in `world.users`. The result for a user does not depend on the other users, but
        computing many users at once takes less time.

        The characteristic function of a user and an item is a product of two arrays (items, F). The first
        array multiplies the functions of the item columns by those of all tastes except the last two. The
        loop processes users with equal categories one after another, so it computes this array only once for
        them. The second array is computed for each pair of levels of the last two tastes, and then gathered
        by item. There are fewer such pairs than items.
        """
        columns = self._world.users
        own = self._of_columns(users)
        products = [self._items, *(np.empty_like(self._items) for _ in self._outer)]
        factor = np.empty_like(self._items)
        clicked = np.empty((len(users), len(self._items)))
        codes = np.stack([columns[taste.column][users] for taste in self._outer])  # (tastes, users)
        computed: list[int | None] = [None] * len(self._outer)
        for row in np.lexsort(codes[::-1]):
            for depth, taste in enumerate(self._outer):
                if computed[depth] != (code := int(codes[depth, row])):
                    _gather(taste.of_level[code], taste.levels, factor)
                    np.multiply(products[depth], factor, out=products[depth + 1])
                    computed[depth:] = [code, *[None] * (len(self._outer) - depth - 1)]
            left = self._left.of_level[columns[self._left.column][users[row]]]
            right = self._right.of_level[columns[self._right.column][users[row]]] * own[row]
            pairs = left[:, None, :] * right  # (levels of left, levels of right, F).
            # Im(a·b) = Re(a)·Im(b) + Im(a)·Re(b) is the scalar product of (Re, Im) of a and of i·conj(b).
            _gather(1j * pairs.conj(), self._pairs_of_items, factor)
            clicked[row] = np.einsum("if,if->i", _parts(products[-1]), _parts(factor))
        clicked += 0.5
        return clicked

    def _of_columns(self, users: Ints) -> Complexes64:
        """Returns the products of the characteristic functions of context and user columns, (users, F)."""
        product = self._context
        for name in (*LEVEL_SLOPES, *LOG_SLOPES):
            if BY_NAME[name].side == "user":
                values, index = np.unique(self._world.users[name][users], return_inverse=True)
                product = product * self._column(name, values)[index]
        return product.astype(np.complex64)

    def _factors(self, taste: Interaction) -> _Factors:
        table = self._tastes[taste.name].astype(np.complex64)
        return _Factors(taste.left, table, self._world.items[taste.right])

    def _column(self, name: str, values: NDArray[np.int64]) -> Complexes:
        """Returns the characteristic function of a column's term for each of n values, shape (n, F).

        An empty field adds 0.
        """
        present = np.exp(1j * np.outer(column_logits(name, values), _FREQUENCIES))
        return np.asarray((1.0 - self._missing) * present + self._missing)

    def _pairs(self, taste: Floats) -> Complexes:
        """Returns the characteristic functions of a taste, shape (levels of left, levels of right, F).

        Either field may be empty. The last row and column of `taste` are for empty fields.
        """
        whole = np.exp(1j * taste[:, :, None] * _FREQUENCIES)
        left = (1.0 - self._missing) * whole[:-1] + self._missing * whole[-1:]
        return np.asarray((1.0 - self._missing) * left[:, :-1] + self._missing * left[:, -1:])


def _of_side(left: str) -> list[Interaction]:
    """Returns the tastes whose left column describes the user (`user`) or the impression (`context`)."""
    return [taste for taste in INTERACTIONS if BY_NAME[taste.left].side == left]


def _gather(rows: Complexes64, index: Ints, out: Complexes64) -> None:
    """Copies the rows with the indices `index` to `out`. A row is a vector along the last axis of `rows`."""
    # With the mode `clip`, NumPy makes no copy of `out`.
    np.take(rows.reshape(-1, rows.shape[-1]), index, axis=0, out=out, mode="clip")


def _parts(values: Complexes64) -> NDArray[np.float32]:
    """Returns a view of an array (n, F): the real and imaginary parts, shape (n, 2F)."""
    return values.view(np.float32)


# The class below computes the probability that an impression of a user shows an item.
#
# `impressions.py` draws CHOICES items for an impression, and shows one of them. Each draw selects item i with
# the probability b[i], which depends on the user's segment. The probability that a drawn item is shown is
# proportional to the item's weight w = exp(CHOICE_FOCUS · tastes). So an item i is shown with the probability
#
# CHOICES · b[i] · w[i] · E[1 / (w[i] + W)], where W is the sum of the weights of the other CHOICES - 1 drawn
# items.
#
# The mean of 1 / (w + W) is the integral of exp(-t·w) · L(t)^(CHOICES - 1) over all t > 0, because
# 1 / x = ∫ exp(-t·x) dt. Here L(t) = Σ b[j] · exp(-t·w[j]) is the mean of exp(-t·weight) of one drawn item.
# The integral is computed by the trapezoidal rule after the substitution t = exp(s - exp(-s)) of Takahasi and
# Mori (1974).
#
# The exponentials in the integral, which are most of the work, are computed as float32. With up to 5000
# items, float32 and the step of the rule change a probability by a relative error of less than 5e-6.

_STEP = 0.25
_S = np.arange(-3.2, 8.0, _STEP)
_T = np.exp(_S - np.exp(-_S))  # (T,)
_DT = _STEP * _T * (1.0 + np.exp(-_S))  # (T,)
_MINUS_T = -_T.astype(np.float32)[:, None]  # (T, 1)


class Exposure:
    """The probabilities with which users are shown items on one day."""

    def __init__(self, world: ClickWorld) -> None:
        """Computes the probabilities with which items are drawn for the users of each segment."""
        self._world = world
        chances = np.diff(world.category_edges, prepend=0.0)  # (segments, categories)
        popularity = np.empty(len(world.items_by_category))
        popularity[world.items_by_category] = np.diff(world.item_edges, prepend=0.0)
        category = world.items["item_category"]
        within = popularity / np.diff(world.category_bounds)[category]  # (items,)
        self._drawn: Floats = chances[:, category] * within  # (segments, items)
        self._user_shares: Floats = np.diff(world.user_edges, prepend=0.0)
        # For each taste that decides which drawn item is shown: its user column, and the appeal of each item
        # to each level of this column, shape (levels, items).
        self._appeals: list[tuple[str, Floats]] = [
            (taste.left, CHOICE_FOCUS * world.tastes[taste.name][:, world.items[taste.right]])
            for taste in INTERACTIONS[1:]
            if taste.left in world.users
        ]

    def shares_of_users(self, users: Ints) -> Floats:
        """Returns for each user the probability that an impression of a day is for this user, (users,)."""
        return self._user_shares[users]

    def of_user(self, user: int) -> Floats:
        """Returns the probability that an impression of one user shows each item, shape (items,).

        The probabilities add up to 1. `user` is the position of the user in `world.users`.
        """
        return np.asarray(self.of_users(np.array([user]))[0])

    def of_users(self, users: Ints) -> Floats:
        """Returns the results of `of_user` for several users, float64 of the shape (users, items).

        `users` are positions in `world.users`. The result for a user does not depend on the other users.
        """
        columns = self._world.users
        shown = np.empty((len(users), self._drawn.shape[1]))
        decay = np.empty((len(_T), self._drawn.shape[1]), dtype=np.float32)
        for row, user in enumerate(users):
            drawn = self._drawn[columns["user_segment"][user]]
            appeal = np.zeros(len(drawn))
            for name, of_level in self._appeals:
                appeal += of_level[columns[name][user]]
            weights = np.exp(appeal - appeal.max())
            # Normalise the weights, so that the integral has the same scale for all users.
            weights /= (drawn * weights).sum()
            np.multiply(_MINUS_T, weights.astype(np.float32), out=decay)
            np.exp(decay, out=decay)
            # The operator @ would use threads, which cost more time than they save for these products.
            one = np.einsum("ti,i->t", decay, drawn.astype(np.float32)).astype(np.float64)
            others = one ** (CHOICES - 1)  # (T,)
            integrals = np.einsum("t,ti->i", (_DT * others).astype(np.float32), decay)
            shown[row] = CHOICES * drawn * weights * integrals
        return shown


# The classes below return the true probabilities of users and items on generated days.


@dataclass(frozen=True)
class GeneratedDays:
    """Days of a generated log.

    Attributes:
        settings: the settings with which the days were generated.
        days: the ISO dates.
    """

    settings: Generate
    days: tuple[str, ...]


def generated_days(lake: LakePaths, keys: Keys | None, days: Sequence[str]) -> GeneratedDays | None:
    """Returns the settings with which days of the log were generated.

    Returns None if the true probabilities are unknown. This is the case in each of these situations:

    * There are no days, or they have the layout `outbrain`.
    * generate_clicks did not write all days into the lake, or wrote them with different settings.
    * `keys` are not the user and the item of the generator.
    """
    settings = [published_settings(lake.raw.partition(day)) for day in days]
    first = settings[0] if settings else None
    if first is None or any(other != first for other in settings):
        return None
    layout = kind_of(first).layout
    names = dict(zip(layout.columns, layout.feature_names, strict=True))
    if keys is None or not isinstance(layout, ImpressionLayout):
        return None
    generator_keys = (names[BY_NAME["user_id"]], names[BY_NAME["item_id"]])
    return GeneratedDays(first, tuple(days)) if (keys.user, keys.item) == generator_keys else None


def published_settings(partition: Partition) -> Generate | None:
    """Returns the settings with which a day of the raw log was generated.

    Settings that do not affect the rows of a day have their default values in the result. Returns None if the
    day was not generated, or if a release that did not record the settings generated it.
    """
    if not is_published(partition):
        return None
    settings = read_manifest(partition).facts.get("settings")
    return None if settings is None else Generate.model_validate(settings)


@dataclass(frozen=True)
class TrueProbabilities:
    """The true probabilities of one user for each item of a day.

    Attributes:
        user_share: probability that an impression of the day is an impression of this user.
        clicked: (items,) probability of a click if the item is shown to the user, averaged over the context
            and over empty fields.
        shown: (items,) probability that an impression of the user shows the item.
    """

    user_share: float
    clicked: Floats
    shown: Floats


@dataclass(frozen=True)
class TrueProbabilitiesOfUsers:
    """Like TrueProbabilities, but for several users.

    Attributes:
        user_shares: (users,)
        clicked: (users, items)
        shown: (users, items)
    """

    user_shares: Floats
    clicked: Floats
    shown: Floats


class DayTruth:
    """The true probabilities of one generated day.

    Attributes:
        users: maps the key of each user in the log to the user's position.
        items: maps the key of each item in the log to the item's position, which is its index in arrays.
    """

    def __init__(self, config: Generate, day: str) -> None:
        """Draws the users, items and tastes of the ISO date `day`.

        Raises:
            ValueError: the layout is not a layout of impressions.
        """
        layout = kind_of(config).layout
        if not isinstance(layout, ImpressionLayout):
            raise ValueError(
                f"internal error, please report: layout {config.layout} has no true probabilities"
            )
        world = world_of_day(config, date.fromisoformat(day))
        user_keys = layout.token(BY_NAME["user_id"], world.users["user_id"]).to_pylist()
        item_keys = layout.token(BY_NAME["item_id"], world.items["item_id"]).to_pylist()
        self.users: dict[str, int] = {key: position for position, key in enumerate(user_keys)}
        self.items: dict[str, int] = {key: position for position, key in enumerate(item_keys)}
        self._clicks = ExpectedClicks(world, config.missing_share)
        self._exposure = Exposure(world)

    def of_user(self, user: int) -> TrueProbabilities:
        """Returns the true probabilities of one user. `user` is the index of the user."""
        of_users = self.of_users(np.array([user]))
        return TrueProbabilities(float(of_users.user_shares[0]), of_users.clicked[0], of_users.shown[0])

    def of_users(self, users: NDArray[np.int64]) -> TrueProbabilitiesOfUsers:
        """Returns the true probabilities of several users. `users` has the index of each user.

        The probabilities of a user do not depend on the other users. Computing many users at once takes less
        time.
        """
        return TrueProbabilitiesOfUsers(
            self._exposure.shares_of_users(users),
            self._clicks.of_users(users),
            self._exposure.of_users(users),
        )
