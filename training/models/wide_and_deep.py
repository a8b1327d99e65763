"""Wide & Deep (Cheng et al. 2016, arXiv:1606.07792): a linear model and an MLP whose logits are added.

    P(click) = σ(w_wideᵀ[x, φ(x)] + w_deepᵀ a^(l_f) + b)        (equation 3)
    a^(l+1) = ReLU(W^(l) a^(l) + b^(l))                         (equation 2; a^(0) holds the embeddings and dense features)

φ(x), the products of features (equation 1), are features like any other: `hashed_cross` makes them in build_features. The
paper gives them to the wide part alone; here both parts see all features.

Notation: B rows, D dense features, C features made of ids, W columns of ids, E embedding_dim.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from conf.types import PositiveInt, Strict
from training.inputs import Inputs
from training.layers import DropShare, HiddenWidths, LinearPart, in_float32, linear, mlp
from training.optimizers.ftrl import FtrlSettings


class Settings(Strict):
    """`deep` names the hidden widths in order; the layer to one logit is implied. `dropout`: share of their outputs dropped.

    `wide_ftrl` trains the wide part by FTRL, as the paper does (section 3.3), at rates of its own; null trains it by the
    optimisers of the deep part, at the rates of the section `train`.
    """

    embedding_dim: PositiveInt = 16
    deep: HiddenWidths = [1024, 1024, 1024, 1024, 1024]
    dropout: DropShare = 0.0
    wide_ftrl: FtrlSettings | None = FtrlSettings()


class WideAndDeep(nn.Module):
    """The linear part, and an MLP over all embeddings laid side by side with the dense features."""

    def __init__(self, settings: Settings, inputs: Inputs) -> None:
        super().__init__()
        self.wide = LinearPart(inputs, settings.wide_ftrl)
        self.embedding = inputs.table(settings.embedding_dim)
        self.embedding.init_uniform()
        width = inputs.num_embedded * settings.embedding_dim + inputs.num_dense
        self.deep = mlp([width, *settings.deep], settings.dropout)
        self.logit = linear(settings.deep[-1], 1)

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Logits (B,) of dense (B, D) float32 and categorical (B, W) int64."""
        vectors = self.embedding(categorical)  # (B, C, E)
        deep = self.deep(
            torch.cat([vectors.flatten(1), dense], dim=1)
        )  # (B, C * E + D) before the first layer
        return self.wide(dense, categorical) + in_float32(self.logit, deep).squeeze(1)


def build(settings: Settings, inputs: Inputs) -> WideAndDeep:
    return WideAndDeep(settings, inputs)
