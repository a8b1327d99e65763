"""DLRM (Naumov et al. 2019, arXiv:1906.00091): MLPs around the dot products of all pairs of feature vectors.

Notation: B rows, D dense features, C features made of ids, W columns of ids, E embedding_dim, F vectors that interact
(C, and one more for the dense features where there are any).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from training import kernels
from training.models.factorization import Part, Sides, SplitMLP, products
from training.models.inputs import Inputs
from training.models.interaction import PairDots, interact
from training.models.layers import in_float32, mlp
from training.settings.dlrm import Settings, require_bottom


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

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Logits (B,) of dense (B, D) float32 and categorical (B, W) int64."""
        vectors = self.embedding(categorical)  # (B, C, E)
        if self.num_vectors == 1 and not self.num_dense:
            interactions = vectors[:, 0]
        else:
            on_kernels = self.embedding.may_use_kernels and kernels.interacts(
                vectors.device, self.num_vectors
            )
            bottom = self.bottom(dense) if self.num_dense else None
            interactions = (kernels.interact if on_kernels else interact)(bottom, vectors)
        return in_float32(self.logit, self.top(interactions)).squeeze(1)

    def split(self, sides: Sides, dtype: torch.dtype) -> SplitDLRM:
        """Products of vectors within a side are float32 whatever `dtype` is."""
        return SplitDLRM(self, sides, dtype)


class SplitDLRM:
    """DLRM cut by side: dot products within a side once, those of a user's with an item's vectors for each pair.

    Parts: (R, H) the side's share of the top MLP's first layer; (R, V, E) the side's vectors. The dense features' vector is
    the side's that has all of them; where both have some, each part ends in (R, H) its share of the bottom MLP's first
    layer, and the vector is made, and meets all others, for each pair.
    """

    def __init__(self, model: DLRM, sides: Sides, dtype: torch.dtype) -> None:
        self._model, self._dtype = model, dtype
        owners: list[bool | None] = [*sides.features]  # of each vector: whether it is the user's
        if model.num_dense:
            owners.insert(0, Sides.owner(sides.dense))
        self._mixed = bool(owners) and owners[0] is None
        self._own = {side: Sides.places(owners, side) for side in (True, False)}
        dim = model.embedding.weight.shape[1]
        self._enters = owners[0] if model.first_enters else None
        entering = range(dim if model.first_enters else 0)  # the top MLP's first columns

        def dot(left: int, right: int) -> int:
            above, below = max(left, right), min(left, right)
            return len(entering) + above * (above - 1) // 2 + below

        device = model.embedding.weight.device
        self._within = {side: PairDots(len(own)).to(device) for side, own in self._own.items()}
        within = {
            side: [dot(own[i], own[j]) for i in range(len(own)) for j in range(i)]
            for side, own in self._own.items()
        }
        user, item = (
            [*(entering if model.first_enters and owners[0] is side else ()), *within[side]]
            for side in (True, False)
        )
        pair = [dot(theirs, own) for theirs in self._own[False] for own in self._own[True]]
        if self._mixed:
            pair += [*entering, *(dot(0, own) for own in (*self._own[True], *self._own[False]))]
            columns = (Sides.places(sides.dense, True), Sides.places(sides.dense, False))
            self._dense = columns
            self._bottom = SplitMLP(model.bottom, None, *columns, (), dtype)
        self._top = SplitMLP(model.top, model.logit, user, item, pair, dtype)

    def user_part(self, dense: Tensor, categorical: Tensor) -> Part:
        vectors, inner = self._side(dense, categorical, side=True)
        part = (self._top.user_share(inner), vectors.to(self._dtype))
        return (*part, self._bottom.user_share(dense[:, self._dense[0]])) if self._mixed else part

    def item_part(self, dense: Tensor, categorical: Tensor) -> Part:
        vectors, inner = self._side(dense, categorical, side=False)
        part = (self._top.item_share(inner), vectors.to(self._dtype))
        return (*part, self._bottom.item_share(dense[:, self._dense[1]])) if self._mixed else part

    def _side(self, dense: Tensor, categorical: Tensor, *, side: bool) -> tuple[Tensor, Tensor]:
        """The side's vectors (R, V, E), and what of the top MLP's input they alone make."""
        model = self._model
        vectors = model.embedding(categorical)
        if model.num_dense:
            # Where the dense features are not this side's alone, nothing of it uses their vector.
            whole = self._enters is side
            bottom = model.bottom(dense) if whole else vectors.new_zeros(len(vectors), vectors.shape[2])
            vectors = torch.cat([bottom.unsqueeze(1), vectors], dim=1)
        own = vectors[:, self._own[side]]
        inner = self._within[side](own)  # (R, V * (V - 1) / 2)
        if model.first_enters and self._enters is side:
            inner = torch.cat([vectors[:, 0], inner], dim=1)
        return own, inner

    def pair_part(self, users: Part, items: Part) -> Tensor:
        found = []
        if self._own[True] and self._own[False]:
            found.append(products(users[1], items[1]))  # (U, I, Q * P)
        if self._mixed:
            bottom = self._bottom.outputs(users[2], items[2], None)  # (U, I, E)
            found.append(bottom)
            found.append(torch.matmul(bottom, users[1].transpose(1, 2)))  # (U, I, P)
            found.append(_with_items(bottom, items[1]))  # (U, I, Q)
        pairs = torch.cat(found, dim=2) if len(found) > 1 else found[0] if found else None
        return self._top.outputs(users[0], items[0], pairs)


def _with_items(bottom: Tensor, items: Tensor) -> Tensor:
    """(U, I, Q) dot products of each pair's vector (U, I, E) with the item's vectors (1|U, I, Q, E)."""
    many, each, dim = bottom.shape
    if len(items) == 1:  # a product of matrices for each item, whose vectors all users share
        return torch.bmm(bottom.transpose(0, 1), items[0].transpose(1, 2)).transpose(0, 1)
    own = items.reshape(many * each, -1, dim)
    return torch.bmm(own, bottom.reshape(many * each, dim, 1)).view(many, each, -1)


def build(settings: Settings, inputs: Inputs) -> DLRM:
    """The DLRM of a configuration; ConfigError unless the bottom MLP ends in embedding_dim."""
    require_bottom(settings, inputs.num_dense)
    return DLRM(settings, inputs)


def _mlp(widths: list[int]) -> nn.Sequential:
    return mlp(widths, layer=_linear)


def _linear(width_in: int, width_out: int) -> nn.Linear:
    """Initialised as in the authors' implementation: weights N(0, 2 / (in + out)), biases N(0, 1 / out)."""
    layer = nn.Linear(width_in, width_out)
    nn.init.normal_(layer.weight, std=math.sqrt(2 / (width_in + width_out)))
    nn.init.normal_(layer.bias, std=math.sqrt(1 / width_out))
    return layer
