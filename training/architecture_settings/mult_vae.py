"""The settings of training/architectures/mult_vae.py."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from conf.errors import ConfigError
from conf.types import PositiveInt, Share
from training.settings.shared_settings import (
    DropShare,
    Features,
    HiddenWidths,
    HistorySettings,
    check_features,
)

# The model is a VectorModel (training/models/factorization.py), so losses over item vectors can train it.
VECTORS = True


class Settings(HistorySettings):
    """Mult-VAE: a variational autoencoder of the bag of the user's items (Liang et al., WWW 2018)."""

    hidden: HiddenWidths = Field(
        default=[600],
        description="Widths of the hidden layers of the encoder, in order. The decoder has the same layers "
        "in reverse order. The first width is also the width of the vectors of items and users.",
    )
    latent_dim: PositiveInt = Field(default=200, description="Number of latent variables.")
    dropout: DropShare = Field(
        default=0.5,
        description="Dropout rate: the share of the items of a history that is left out in training.",
    )
    beta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.2,
        description="Final weight of the divergence of the latent variables from the standard normal "
        "distribution.",
    )
    anneal_share: Share = Field(
        default=0.8, description="Share of all steps over which the weight of the divergence rises from 0."
    )
    history_weight: Share = Field(
        default=1.0,
        description="Weight of an item of the history in the likelihood. The row's item has the weight 1. "
        "With 1, the model reconstructs all items of the user so far, as in the paper; this needs "
        "`train.loss: full_softmax`. With 0, the model predicts only the item of the row.",
    )


def check(settings: Settings, features: Features) -> None:
    """Raises ConfigError if the item or the history is not a feature, or a feature has scope `pair`."""
    check_features("mult_vae", settings, features)


def check_loss(settings: Settings, loss: str) -> None:
    """Raises ConfigError if `history_weight` is not 0, but the loss uses only the item of the row."""
    if settings.history_weight and loss != "full_softmax":
        raise ConfigError(
            f"model.history_weight={settings.history_weight:g} lets a row reconstruct the items of its "
            f"history, but train.loss={loss} compares only the item of the row",
            "set train.loss=full_softmax and train.negatives=null, or set model.history_weight=0",
        )
