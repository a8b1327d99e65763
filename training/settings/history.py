"""The settings that sequence models (of a user's item history) share, and the checks of these settings."""

from __future__ import annotations

from pydantic import Field

from conf.errors import ConfigError
from conf.types import Strict
from training.settings.field_types import Features


class HistorySettings(Strict):
    """The features that contain the item of a row and the user's history."""

    item: str | None = Field(
        default=None,
        description="Name of the feature with the id of the item, of kind categorical. Null means the "
        "feature that is computed only from the column `keys.item`. A training on a frame has no keys; "
        "there, null means the feature with the vocabulary of the history. The job fails if there are "
        "several.",
    )
    history: str = Field(
        default="history",
        description="Name of the feature with the ids of the user's last clicks, the most recent one first. "
        "It must have the ids of the feature `item`: give `categorify` the same `share` in both groups, and "
        "`counts: false` in the group of the history.",
    )


def item_of(settings: HistorySettings, features: Features) -> str:
    """Returns the name of the item's feature: `model.item`, or the only feature in `features.items`.

    Raises:
        ConfigError: `model.item` is null, and not exactly one feature has the ids of items.
    """
    if settings.item is not None:
        return settings.item
    if len(features.items) == 1:
        return features.items[0]
    problem = "no feature of kind categorical has the ids of the items"
    if features.items:
        problem = f"several features have the ids of the items: {list(features.items)}"
    raise ConfigError(
        f"model.item is null, but {problem}",
        "set model.item to the feature with the id of the item, one of "
        f"{list(features.items or features.ids)}"
        + ("" if features.items else ", or add the column `keys.item` to `features`"),
    )


def check_history(settings: HistorySettings, features: Features) -> None:
    """Raises ConfigError unless the item and the history are features."""
    if settings.history not in features.lists:
        raise ConfigError(
            f"model.history={settings.history!r} is not a feature of kind multi_hot; these features are "
            f"{list(features.lists)}",
            "set model.history to one of them, or add the feature to `features` (the section `history` gives "
            "rows their histories)",
        )
    item = item_of(settings, features)
    if item not in features.ids:
        raise ConfigError(
            f"model.item={item!r} is not a feature of kind categorical; these features are "
            f"{list(features.ids)}",
            "set model.item to one of them, or add the feature to `features`",
        )
