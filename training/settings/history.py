"""The settings that architectures over histories of items have in common, and their check."""

from __future__ import annotations

from pydantic import Field

from conf.errors import ConfigError
from conf.types import Strict
from training.settings.field_types import Features


class HistorySettings(Strict):
    """The features that hold the item of a row and the user's history."""

    item: str = Field(
        default="item_id", description="Name of the feature with the id of the item, of kind categorical."
    )
    history: str = Field(
        default="history",
        description="Name of the feature with the ids of the user's last clicks, the most recent one first. "
        "It must have the ids of the feature `item`: give `categorify` the same `share` in both groups, and "
        "`counts: false` in the group of the history.",
    )


def check_history(settings: HistorySettings, features: Features) -> None:
    """Raises ConfigError unless the item and the history are features."""
    for key, name, kind, names in (
        ("item", settings.item, "categorical", features.ids),
        ("history", settings.history, "multi_hot", features.lists),
    ):
        if name not in names:
            raise ConfigError(
                f"model.{key}={name!r} is not a feature of kind {kind}; these features are {list(names)}",
                f"set model.{key} to one of them, or add the feature to `features`"
                + (" (the section `history` gives rows their histories)" if key == "history" else ""),
            )
