"""The settings of training/models/two_tower.py."""

from __future__ import annotations

from pydantic import Field

from conf.errors import ConfigError
from conf.types import PositiveInt, Strict
from training.settings.field_types import DropShare, Features, HiddenWidths


class Settings(Strict):
    """Two towers: the logit is the dot product of a user vector and an item vector."""

    embedding_dim: PositiveInt = Field(default=16, description="Width of an embedding vector.")
    user_tower: HiddenWidths = Field(
        default=[64],
        description="Widths of the hidden layers over the user features, in order. The layer to "
        "`output_dim` is added.",
    )
    item_tower: HiddenWidths = Field(
        default=[64],
        description="Widths of the hidden layers over the item features, in order. The layer to "
        "`output_dim` is added.",
    )
    output_dim: PositiveInt = Field(default=32, description="Width of a user vector and of an item vector.")
    dropout: DropShare = Field(
        default=0.0, description="Share of the outputs of the hidden layers that training sets to 0."
    )


def check(settings: Settings, features: Features) -> None:
    """Raises ConfigError unless every feature belongs to a tower."""
    require_sides(len(features.pairs))


def require_sides(num_pairs: int) -> None:
    """Raises ConfigError if any features belong to neither tower."""
    if num_pairs:
        raise ConfigError(
            f"architecture two_tower has no place for features of scope pair; there are {num_pairs}",
            "give each feature a scope under `scopes`, or leave it out of `features`",
        )
