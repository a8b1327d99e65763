"""Computes the click probability of a user and a shown item, averaged over everything else that is random.

The click probability of a row (`click.py`) is sigmoid(S). S is a sum of terms, and each term depends on other
columns: tastes on two columns, other terms on one. The generator draws the context of a row, and which of its
fields are empty, independently of the user and the item and of each other. So for a fixed user and item, the
terms of S are independent random variables, and the mean of exp(iwS) is the product of their characteristic
functions, the means of exp(iwT) of each term T. The mean of sigmoid(S) follows from a Fourier series:

    sigmoid(x) = 1/2 + 2π/H · Σ sin(w·x) / sinh(π·w)        w = π/H, 3π/H, 5π/H, …

The series belongs to the function with the period 2H whose derivative is Σ (-1)^n · sigmoid'(x - n·H). Its
terms follow from the Fourier transform of sigmoid', which is π·w / sinh(π·w). The function differs from
sigmoid(x) by at most 2·exp(|x| - H). Logits are between about -12 and 6, so the difference is below 1e-8.

The generator also rounds the logit of a row to a multiple of 1/256, and limits it to the range from -8 to
8 - 1/256. This module does neither. Rounding changes the mean by about 1e-6. The lower limit raises it by
less than 4e-4, and only for pairs that are almost never clicked.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from etl.synthetic.clicks.click import (
    INTERACTIONS,
    LEVEL_SLOPES,
    LOG_SLOPES,
    OFFSET,
    Interaction,
    column_logits,
)
from etl.synthetic.clicks.columns import BY_NAME
from etl.synthetic.clicks.impressions import context_shares
from etl.synthetic.clicks.world import World

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

_HALF_PERIOD = 32.0
_FREQUENCIES = np.arange(1, 69, 2) * np.pi / _HALF_PERIOD  # (F,); terms of higher frequencies are below 1e-9
_WEIGHTS = 2.0 * np.pi / _HALF_PERIOD / np.sinh(np.pi * _FREQUENCIES)


class ExpectedClicks:
    """The mean click probabilities of all pairs of a user and an item on one day."""

    def __init__(self, world: World, missing_share: float) -> None:
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
        for taste in _of_side("context"):
            values, shares = context_shares()[taste.left]
            of_value = np.tensordot(shares, self._tastes[taste.name][values], axes=1)  # (right, F)
            items = items * of_value[world.items[taste.right]]
        self._context = context * _WEIGHTS  # (F,)
        self._items = items  # (items, F)

    def of_user(self, user: int) -> Floats:
        """Returns the mean click probability of one user with each item of the day, if shown, shape (items,).

        `user` is the position of the user in `world.users`.
        """
        rest = self._context
        for name in (*LEVEL_SLOPES, *LOG_SLOPES):
            if BY_NAME[name].side == "user":
                rest = rest * self._column(name, self._world.users[name][user : user + 1])[0]
        product = self._items * rest  # (items, F)
        for taste in _of_side("user"):
            of_user = self._tastes[taste.name][self._world.users[taste.left][user]]  # (right, F)
            product *= of_user[self._world.items[taste.right]]
        return np.asarray(0.5 + product.imag.sum(axis=1))

    def _column(self, name: str, values: NDArray[np.int64]) -> Complexes:
        """Returns the characteristic function of the term of one column for each value, shape (n, F).

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
