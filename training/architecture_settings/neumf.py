"""The settings of training/architectures/neumf.py."""

from __future__ import annotations

from pydantic import Field

from conf.types import PositiveInt, Strict
from training.settings.shared_settings import DropShare, HiddenWidths


class Settings(Strict):
    """NeuMF: an elementwise product of user and item vectors, plus an MLP (He et al., WWW 2017)."""

    gmf_dim: PositiveInt = Field(
        default=8,
        description="Number of values of an embedding vector that the product of user and item (GMF) uses.",
    )
    mlp_dim: PositiveInt = Field(
        default=16, description="Number of values of an embedding vector that the MLP uses."
    )
    deep: HiddenWidths = Field(
        default=[32, 16, 8],
        description="Widths of the hidden layers of the MLP, in order. The last layer, whose only output is "
        "the MLP's part of the logit, is not listed.",
    )
    dropout: DropShare = Field(
        default=0.0,
        description="Dropout rate: the share of the outputs of hidden layers that is set to 0 in training.",
    )
