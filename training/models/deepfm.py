"""DeepFM (Guo et al. 2017, arXiv:1703.04247): a factorisation machine and an MLP over the same embeddings.

    P(click) = σ(y_FM + y_DNN)                                  (equation 1)
    y_FM = ⟨w, x⟩ + Σ_{i<j} ⟨V_i, V_j⟩ x_i x_j                  (equation 2)
    a^(0) = [e_1, …, e_m];  a^(l+1) = ReLU(W^(l) a^(l) + b^(l)) (equations 3 and 4)

Each feature has one vector, which both parts share: that of its id, the pooled ones of a list's ids, and for a dense
feature its value times a vector of its own. Σ_{i<j} ⟨e_i, e_j⟩ = ½ Σ_k ((Σ_i e_ik)² − Σ_i e_ik²) (Rendle 2010,
"Factorization Machines", lemma 3.1) costs no more than the vectors themselves.

Notation: B rows, D dense features, C features made of ids, W columns of ids, E embedding_dim.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from conf.types import PositiveInt, Strict
from training.inputs import Inputs
from training.layers import DropShare, HiddenWidths, LinearPart, in_float32, linear, mlp

# Standard deviation of the second-order term before training. Tables initialised as DLRM's would start it at several.
_FIRST_DEVIATION = 0.1


class Settings(Strict):
    """`deep` names the hidden widths in order; the layer to one logit is implied. `dropout`: share of their outputs dropped."""

    embedding_dim: PositiveInt = 10
    deep: HiddenWidths = [400, 400, 400]
    dropout: DropShare = 0.0


class DeepFM(nn.Module):
    """First order, second order, and the MLP. The biases of first order and MLP add up to the paper's one."""

    def __init__(self, settings: Settings, inputs: Inputs) -> None:
        super().__init__()
        dim = settings.embedding_dim
        self.first_order = LinearPart(inputs)
        num_vectors = inputs.num_dense + inputs.num_embedded
        num_pairs = max(num_vectors * (num_vectors - 1) // 2, 1)
        # A sum over pairs of vectors of deviation s deviates by s² √(pairs * E): it starts below the data's own noise.
        deviation = math.sqrt(_FIRST_DEVIATION / math.sqrt(num_pairs * dim))
        self.embedding = inputs.table(dim)
        self.embedding.init_normal(deviation)
        self.dense_vectors = nn.Parameter(torch.empty(inputs.num_dense, dim).normal_(std=deviation))
        self.deep = mlp([num_vectors * dim, *settings.deep], settings.dropout)
        self.logit = linear(settings.deep[-1], 1)

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Logits (B,) of dense (B, D) float32 and categorical (B, W) int64."""
        of_dense = dense.unsqueeze(2) * self.dense_vectors  # (B, D, E)
        vectors = torch.cat([of_dense, self.embedding(categorical)], dim=1)  # (B, D + C, E)
        pairs = (vectors.sum(dim=1).square() - vectors.square().sum(dim=1)).sum(dim=1) / 2  # (B,)
        deep = in_float32(self.logit, self.deep(vectors.flatten(1))).squeeze(1)
        return self.first_order(dense, categorical) + pairs + deep


def build(settings: Settings, inputs: Inputs) -> DeepFM:
    return DeepFM(settings, inputs)
