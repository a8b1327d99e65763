"""NeuMF (X. He et al., Neural Collaborative Filtering, WWW 2017): matrix factorization (GMF) plus an MLP.

    P(click) = σ(hᵀ [φ_GMF, φ_MLP] + b)                                       (equation 12)
    φ_GMF = p ⊙ q,   p = Σ vectors of the user's features,   q = Σ vectors of the item's features
    a_0 = [e_1, …, e_m];  a_l = ReLU(W_l a_(l-1) + b_l);  φ_MLP = a_L

In the paper, the inputs are the ids of a user and of an item. In this case, p and q are the vectors of the
two ids, and a_0 contains both vectors. Section 3.1 also allows other features. Here every feature has a
vector. The vector of a feature with one id is the id's vector. The vector of a list of ids is the sum or the
mean of the ids' vectors. The vector of a dense feature is the feature's value times a learned vector. p and q
are the sums of the vectors of each side. In equation 3, p is Pᵀ v_u and q is Qᵀ v_i, where v_u and v_i
contain the features of the side. Context features belong to the item's side. Features that depend on the pair
of user and item are inputs of the MLP only. If a side has no features, φ_GMF is 0.

GMF and MLP have separate vectors, as in section 3.4. Both vectors are in one row of a table: GMF uses the
first `gmf_dim` numbers, and the MLP uses the other `mlp_dim` numbers. So one lookup returns both. The bias b
belongs to the MLP. The paper's equation has no bias. The paper may start from a trained GMF and a trained MLP
(section 3.4.1). Here both start from random weights.

Notation: B rows, D dense features, C features that are ids, V = D + C features (dense features first), W
columns of ids, G gmf_dim, M mlp_dim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from training.architecture_settings.neumf import Settings
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
from training.models.layers import in_float32, linear, mlp

_DEVIATION = 0.01  # standard deviation of initial vectors (section 4.1, parameter settings)


class NeuMF(ClickModel):
    """A model whose logit is a weighted dot product of a user and an item vector, plus an MLP's output."""

    user_fields: Tensor
    item_fields: Tensor

    def __init__(self, settings: Settings, inputs: Inputs) -> None:
        super().__init__()
        self.gmf_dim = settings.gmf_dim
        width = settings.gmf_dim + settings.mlp_dim
        self.embedding = inputs.table(width)
        self.embedding.init_normal(_DEVIATION)
        self.dense_vectors = nn.Parameter(torch.empty(inputs.num_dense, width).normal_(std=_DEVIATION))
        scopes = [*inputs.dense_scopes, *inputs.embedded_scopes]
        for name, side in (("user_fields", ("user",)), ("item_fields", ("item", "context"))):
            positions = [position for position, scope in enumerate(scopes) if scope in side]
            self.register_buffer(name, torch.tensor(positions, dtype=torch.int64), persistent=False)
        num_fields = inputs.num_dense + inputs.num_embedded
        self.deep = mlp([num_fields * settings.mlp_dim, *settings.deep], settings.dropout)
        self.logit = linear(settings.deep[-1], 1)
        # The vector h consists of these weights and the weights of `logit`. Both are initialised as if they
        # were one layer.
        deviation = math.sqrt(2 / (settings.gmf_dim + settings.deep[-1] + 1))
        self.gmf_weights = nn.Parameter(torch.empty(settings.gmf_dim).normal_(std=deviation))

    def embed(self, categorical: Tensor) -> list[Tensor]:
        """Returns a list with one tensor, the vectors (B, C, G + M) of `categorical` (B, W) int64."""
        return [self.embedding(categorical)]

    def forward_dense(self, dense: Tensor, vectors: Sequence[Tensor]) -> Tensor:
        """Returns the logits (B,) from `dense` (B, D) float32 and the result of `embed`."""
        fields = self.fields(dense, vectors[0])
        # Sums and elementwise products stay in float32 under mixed precision.
        user, item = (self.gmf_vector(fields, side) for side in (Side.USER, Side.ITEM))
        product = (user * item * self.gmf_weights).sum(dim=1)
        hidden = self.deep(fields[:, :, self.gmf_dim :].flatten(1))
        return product + in_float32(self.logit, hidden).squeeze(1)

    def fields(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """Returns the vectors (B, V, G + M) of all features.

        Args:
            dense: (B, D) float32.
            embedded: (B, C, G + M), the vectors of the features that are ids.
        """
        return torch.cat([dense.unsqueeze(2) * self.dense_vectors, embedded], dim=1)

    def gmf_vector(self, fields: Tensor, side: Side) -> Tensor:
        """Returns the sum (B, G) of the vectors of a side, USER or ITEM, from the result of `fields`."""
        positions = self.user_fields if side is Side.USER else self.item_fields
        return fields[:, :, : self.gmf_dim].index_select(1, positions).sum(dim=1)

    def factorize(self, sides: FeatureSides, dtype: torch.dtype) -> FactorizedNeuMF:
        """Returns this model divided into computations per user, per item and per pair.

        The product of GMF is always computed in float32.
        """
        return FactorizedNeuMF(self, sides, dtype)


class FactorizedNeuMF:
    """The factorization of NeuMF.

    For R rows of a side (users or items), `side_part` returns two tensors:

    * (R, G), the side's vector of GMF; a user's vector is multiplied by the weights h of GMF
    * (R, H), the terms of the side's features in the H outputs of the MLP's first layer
    """

    def __init__(self, model: NeuMF, sides: FeatureSides, dtype: torch.dtype) -> None:
        self._model = model
        mlp_dim = model.dense_vectors.shape[1] - model.gmf_dim
        # The side of each vector, in the order of the MLP's inputs.
        field_sides = (*sides.dense, *sides.embedded)
        self._fields = positions_by_side(field_sides)
        columns = positions_by_side([side for side in field_sides for _ in range(mlp_dim)])
        self._deep = FactorizedMLP(model.deep, model.logit, columns, dtype)

    def side_part(self, side: Side, dense: Tensor, categorical: Tensor) -> Part:
        """See `Factorization.side_part`."""
        model = self._model
        fields = model.fields(dense, model.embedding(categorical))
        vector = model.gmf_vector(fields, side)
        inputs = fields[:, self._fields[side], model.gmf_dim :].flatten(1)
        return vector * model.gmf_weights if side is Side.USER else vector, self._deep.share(side, inputs)

    def pair_logits(self, users: Part, items: Part) -> Tensor:
        """See `Factorization.pair_logits`."""
        product = vector_products(users[0].unsqueeze(1), items[0].unsqueeze(2)).squeeze(2)
        return product + self._deep.outputs(users[1], items[1], None)


def build(settings: Settings, inputs: Inputs) -> NeuMF:
    """Builds the model from its settings."""
    return NeuMF(settings, inputs)
