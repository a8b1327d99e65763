"""The settings that architectures over sequences of items have in common, and their check."""

from __future__ import annotations

from pydantic import Field, model_validator

from conf.errors import ConfigError
from conf.types import PositiveInt, Strict
from training.settings.field_types import DropShare, Features


class HistorySettings(Strict):
    """The features that hold items and histories."""

    item: str = Field(
        default="item_id", description="Name of the feature with the id of the item, of kind categorical."
    )
    history: str = Field(
        default="history",
        description="Name of the feature with the ids of the user's last clicks, the most recent one first. "
        "It must have the ids of the feature `item`: give `categorify` the same `share` in both groups, and "
        "`counts: false` in the group of the history.",
    )


class SequenceSettings(HistorySettings):
    """The features that hold items and histories, and the size of the network over a history."""

    embedding_dim: PositiveInt = Field(default=64, description="Width of the vectors of items and users.")
    blocks: PositiveInt = Field(default=2, description="Number of self-attention blocks.")
    heads: PositiveInt = Field(
        default=1, description="Number of attention heads of a block; a divisor of `embedding_dim`."
    )
    dropout: DropShare = Field(
        default=0.2,
        description="Dropout rate: the share of the inputs of the first block, and of the outputs of the two "
        "parts of each block, that is set to 0 in training.",
    )

    @model_validator(mode="after")
    def _heads_of_equal_width(self) -> SequenceSettings:
        if self.embedding_dim % self.heads:
            raise ValueError(f"heads={self.heads} is not a divisor of embedding_dim={self.embedding_dim}")
        return self


def check_features(architecture: str, settings: HistorySettings, features: Features) -> None:
    """Raises ConfigError unless the item and the history are features, and no feature has scope `pair`."""
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
    if features.pairs:
        raise ConfigError(
            f"architecture {architecture} cannot use the features {list(features.pairs)}, which may differ "
            "for every pair of user and item: none of scopes.user, scopes.item and scopes.context has them",
            "add each of them to one of these lists if it depends only on that, or remove it from `features`",
        )
