"""DeepFM (Guo et al. 2017, arXiv:1703.04247): a factorization machine and an MLP over the same embeddings.

    P(click) = σ(y_FM + y_DNN)                                  (equation 1)
    y_FM = ⟨w, x⟩ + Σ_{i<j} r_ij ⟨V_i, V_j⟩ x_i x_j             (equation 2, where all r_ij are 1)
    a^(0) = [e_1, …, e_m];  a^(l+1) = ReLU(W^(l) a^(l) + b^(l)) (equations 3 and 4)

Each feature i has one vector e_i = V_i x_i, which the factorization machine and the MLP share. For a feature
that is an id, e_i is the vector of the id. For a list of ids, e_i is the sum or the mean of the ids' vectors.
For a dense feature, e_i is the feature's value times the feature's vector. Σ_{i<j} ⟨e_i, e_j⟩ = ½ Σ_k ((Σ_i
e_ik)² − Σ_i e_ik²) (Rendle 2010, "Factorization Machines", lemma 3.1), so the time for the second-order term
is linear in the number of vectors.

With `field_weights`, the r_ij are trained (`FieldWeights`). The time for the second-order
term is then quadratic in the number of vectors.

Notation: B rows, D dense features, C features that are ids, W columns of ids, E embedding_dim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.architecture_settings.deepfm import Settings
from training.models.click_model import ClickModel
from training.models.factorization import (
    FactorizedMLP,
    FeatureSides,
    Part,
    Side,
    positions_by_side,
    vector_products,
)
from training.models.inputs import Inputs
from training.models.layers import LinearPart, in_float32, linear, mlp

# The weights of a field-weighted factorization machine (FwFM; Pan et al. 2018, arXiv:1806.03514).
#
#     y = Σ_{i<j} r_ij ⟨e_i, e_j⟩
#
# Here e_i is the vector of feature i. The paper calls a feature a field. Each pair of features has one
# weight r_ij. If all weights are 1, this is the second-order term of a factorization machine.
#
# Notation: V vectors, R rows, E numbers per vector.


class FieldWeights(nn.Module):
    """The weights r_ij of all pairs i < j of V vectors, ordered by i, then by j. All weights are 1 at first.

    Args:
        num_vectors: V.
    """

    places: Tensor

    def __init__(self, num_vectors: int) -> None:
        super().__init__()
        rows, columns = torch.triu_indices(num_vectors, num_vectors, 1)
        self.weights = nn.Parameter(torch.ones(len(rows)))
        places = torch.full((num_vectors, num_vectors), len(rows))
        places[rows, columns] = torch.arange(len(rows))
        self.register_buffer("places", places, persistent=False)

    def matrix(self) -> Tensor:
        """Returns a matrix (V, V) with r_ij in row i and column j if i < j, and with 0 elsewhere."""
        padded = torch.cat([self.weights, self.weights.new_zeros(1)])
        return padded.index_select(0, self.places.flatten()).view_as(self.places)

    def forward(self, vectors: Tensor) -> Tensor:
        """Returns the weighted sum (R,) of the dot products of all pairs of `vectors` (R, V, E) float32.

        The sum is computed in float32 even under mixed precision.
        """
        with torch.autocast(vectors.device.type, enabled=False):
            return weighted_pair_sum(vectors, self.matrix())


def weighted_pair_sum(vectors: Tensor, matrix: Tensor) -> Tensor:
    """Returns Σ_ij m_ij ⟨v_i, v_j⟩ (R,) of `vectors` (R, V, E); `matrix` is (V, V)."""
    return (vectors * mix_vectors(vectors, matrix)).sum(dim=(1, 2))


def mix_vectors(vectors: Tensor, matrix: Tensor) -> Tensor:
    """Returns N weighted sums (R, N, E) of `vectors` (R, V, E). `matrix` (N, V) has the weights m_nv."""
    return functional.linear(vectors.transpose(1, 2), matrix).transpose(1, 2)


def weights_between(matrix: Tensor, left: Sequence[int], right: Sequence[int]) -> Tensor:
    """Returns the weights (L, N) of all pairs that consist of one vector of `left` and one of `right`.

    Args:
        matrix: the result of `FieldWeights.matrix`.
        left, right: the positions of L and N vectors; no position is in both.
    """
    symmetric = matrix + matrix.t()
    rows, columns = (torch.tensor(side, dtype=torch.int64, device=matrix.device) for side in (left, right))
    return symmetric.index_select(0, rows).index_select(1, columns)


# Standard deviation of the second-order term before training. If tables were initialised as in DLRM, this
# standard deviation would be larger than 1.
_FIRST_DEVIATION = 0.1


class DeepFM(ClickModel):
    """A model whose logit is the sum of a first-order term, a second-order term and the output of an MLP.

    The paper has a single bias. Here the bias is the sum of two numbers: the bias of the first-order term and
    the bias of the MLP's last layer.
    """

    def __init__(self, settings: Settings, inputs: Inputs) -> None:
        super().__init__()
        dim = settings.embedding_dim
        self.first_order = LinearPart(inputs)
        num_vectors = inputs.num_dense + inputs.num_embedded
        num_pairs = max(num_vectors * (num_vectors - 1) // 2, 1)
        # If vectors have the standard deviation s, the sum over their pairs has the standard deviation s²
        # √(pairs * E).
        deviation = math.sqrt(_FIRST_DEVIATION / math.sqrt(num_pairs * dim))
        self.embedding = inputs.table(dim)
        self.embedding.init_normal(deviation)
        self.dense_vectors = nn.Parameter(torch.empty(inputs.num_dense, dim).normal_(std=deviation))
        self.field_weights = FieldWeights(num_vectors) if settings.field_weights else None
        self.deep = mlp([num_vectors * dim, *settings.deep], settings.dropout)
        self.logit = linear(settings.deep[-1], 1)

    def embed(self, categorical: Tensor) -> list[Tensor]:
        """Returns first-order weights (B, C, 1) and vectors (B, C, E) of `categorical` (B, W) int64."""
        return [*self.first_order.embed(categorical), self.embedding(categorical)]

    def forward_dense(self, dense: Tensor, vectors: Sequence[Tensor]) -> Tensor:
        """Returns the logits, shape (B,), from `dense` (B, D) float32 and the result of `embed`."""
        *first_order_weights, embedded = vectors
        scaled = dense.unsqueeze(2) * self.dense_vectors  # (B, D, E)
        all_vectors = torch.cat([scaled, embedded], dim=1)  # (B, D + C, E)
        # Autograd sums gradients in the reverse order of these lines, so another order of lines would change
        # the last bits of the sums.
        second_order = (self.field_weights or pair_sum)(all_vectors)
        deep = in_float32(self.logit, self.deep(all_vectors.flatten(1))).squeeze(1)
        return self.first_order.forward_dense(dense, first_order_weights) + second_order + deep

    def factorize(self, sides: FeatureSides, dtype: torch.dtype) -> FactorizedDeepFM:
        """Returns this model divided into computations per user, per item and per pair.

        First-order and second-order terms are always computed in float32.
        """
        return FactorizedDeepFM(self, sides, dtype)


def pair_sum(vectors: Tensor) -> Tensor:
    """Returns the sum of the dot products of all pairs of vectors (B, V, E), shape (B,)."""
    return (vectors.sum(dim=1).square() - vectors.square().sum(dim=1)).sum(dim=1) / 2


class FactorizedDeepFM:
    """The factorization of DeepFM.

    A side means either the users or the items. Σ_{i<j} r_ij ⟨e_i, e_j⟩ has three terms: the sums over the
    pairs within the user's side, within the item's side, and between both sides. The sum over the pairs
    between both sides is one dot product. If all r_ij are 1, its factors are the sums of each side's vectors.
    With trained weights, let M be the number of vectors of the side that has fewer vectors. One factor
    consists of these M vectors. The other factor consists of M weighted sums of the other side's vectors.

    For R rows of a side, `side_part` returns three tensors:

    * (R,), the first-order term plus the second-order term over pairs of vectors within the side
    * (R, E), or (R, M * E) with trained weights: the factor for the pairs between both sides
    * (R, H), the terms of the side's vectors in the H outputs of the MLP's first layer

    So the first matrix product that runs per pair of user and item is that of the MLP's second layer.
    """

    def __init__(self, model: DeepFM, sides: FeatureSides, dtype: torch.dtype) -> None:
        self._model = model
        self._linear = model.first_order.factorize(sides, dtype)
        dim = model.dense_vectors.shape[1]
        # The side of each vector, in the order of the MLP's inputs.
        vector_sides = (*sides.dense, *sides.embedded)
        self._vectors = positions_by_side(vector_sides)
        columns = positions_by_side([side for side in vector_sides for _ in range(dim)])
        self._deep = FactorizedMLP(model.deep, model.logit, columns, dtype)
        weights = model.field_weights
        self._second = _EqualPairs() if weights is None else _WeightedPairs(weights, self._vectors)

    def side_part(self, side: Side, dense: Tensor, categorical: Tensor) -> Part:
        """See `Factorization.side_part`."""
        scaled = dense.unsqueeze(2) * self._model.dense_vectors
        embedded = self._model.embedding(categorical)
        vectors = torch.cat([scaled, embedded], dim=1)[:, self._vectors[side]]  # (R, V, E)
        (first_order,) = self._linear.side_part(side, dense, categorical)
        share = self._deep.share(side, vectors.flatten(1))
        within = first_order + self._second.within(side, vectors)
        return within, self._second.factor(side, vectors), share

    def pair_logits(self, users: Part, items: Part) -> Tensor:
        """See `Factorization.pair_logits`."""
        within = users[0].unsqueeze(1) + items[0]
        between = vector_products(users[1].unsqueeze(1), items[1].unsqueeze(2)).squeeze(2)
        return within + between + self._deep.outputs(users[2], items[2], None)


class _EqualPairs:
    """The second-order term in which all pairs of vectors have the weight 1."""

    def within(self, side: Side, vectors: Tensor) -> Tensor:
        """Returns the sum (R,) of the dot products of all pairs of a side's `vectors` (R, V, E)."""
        return pair_sum(vectors)

    def factor(self, side: Side, vectors: Tensor) -> Tensor:
        """Returns a side's factor (R, E) for the pairs of a user's and an item's vector.

        The dot product of both sides' factors is the sum of the dot products of these pairs.
        """
        return vectors.sum(dim=1)


