"""DLRM (Naumov et al. 2019, arXiv:1906.00091): a bottom MLP, dot products of feature vectors, and a top MLP.

Notation: B rows, D dense features, C features that are ids, W columns of ids, E embedding_dim, F vectors per
row. F is C, plus one if there are dense features. The interaction computes the dot product of each pair of
the F vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from training import kernels
from training.architecture_settings.dlrm import Settings, require_bottom
from training.device import vector_dtype
from training.models.click_model import ClickModel
from training.models.factorization import (
    FactorizedMLP,
    FeatureSides,
    ItemScores,
    Part,
    Side,
    common_side,
    positions_by_side,
    vector_products,
)
from training.models.inputs import Inputs
from training.models.interaction import PairDots, interact, interaction_columns
from training.models.layers import in_float32, mlp
from training.models.shared_items import SharedItems


class DLRM(ClickModel):
    """A bottom MLP over dense features, one stacked embedding table, pairwise dot products, and a top MLP.

    If there are no dense features, there is no bottom MLP.
    """

    def __init__(self, settings: Settings, inputs: Inputs) -> None:
        super().__init__()
        self.num_dense = inputs.num_dense
        self.num_vectors = num_vectors = inputs.num_embedded + bool(self.num_dense)
        self.embedding = inputs.table(settings.embedding_dim)
        self.embedding.init_uniform()
        self.bottom = _mlp([self.num_dense, *settings.bottom_mlp]) if self.num_dense else nn.Identity()
        num_pairs = num_vectors * (num_vectors - 1) // 2
        # The vector of the dense features is also an input of the top MLP. A single vector has no pairs, so
        # the top MLP gets the vector itself.
        self.first_enters = bool(self.num_dense) or num_pairs == 0
        widths = [num_pairs + (settings.embedding_dim if self.first_enters else 0), *settings.top_mlp]
        self.top = _mlp(widths)
        self._top_width = widths[0]
        self.logit = _linear(widths[-1], 1)

    def embed(self, categorical: Tensor) -> list[Tensor]:
        """Returns a list with one tensor, the vectors (B, C, E) of `categorical` (B, W) int64.

        If a kernel computes the interaction in bf16, the vectors are bf16 too.
        """
        device = categorical.device
        return [
            self.embedding(categorical, vector_dtype(device) if self._on_kernels(device) else torch.float32)
        ]

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """See `ClickModel.forward`. The bottom MLP runs while vectors arrive from other ranks."""
        bottom = self._of_dense(dense)
        return self._logits(bottom, *self.embed(categorical))

    def forward_dense(self, dense: Tensor, vectors: Sequence[Tensor]) -> Tensor:
        """Returns the logits (B,) from `dense` (B, D) and `vectors`, a list with one tensor (B, C, E)."""
        return self._logits(self._of_dense(dense), *vectors)

    def _of_dense(self, dense: Tensor) -> Tensor | None:
        """Returns the bottom MLP's outputs (B, E); None if there are no dense features."""
        return self.bottom(dense) if self.num_dense else None

    def _logits(self, bottom: Tensor | None, embedded: Tensor) -> Tensor:
        """Returns the logits (B,) from the bottom MLP's outputs and `embedded` (B, C, E)."""
        return in_float32(self.logit, self._top(self._interactions(bottom, embedded))).squeeze(1)

    def _top(self, interactions: Tensor) -> Tensor:
        """Returns the outputs (B, H) of the top MLP.

        Args:
            interactions: (B, K), the inputs of the top MLP. The kernel of the interaction adds columns of
                zeros at the end, which do not change the outputs.
        """
        zeros = interactions.shape[1] - self._top_width
        if not zeros or not len(self.top):
            return self.top(interactions[:, : self._top_width])
        first: Any = self.top[0]
        hidden = functional.linear(interactions, functional.pad(first.weight, (0, zeros)), first.bias)
        return self.top[1:](hidden)

    def _on_kernels(self, device: torch.device) -> bool:
        """Returns whether a Triton kernel computes the dot products of the vectors on this device."""
        return self.embedding.may_use_kernels and kernels.interacts(device, self.num_vectors)

    def _interactions(self, bottom: Tensor | None, embedded: Tensor) -> Tensor:
        """Returns the top MLP's input from the bottom MLP's outputs and `embedded` (B, C, E); see `_top`."""
        if self.num_vectors == 1 and not self.num_dense:
            return embedded[:, 0]
        on_kernels = self._on_kernels(embedded.device)
        return (kernels.interact if on_kernels else interact)(bottom, embedded)

    def factorize(self, sides: FeatureSides, dtype: torch.dtype) -> FactorizedDLRM:
        """Returns this model divided into computations per user, per item and per pair.

        Dot products between vectors of the same side (users or items) are always float32.
        """
        return FactorizedDLRM(self, sides, dtype)


