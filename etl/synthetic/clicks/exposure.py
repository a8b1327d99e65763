"""Computes the probability that an impression of a user shows an item.

`impressions.py` draws CHOICES items for an impression, each with the probability b of its segment, and shows
one of them. It shows a drawn item with a probability that is proportional to the item's weight
w = exp(CHOICE_FOCUS · tastes). So an item i is shown with the probability

    CHOICES · b[i] · w[i] · E[1 / (w[i] + W)],  where W is the sum of the weights of CHOICES - 1 drawn items.

The mean of 1 / (w + W) is the integral of exp(-t·w) · L(t)^(CHOICES - 1) over all t > 0, because
1 / x = ∫ exp(-t·x) dt. Here L(t) = Σ b[j] · exp(-t·w[j]) is the mean of exp(-t·weight) of one drawn item.
The integral is computed by the trapezoidal rule after the substitution t = exp(s - exp(-s)) of Takahasi and
Mori (1974).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from etl.synthetic.clicks.click import INTERACTIONS
from etl.synthetic.clicks.impressions import CHOICE_FOCUS, CHOICES
from etl.synthetic.clicks.world import World

Floats = NDArray[np.float64]

_STEP = 0.3  # the relative error of the integral is below 3e-6
_S = np.arange(-2.6, 6.5, _STEP)
_T = np.exp(_S - np.exp(-_S))  # (T,)
_DT = _STEP * _T * (1.0 + np.exp(-_S))  # (T,)


class Exposure:
    """The probabilities with which users are shown items on one day."""

    def __init__(self, world: World) -> None:
        """Computes the probabilities with which items are drawn for the users of each segment."""
        self._world = world
        chances = np.diff(world.category_edges, prepend=0.0)  # (segments, categories)
        popularity = np.empty(len(world.items_by_category))
        popularity[world.items_by_category] = np.diff(world.item_edges, prepend=0.0)
        category = world.items["item_category"]
        within = popularity / np.diff(world.category_bounds)[category]  # (items,)
        self._drawn: Floats = chances[:, category] * within  # (segments, items)
        self._user_shares: Floats = np.diff(world.user_edges, prepend=0.0)
        self._tastes = [
            taste
            for taste in INTERACTIONS[1:]
            if taste.left in world.users  # the tastes by which one of the drawn items is chosen
        ]

    def share_of_user(self, user: int) -> float:
        """Returns the probability that an impression of the day is one of this user."""
        return float(self._user_shares[user])

    def of_user(self, user: int) -> Floats:
        """Returns the probability of each item to be shown in an impression of one user, shape (items,).

        The probabilities add up to 1. `user` is the position of the user in `world.users`.
        """
        users, items = self._world.users, self._world.items
        drawn = self._drawn[users["user_segment"][user]]
        appeal = np.zeros(len(drawn))
        for taste in self._tastes:
            appeal += (
                CHOICE_FOCUS * self._world.tastes[taste.name][users[taste.left][user], items[taste.right]]
            )
        weights = np.exp(appeal - appeal.max())
        weights /= drawn @ weights  # so that the integral has the same scale for all users
        decay = np.exp(-weights[:, None] * _T)  # (items, T)
        others = (drawn @ decay) ** (CHOICES - 1)  # (T,)
        return np.asarray(CHOICES * drawn * weights * (decay @ (_DT * others)))
