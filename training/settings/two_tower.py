"""The settings of training/models/two_tower.py."""

from __future__ import annotations

from conf.errors import ConfigError
from conf.types import PositiveInt, Strict
from training.settings import DropShare, Features, HiddenWidths


class Settings(Strict):
    """`user_tower`, `item_tower` name the hidden widths in order; the layer to `output_dim` is implied.

    `dropout`: share of the hidden layers' outputs dropped.
    """

    embedding_dim: PositiveInt = 16
    user_tower: HiddenWidths = [64]
    item_tower: HiddenWidths = [64]
    output_dim: PositiveInt = 32
    dropout: DropShare = 0.0


def check(settings: Settings, features: Features) -> None:
    require_sides(len(features.pairs))


def require_sides(num_pairs: int) -> None:
    """Raises ConfigError where features belong to neither tower."""
    if num_pairs:
        raise ConfigError(
            f"architecture two_tower has no place for features of scope pair; there are {num_pairs}",
            "give each feature a scope under `scopes`, or leave it out of `features`",
        )
