"""The check of features for `train.negatives`, without torch."""

from __future__ import annotations

from collections.abc import Sequence

from conf.errors import ConfigError


def require_no_pair_features(names: Sequence[str]) -> None:
    """Raises ConfigError if a feature may depend on user and item.

    A drawn pair of user and item has the user's features from the row, and the drawn item's features. A
    feature that depends on both user and item would have to be computed for each drawn pair.
    """
    if names:
        raise ConfigError(
            f"train.negatives draws items, but these features may differ for every pair of user and item: "
            f"{list(names)}. They are not in scopes.user, scopes.item or scopes.context",
            "add each of them to one of these lists if it depends only on the user, the item or the context; "
            "otherwise remove it from `features`, or remove train.negatives",
        )
