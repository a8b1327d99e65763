"""Computes the true probabilities of users and items on one day. The best possible lists follow from them.

Let a be the probability that an impression of a day is an impression of a certain user. Let e be the
probability that an impression of this user shows a certain item, and p the probability that the user clicks
the shown item (`clicks/expected_clicks.py` computes both). The impressions of a day are independent. If a
list contains the items L, the probability that no click of the user hits the list is (1 - a · Σ e·p)^rows,
where the sum is over L. So lists of the items with the largest e·p have the highest expected hit rate.

The hour of an impression depends on its place in the log. The formula above replaces the probability of each
row by the average over the day. For each row, this changes the probability of a hit by less than its square,
because one row hits a list only rarely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
from numpy.typing import NDArray

from conf.types import Generate, Keys
from etl.synthetic.clicks.columns import BY_NAME
from etl.synthetic.clicks.expected_clicks import ExpectedClicks, Exposure
from etl.synthetic.clicks.layout import ImpressionLayout
from etl.synthetic.clicks.world import world_of_day
from etl.synthetic.kinds import kind_of
from storage.manifest import is_published, read_manifest
from storage.paths import LakePaths, Partition

Floats = NDArray[np.float64]


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

    Returns None if the true probabilities are unknown. This is the case if there are no days, or if the days
    have the layout `outbrain`. It is also the case if generate_clicks did not write all days into the lake
    with equal settings, or if `keys` are not the user and the item of the generator.
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

    Settings on which the rows of a day do not depend have their default values. Returns None if the day was
    not generated, or if a release that did not record the settings generated it.
    """
    if not is_published(partition):
        return None
    settings = read_manifest(partition).facts.get("settings")
    return None if settings is None else Generate.model_validate(settings)


@dataclass(frozen=True)
class TrueProbabilities:
    """The true probabilities of one user with each item of a day.

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
    """The attributes of TrueProbabilities for several users.

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
        """Draws the world of the ISO date `day`.

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
