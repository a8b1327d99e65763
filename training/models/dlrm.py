"""DLRM (Naumov et al. 2019, arXiv:1906.00091): MLPs around the dot products of all pairs of feature vectors.

Notation: B rows, D dense features, C categorical features, E embedding_dim, F vectors that interact (C, and one more
for the dense features where there are any).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from conf.errors import ConfigError
from conf.feature_spec import FeatureSpec
from conf.types import ModelConfig
from training.embedding import StackedEmbedding


class DLRM(nn.Module):
    """Bottom MLP over the dense features, one stacked embedding table, pairwise dot products, top MLP to one logit.

    Args:
        num_dense: D; without dense features there is no bottom MLP.
        cardinalities: embedding rows of each categorical feature; may be empty.
        embedding_dim: E, also the width of the bottom MLP's last layer.
        bottom_mlp: layer widths, ending in E.
        top_mlp: hidden layer widths; the layer to the logit is implied.
    """

    def __init__(
        self,
        num_dense: int,
        cardinalities: Sequence[int],
        embedding_dim: int,
        bottom_mlp: Sequence[int],
        top_mlp: Sequence[int],
    ) -> None:
        super().__init__()
        num_vectors = len(cardinalities) + bool(num_dense)
        self.num_dense = num_dense
        self.embedding = StackedEmbedding(cardinalities, embedding_dim)
        self.embedding.init_uniform()
        self.bottom = _mlp([num_dense, *bottom_mlp]) if num_dense else nn.Identity()
        num_pairs = num_vectors * (num_vectors - 1) // 2
        # The dense features' vector enters the top MLP itself; so does a categorical one that has nothing to meet.
        self.first_enters = bool(num_dense) or num_pairs == 0
        widths = [num_pairs + (embedding_dim if self.first_enters else 0), *top_mlp]
        self.top = _mlp(widths)
        self.logit = _linear(widths[-1], 1)
        below = torch.tril_indices(num_vectors, num_vectors, offset=-1)
        self.register_buffer(
            "pairs", below[0] * num_vectors + below[1], persistent=False
        )  # (F * (F - 1) // 2,)

    pairs: Tensor

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Logits (B,) of dense (B, D) float32 and categorical (B, C) int64."""
        vectors = self.embedding(categorical)  # (B, C, E)
        if self.num_dense:
            vectors = torch.cat([self.bottom(dense).unsqueeze(1), vectors], dim=1)  # (B, F, E)
        interactions = self._interact(vectors)
        if self.first_enters:
            interactions = torch.cat([vectors[:, 0], interactions], dim=1)
        return self.logit(self.top(interactions)).squeeze(1)

    def _interact(self, vectors: Tensor) -> Tensor:
        """Dot products of all pairs of vectors (B, F, E), each pair once: (B, F * (F - 1) // 2)."""
        dots = torch.bmm(vectors, vectors.transpose(1, 2))  # (B, F, F)
        return dots.flatten(1).index_select(1, self.pairs)


def build(config: ModelConfig, spec: FeatureSpec) -> DLRM:
    """The DLRM of a configuration; ConfigError unless the bottom MLP ends in embedding_dim."""
    if spec.dense and (not config.bottom_mlp or config.bottom_mlp[-1] != config.embedding_dim):
        raise ConfigError(
            f"model.bottom_mlp={config.bottom_mlp} must end in embedding_dim={config.embedding_dim}: "
            "the dense features' vector meets the embeddings in dot products",
            "set the last number of bottom_mlp to embedding_dim",
        )
    return DLRM(len(spec.dense), spec.cardinalities, config.embedding_dim, config.bottom_mlp, config.top_mlp)


def _mlp(widths: Sequence[int]) -> nn.Sequential:
    """Linear layers from width to width, each followed by ReLU."""
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(widths):
        layers += [_linear(width_in, width_out), nn.ReLU()]
    return nn.Sequential(*layers)


def _linear(width_in: int, width_out: int) -> nn.Linear:
    """Initialised as in the authors' implementation: weights N(0, 2 / (in + out)), biases N(0, 1 / out)."""
    layer = nn.Linear(width_in, width_out)
    nn.init.normal_(layer.weight, std=math.sqrt(2 / (width_in + width_out)))
    nn.init.normal_(layer.bias, std=math.sqrt(1 / width_out))
    return layer
