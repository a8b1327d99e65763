"""Computes the probability that an impression of a user shows an item.

`impressions.py` draws CHOICES items for an impression, each with the probability b of its segment, and shows
one of them. It shows a drawn item with a probability that is proportional to the item's weight
w = exp(CHOICE_FOCUS · tastes). So an item i is shown with the probability

    CHOICES · b[i] · w[i] · E[1 / (w[i] + W)],  where W is the sum of the weights of CHOICES - 1 drawn items.

The mean of 1 / (w + W) is the integral of exp(-t·w) · L(t)^(CHOICES - 1) over all t > 0, because
1 / x = ∫ exp(-t·x) dt. Here L(t) = Σ b[j] · exp(-t·w[j]) is the mean of exp(-t·weight) of one drawn item.
The integral is computed by the trapezoidal rule after the substitution t = exp(s - exp(-s)) of Takahasi and
Mori (1974).

The exponentials in the integral, which are most of the work, are computed as float32. This and the step of
the rule change a probability by less than 5e-6 of it, with up to 5000 items.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from etl.synthetic.clicks.click import INTERACTIONS
from etl.synthetic.clicks.impressions import CHOICE_FOCUS, CHOICES
from etl.synthetic.clicks.world import World

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_STEP = 0.25
_S = np.arange(-3.2, 8.0, _STEP)
_T = np.exp(_S - np.exp(-_S))  # (T,)
_DT = _STEP * _T * (1.0 + np.exp(-_S))  # (T,)
_MINUS_T = -_T.astype(np.float32)[:, None]  # (T, 1)


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
        # The tastes by which one of the drawn items is chosen: the user's column, and the appeal of the items
        # to each of its levels, shape (levels, items).
        self._appeals: list[tuple[str, Floats]] = [
            (taste.left, CHOICE_FOCUS * world.tastes[taste.name][:, world.items[taste.right]])
            for taste in INTERACTIONS[1:]
            if taste.left in world.users
        ]

    def shares_of_users(self, users: Ints) -> Floats:
        """Returns the probability that an impression of the day is one of each user, shape (users,)."""
        return self._user_shares[users]

    def of_user(self, user: int) -> Floats:
        """Returns the probability of each item to be shown in an impression of one user, shape (items,).

        The probabilities add up to 1. `user` is the position of the user in `world.users`.
        """
        return np.asarray(self.of_users(np.array([user]))[0])

    def of_users(self, users: Ints) -> Floats:
        """Returns the probabilities of several users, float64 of the shape (users, items).

        `users` are positions in `world.users`. A row does not depend on the other users.
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
            weights /= (drawn * weights).sum()  # so that the integral has the same scale for all users
            np.multiply(_MINUS_T, weights.astype(np.float32), out=decay)
            np.exp(decay, out=decay)
            # The operator @ would compute these products in threads, which cost more than they save.
            one = np.einsum("ti,i->t", decay, drawn.astype(np.float32)).astype(np.float64)
            others = one ** (CHOICES - 1)  # (T,)
            integrals = np.einsum("t,ti->i", (_DT * others).astype(np.float32), decay)
            shown[row] = CHOICES * drawn * weights * integrals
        return shown
