"""The settings of training/models/dcn_v2.py."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from conf.types import PositiveInt, Strict
from training.settings.field_types import DropShare, HiddenWidths


class Settings(Strict):
    """DCN-V2: cross layers and an MLP over the concatenated features x_0 (Wang et al., arXiv:2008.13535)."""

    embedding_dim: PositiveInt = Field(default=16, description="Width of an embedding vector.")
    bottom_mlp: list[PositiveInt] = Field(
        default=[],
        description="Widths of the layers over the dense features, in order. Empty: x_0 holds the dense "
        "features unchanged.",
    )
    cross_layers: PositiveInt = Field(default=3, description="Number of cross layers.")
    cross_rank: PositiveInt | None = Field(
        default=None, description="Rank of the weights of a cross layer. Null: full rank."
    )
    structure: Literal["stacked", "parallel"] = Field(
        default="stacked",
        description="`stacked`: the MLP `deep` reads the output of the last cross layer. `parallel`: it "
        "reads x_0, and the outputs of both parts enter the logit. Figure 1 of the paper shows "
        "both.",
    )
    deep: HiddenWidths = Field(
        default=[64, 32],
        description="Widths of the hidden layers of the MLP, in order. The layer to one logit is added.",
    )
    dropout: DropShare = Field(
        default=0.0, description="Share of the outputs of the hidden layers that training sets to 0."
    )