class FactorizedDLRM:
    """The factorization of DLRM.

    A side means either the users or the items. Dot products of two vectors of the same side are computed once
    per row of that side. Dot products of a user's vector and an item's vector are computed for each pair of
    user and item. If all dense features are on one side, the bottom MLP's output is a vector of that side. If
    both sides have dense features, this output and its dot products are computed for each pair.

    For R rows of a side, `side_part` returns these tensors:

    * (R, H), the side's terms in the H outputs of the top MLP's first layer
    * (R, V, E), the side's V vectors
    * if both sides have dense features: (R, H'), the side's terms in the H' outputs of the bottom MLP's first
      layer
    """

    def __init__(self, model: DLRM, sides: FeatureSides, dtype: torch.dtype) -> None:
        self._model, self._dtype = model, dtype
        vector_sides = [*([common_side(sides.dense)] if model.num_dense else []), *sides.embedded]
        self._vectors = positions_by_side(vector_sides)
        self._first_side = vector_sides[0] if model.first_enters else None
        self._mixed = self._first_side is Side.PAIR
        dim, device = model.embedding.weight.shape[1], model.embedding.weight.device
        self._dots = {side: PairDots(len(self._vectors[side])).to(device) for side in (Side.USER, Side.ITEM)}
        if self._mixed:
            self._dense = positions_by_side(sides.dense)
            self._bottom = FactorizedMLP(model.bottom, None, self._dense, dtype)
        columns = interaction_columns(vector_sides, dim if model.first_enters else 0)
        self._top = FactorizedMLP(model.top, model.logit, columns, dtype)

    def side_part(self, side: Side, dense: Tensor, categorical: Tensor) -> Part:
        """See `Factorization.side_part`."""
        vectors, columns = self._side_vectors(side, dense, categorical)
        part = (self._top.share(side, columns), vectors.to(self._dtype))
        return (*part, self._bottom.share(side, dense[:, self._dense[side]])) if self._mixed else part

    def share_items(self, items: Part, most_bytes: int) -> ItemScores | None:
        """See `SharesItems.share_items`."""
        user_vectors, hidden = len(self._vectors[Side.USER]), self._top.pair_weights.shape[1]
        needed = SharedItems.bytes_of(items, hidden, mixed=self._mixed)
        if needed > most_bytes or not user_vectors or not self._vectors[Side.ITEM]:
            return None
        return SharedItems(self._top, self._bottom if self._mixed else None, items, user_vectors)

    def _side_vectors(self, side: Side, dense: Tensor, categorical: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the vectors (R, V, E) of a side, and the top MLP's inputs (R, K_side) from them alone."""
        model = self._model
        vectors = model.embedding(categorical)
        enters = self._first_side is side
        if model.num_dense:
            # The vector of the dense features is a vector of this side only if all dense features belong to
            # this side. Otherwise zeros take its place.
            bottom = model.bottom(dense) if enters else vectors.new_zeros(len(vectors), vectors.shape[2])
            vectors = torch.cat([bottom.unsqueeze(1), vectors], dim=1)
        side_vectors = vectors[:, self._vectors[side]]
        columns = self._dots[side](side_vectors)  # (R, V * (V - 1) / 2)
        if enters:
            columns = torch.cat([vectors[:, 0], columns], dim=1)
        return side_vectors, columns

    def pair_logits(self, users: Part, items: Part) -> Tensor:
        """See `Factorization.pair_logits`."""
        columns = []
        if self._vectors[Side.USER] and self._vectors[Side.ITEM]:
            columns.append(vector_products(users[1], items[1]))  # (U, I, Q * P)
        if self._mixed:
            bottom = self._bottom.outputs(users[2], items[2], None)  # (U, I, E)
            columns.append(bottom)
            columns.append(torch.matmul(bottom, users[1].transpose(1, 2)))  # (U, I, P)
            columns.append(_products_with_items(bottom, items[1]))  # (U, I, Q)
        pairs = torch.cat(columns, dim=2) if len(columns) > 1 else columns[0] if columns else None
        return self._top.outputs(users[0], items[0], pairs)


def _products_with_items(bottom: Tensor, items: Tensor) -> Tensor:
    """Returns the dot products between each pair's vector and the Q vectors of the pair's item.

    The result has the shape (U, I, Q).

    Args:
        bottom: (U, I, E), the vector of each pair of user and item.
        items: (1|U, I, Q, E), the vectors of the items.
    """
    num_users, num_items, dim = bottom.shape
    if len(items) == 1:  # one matrix product per item, because all users share the item's vectors
        return torch.bmm(bottom.transpose(0, 1), items[0].transpose(1, 2)).transpose(0, 1)
    flat = items.reshape(num_users * num_items, -1, dim)
    products = torch.bmm(flat, bottom.reshape(num_users * num_items, dim, 1))  # (U * I, Q, 1)
    return products.view(num_users, num_items, -1)


def build(settings: Settings, inputs: Inputs) -> DLRM:
    """Builds the model. Raises ConfigError if the last width of the bottom MLP is not embedding_dim."""
    require_bottom(settings, inputs.num_dense)
    return DLRM(settings, inputs)


def _mlp(widths: list[int]) -> nn.Sequential:
    return mlp(widths, layer=_linear)


def _linear(width_in: int, width_out: int) -> nn.Linear:
    """Returns a layer with weights N(0, 2 / (in + out)) and biases N(0, 1 / out), as in the authors' code."""
    layer = nn.Linear(width_in, width_out)
    nn.init.normal_(layer.weight, std=math.sqrt(2 / (width_in + width_out)))
    nn.init.normal_(layer.bias, std=math.sqrt(1 / width_out))
    return layer
