"""The settings of training/architectures/two_tower.py."""

from __future__ import annotations

from pydantic import Field

from conf.errors import ConfigError
from conf.types import PositiveInt, Strict
from training.settings.shared_settings import DropShare, Features, HiddenWidths

# The model is a VectorModel (training/models/factorization.py), so losses over item vectors can train it.
VECTORS = True


class Settings(Strict):
    """Two towers: the logit is the dot product of a user vector and an item vector."""

    embedding_dim: PositiveInt = Field(default=16, description="Width of an embedding vector.")
    user_tower: HiddenWidths = Field(
        default=[64],
        description="Widths of the hidden layers over the features of user and context, in order. The last "
        "layer, of width `output_dim`, is not listed.",
    )
    item_tower: HiddenWidths = Field(
        default=[64],
        description="Widths of the hidden layers over the item features, in order. The last layer, of width "
        "`output_dim`, is not listed.",
    )
    output_dim: PositiveInt = Field(default=32, description="Width of a user vector and of an item vector.")
    dropout: DropShare = Field(
        default=0.0,
        description="Dropout rate: the share of the outputs of hidden layers that is set to 0 in training.",
    )


def check(settings: Settings, features: Features) -> None:
    """Raises ConfigError if a feature belongs neither to the user's tower nor to the item's."""
    require_sides(len(features.pairs))


def require_sides(num_pairs: int) -> None:
    """Raises ConfigError if there are features of user and item together, which fit neither tower."""
    if num_pairs:
        raise ConfigError(
            "architecture two_tower cannot use features that may differ for every pair of user and item; "
            f"the model has {num_pairs} such feature(s), which are not in scopes.user, scopes.item or "
            "scopes.context",
            "add each of these features to scopes.user, scopes.item or scopes.context if it depends only on "
            "the user, the item or the context; otherwise remove it from `features`",
        )
