"""DLRM (Naumov et al. 2019, arXiv:1906.00091): MLPs around the dot products of all pairs of feature vectors.

Notation: B rows, D dense features, C features made of ids, W columns of ids, E embedding_dim, F vectors that interact
(C, and one more for the dense features where there are any).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from conf.errors import ConfigError
from conf.types import PositiveInt, Strict
from training.embedding import kernels
from training.inputs import Inputs
from training.interaction import PairDots
from training.layers import in_float32, mlp


class Settings(Strict):
    """Layer lists name widths in order. `bottom_mlp` ends in `embedding_dim`; of `top_mlp` the layer to one logit is implied."""

    embedding_dim: PositiveInt = 16
    bottom_mlp: list[PositiveInt] = []
    top_mlp: list[PositiveInt] = []


class DLRM(nn.Module):
    """Bottom MLP over the dense features, one stacked embedding table, pairwise dot products, top MLP to one logit.

    Without dense features there is no bottom MLP.
    """

    def __init__(self, settings: Settings, inputs: Inputs) -> None:
        super().__init__()
        self.num_dense = inputs.num_dense
        self.num_vectors = num_vectors = inputs.num_embedded + bool(self.num_dense)
        self.embedding = inputs.table(settings.embedding_dim)
        self.embedding.init_uniform()
        self.bottom = _mlp([self.num_dense, *settings.bottom_mlp]) if self.num_dense else nn.Identity()
        num_pairs = num_vectors * (num_vectors - 1) // 2
        # The dense features' vector enters the top MLP itself; so does an embedding that has nothing to meet.
        self.first_enters = bool(self.num_dense) or num_pairs == 0
        widths = [num_pairs + (settings.embedding_dim if self.first_enters else 0), *settings.top_mlp]
        self.top = _mlp(widths)
        self.logit = _linear(widths[-1], 1)
        self.pair_dots = PairDots(num_vectors)

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Logits (B,) of dense (B, D) float32 and categorical (B, W) int64."""
        vectors = self.embedding(categorical)  # (B, C, E)
        if self.first_enters == bool(self.num_dense) and kernels.interacts(vectors.device, self.num_vectors):
            bottom = self.bottom(dense) if self.num_dense else None
            interactions = kernels.interact(bottom, vectors)
            return in_float32(self.logit, self.top(interactions)).squeeze(1)
        if self.num_dense:
            vectors = torch.cat([self.bottom(dense).unsqueeze(1), vectors], dim=1)  # (B, F, E)
        interactions = self.pair_dots(vectors)
        if self.first_enters:
            interactions = torch.cat([vectors[:, 0], interactions], dim=1)
        return in_float32(self.logit, self.top(interactions)).squeeze(1)


def build(settings: Settings, inputs: Inputs) -> DLRM:
    """The DLRM of a configuration; ConfigError unless the bottom MLP ends in embedding_dim."""
    bottom, dim = settings.bottom_mlp, settings.embedding_dim
    if inputs.num_dense and (not bottom or bottom[-1] != dim):
        raise ConfigError(
            f"model.bottom_mlp={bottom} must end in embedding_dim={dim}: "
            "the dense features' vector meets the embeddings in dot products",
            "set the last number of bottom_mlp to embedding_dim",
        )
    return DLRM(settings, inputs)


def _mlp(widths: list[int]) -> nn.Sequential:
    return mlp(widths, layer=_linear)


def _linear(width_in: int, width_out: int) -> nn.Linear:
    """Initialised as in the authors' implementation: weights N(0, 2 / (in + out)), biases N(0, 1 / out)."""
    layer = nn.Linear(width_in, width_out)
    nn.init.normal_(layer.weight, std=math.sqrt(2 / (width_in + width_out)))
    nn.init.normal_(layer.bias, std=math.sqrt(1 / width_out))
    return layer
