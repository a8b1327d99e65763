"""The settings that architectures over sequences of items have in common, and their check."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, model_validator

from conf.errors import ConfigError
from conf.types import PositiveInt
from training.settings.field_types import DropShare, Features
from training.settings.history import HistorySettings, check_history


class SequenceSettings(HistorySettings):
    """The features that contain items and histories, and the size of the network over a history."""

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
    check_history(settings, features)
    refuse_pairs(architecture, features.pairs)


def refuse_pairs(architecture: str, pairs: Sequence[str]) -> None:
    """Raises ConfigError if there are features of scope `pair`."""
    if pairs:
        raise ConfigError(
            f"architecture {architecture} cannot use the features {list(pairs)}, which may differ "
            "for every pair of user and item: they are not in scopes.user, scopes.item or scopes.context",
            "add each of them to one of these lists if it depends only on the user, the item or the context; "
            "otherwise remove it from `features`",
        )