class _WeightedPairs:
    """The second-order term with trained weights.

    Args:
        weights: the weights of all pairs.
        positions: the positions of each side's vectors among all vectors, ascending.
    """

    def __init__(self, weights: FieldWeights, positions: dict[Side, list[int]]) -> None:
        matrix = weights.matrix().detach()
        users, items = positions[Side.USER], positions[Side.ITEM]
        self._within = {side: matrix[positions[side]][:, positions[side]] for side in (Side.USER, Side.ITEM)}
        self._summed_side = Side.ITEM if len(users) <= len(items) else Side.USER
        kept, summed = (users, items) if self._summed_side is Side.ITEM else (items, users)
        self._between = weights_between(matrix, kept, summed)

    def within(self, side: Side, vectors: Tensor) -> Tensor:
        """Returns the weighted sum (R,) of the dot products of all pairs of a side's `vectors` (R, V, E)."""
        return weighted_pair_sum(vectors, self._within[side])

    def factor(self, side: Side, vectors: Tensor) -> Tensor:
        """Returns a side's factor (R, M * E) for the pairs of a user's and an item's vector.

        The dot product of both sides' factors is the weighted sum of the dot products of these pairs.
        """
        return (mix_vectors(vectors, self._between) if side is self._summed_side else vectors).flatten(1)


def build(settings: Settings, inputs: Inputs) -> DeepFM:
    """Builds the model from its settings."""
    return DeepFM(settings, inputs)
