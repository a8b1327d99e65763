"""The settings of training/models/dcn_v2.py."""

from __future__ import annotations

from typing import Literal

from conf.types import PositiveInt, Strict
from training.settings import DropShare, HiddenWidths


class Settings(Strict):
    """Layer lists name widths in order; the layer to one logit is implied.

    `cross_rank`: null crosses at full rank. `structure`: the MLP `deep` works on the last cross layer's output (`stacked`), or
    on x_0 beside the cross layers, and both enter the logit (`parallel`; figure 1 of the paper has both).
    `bottom_mlp`: empty lets the dense features into x_0 as they are.
    """

    embedding_dim: PositiveInt = 16
    bottom_mlp: list[PositiveInt] = []
    cross_layers: PositiveInt = 3
    cross_rank: PositiveInt | None = None
    structure: Literal["stacked", "parallel"] = "stacked"
    deep: HiddenWidths = [64, 32]
    dropout: DropShare = 0.0
