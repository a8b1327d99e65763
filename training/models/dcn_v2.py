"""DCN-V2 (Wang et al. 2021, arXiv:2008.13535): cross layers that multiply the input into itself, and an MLP.

    x_{l+1} = x_0 ⊙ (W_l x_l + b_l) + x_l                       (equation 1; full rank)
    x_{l+1} = x_0 ⊙ (U_l (V_lᵀ x_l) + b_l) + x_l                (equation 2; low rank, U and V of `cross_rank` columns)

x_0 holds the embeddings and the dense features, or what a bottom MLP makes of these (as MLPerf's DLRM-DCNv2 does).

Notation: B rows, D dense features, C features made of ids, W columns of ids, E embedding_dim, X width of x_0.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from conf.types import PositiveInt, Strict
from training.inputs import Inputs
from training.layers import DropShare, HiddenWidths, in_float32, linear, mlp


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


class CrossLayer(nn.Module):
    """One step of equation 1, or of equation 2 where `rank` is given; width in and out is X."""

    def __init__(self, width: int, rank: int | None) -> None:
        super().__init__()
        self.down = nn.Identity() if rank is None else linear(width, rank, bias=False)  # Vᵀ
        self.up = linear(width if rank is None else rank, width)  # W or U, and b

    def forward(self, first: Tensor, last: Tensor) -> Tensor:
        """x_{l+1} of x_0 and x_l, (B, X) each."""
        return first * self.up(self.down(last)) + last


class DCNv2(nn.Module):
    """Cross network and MLP over the embeddings and the dense features."""

    def __init__(self, settings: Settings, inputs: Inputs) -> None:
        super().__init__()
        self.parallel = settings.structure == "parallel"
        self.embedding = inputs.table(settings.embedding_dim)
        self.embedding.init_uniform()
        bottom = [inputs.num_dense, *settings.bottom_mlp] if inputs.num_dense else [0]
        self.bottom = mlp(bottom)
        width = inputs.num_embedded * settings.embedding_dim + bottom[-1]
        self.cross = nn.ModuleList(
            CrossLayer(width, settings.cross_rank) for _ in range(settings.cross_layers)
        )
        self.deep = mlp([width, *settings.deep], settings.dropout)
        self.logit = linear(settings.deep[-1] + (width if self.parallel else 0), 1)

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Logits (B,) of dense (B, D) float32 and categorical (B, W) int64."""
        first = torch.cat([self.bottom(dense), self.embedding(categorical).flatten(1)], dim=1)  # (B, X)
        crossed = first
        for layer in self.cross:
            crossed = layer(first, crossed)
        if self.parallel:
            return in_float32(self.logit, torch.cat([crossed, self.deep(first)], dim=1)).squeeze(1)
        return in_float32(self.logit, self.deep(crossed)).squeeze(1)


def build(settings: Settings, inputs: Inputs) -> DCNv2:
    return DCNv2(settings, inputs)
