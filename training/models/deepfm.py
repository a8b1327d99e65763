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

from training.models.factorization import Part, Sides, SplitMLP, products
from training.models.inputs import Inputs
from training.models.layers import LinearPart, in_float32, linear, mlp
from training.settings.deepfm import Settings

# Standard deviation of the second-order term before training. Tables initialised as DLRM's would start it at several.
_FIRST_DEVIATION = 0.1


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

    def split(self, sides: Sides, dtype: torch.dtype) -> SplitDeepFM:
        """First and second order are float32 whatever `dtype` is."""
        return SplitDeepFM(self, sides, dtype)


class SplitDeepFM:
    """DeepFM cut by side: Σ_{i<j} ⟨e_i, e_j⟩ over both sides is that of the users' vectors, of the items', and ⟨Σ users', Σ items'⟩.

    Parts: (R,) first order, and second order within the side; (R, E) the sum of the side's vectors; (R, H) its share of
    the MLP's first layer. No matrix is multiplied for a pair before the second layer.
    """

    def __init__(self, model: DeepFM, sides: Sides, dtype: torch.dtype) -> None:
        self._model = model
        self._linear = model.first_order.split(sides, dtype)
        dim = model.dense_vectors.shape[1]
        held = (*sides.dense, *sides.features)  # of all vectors, in the order of the MLP's input
        self._vectors = {side: Sides.places(held, side) for side in (True, False)}
        user, item = (
            [vector * dim + number for vector in self._vectors[side] for number in range(dim)]
            for side in (True, False)
        )
        self._deep = SplitMLP(model.deep, model.logit, user, item, (), dtype)

    def user_part(self, dense: Tensor, categorical: Tensor) -> Part:
        vectors, second = self._side(dense, categorical, side=True)
        (first,) = self._linear.user_part(dense, categorical)
        return first + second, vectors.sum(dim=1), self._deep.user_share(vectors.flatten(1))

    def item_part(self, dense: Tensor, categorical: Tensor) -> Part:
        vectors, second = self._side(dense, categorical, side=False)
        (first,) = self._linear.item_part(dense, categorical)
        return first + second, vectors.sum(dim=1), self._deep.item_share(vectors.flatten(1))

    def _side(self, dense: Tensor, categorical: Tensor, *, side: bool) -> tuple[Tensor, Tensor]:
        """The side's vectors (R, V, E), and the products of all pairs of them, added up (R,)."""
        of_dense = dense.unsqueeze(2) * self._model.dense_vectors
        vectors = torch.cat([of_dense, self._model.embedding(categorical)], dim=1)[:, self._vectors[side]]
        pairs = (vectors.sum(dim=1).square() - vectors.square().sum(dim=1)).sum(dim=1) / 2
        return vectors, pairs

    def pair_part(self, users: Part, items: Part) -> Tensor:
        own = users[0].unsqueeze(1) + items[0]
        both = products(users[1].unsqueeze(1), items[1].unsqueeze(2)).squeeze(2)
        return own + both + self._deep.outputs(users[2], items[2], None)


def build(settings: Settings, inputs: Inputs) -> DeepFM:
    return DeepFM(settings, inputs)
