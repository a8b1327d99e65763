"""Settings that several architectures share, and the features against which settings are checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, model_validator

from conf.errors import ConfigError
from conf.types import PositiveInt, Strict

HiddenWidths = Annotated[list[PositiveInt], Field(min_length=1)]
DropShare = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Features:
    """The names of a model's features.

    Attributes:
        dense, ids, lists: the features whose values are numbers, single ids, and lists of ids.
        pairs: the features of scope `pair`, of any kind. They may differ for every pair of user and item.
        items: the features whose values are single ids of the row's item.
    """

    dense: Sequence[str] = ()
    ids: Sequence[str] = ()
    lists: Sequence[str] = ()
    pairs: Sequence[str] = ()
    items: Sequence[str] = ()


# The code below defines and checks the settings that models over a user's item history share.


class HistorySettings(Strict):
    """The features that contain the item of a row and the user's history."""

    item: str | None = Field(
        default=None,
        description="Name of the feature with the id of the item, of kind categorical. Null means the "
        "feature that is computed only from the column `keys.item`. A training on a DataFrame has no "
        "`keys`. In that case, null means the feature that has the vocabulary of the history. The job fails "
        "if there are several such features.",
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
        ConfigError: `model.item` is null, and no feature or more than one feature has the ids of items.
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
    """Raises ConfigError if the item or the history is not a feature."""
    if settings.history not in features.lists:
        raise ConfigError(
            f"model.history={settings.history!r} is not a feature of kind multi_hot; the features of this "
            f"kind are {list(features.lists)}",
            "set model.history to one of them, or add the feature to `features` (the section `history` gives "
            "rows their histories)",
        )
    item = item_of(settings, features)
    if item not in features.ids:
        raise ConfigError(
            f"model.item={item!r} is not a feature of kind categorical; the features of this kind are "
            f"{list(features.ids)}",
            "set model.item to one of them, or add the feature to `features`",
        )


# The class below has the further settings that models with self-attention over a history share.


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
    """Raises ConfigError if the item or the history is not a feature, or a feature has scope `pair`."""
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


# The class below has the settings of FTRL-Proximal (training/optimizers/updates.py has the algorithm).

_Positive = Annotated[float, Field(gt=0)]
_NotNegative = Annotated[float, Field(ge=0)]


class FtrlSettings(Strict):
    """FTRL-Proximal (McMahan et al. 2013, algorithm 1).

    The paper recommends `beta` 1 for gradients of single examples. Here the gradient is computed from a
    batch's mean loss, in which each example's gradient is divided by the batch size. So divide the paper's
    `beta` by the batch size too.
    """

    learning_rate: _Positive = Field(default=0.1, description="Learning rate, α in the paper.")
    beta: _Positive = Field(default=1.0, description="Smoothing of the learning rate, β in the paper.")
    l1: _NotNegative = Field(default=0.0, description="Strength of L1 regularization, λ₁ in the paper.")
    l2: _NotNegative = Field(default=0.0, description="Strength of L2 regularization, λ₂ in the paper.")
