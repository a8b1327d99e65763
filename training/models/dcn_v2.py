"""DCN-V2 (Wang et al. 2021, arXiv:2008.13535): cross layers that multiply the input into itself, and an MLP.

    x_{l+1} = x_0 ⊙ (W_l x_l + b_l) + x_l                       (equation 1; full rank)
    x_{l+1} = x_0 ⊙ (U_l (V_lᵀ x_l) + b_l) + x_l                (equation 2; low rank, U and V of `cross_rank` columns)

x_0 holds the embeddings and the dense features, or what a bottom MLP makes of these (as MLPerf's DLRM-DCNv2 does).

Notation: B rows, D dense features, C features made of ids, W columns of ids, E embedding_dim, X width of x_0.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.models.factorization import Part, Sides, SplitMLP
from training.models.inputs import Inputs
from training.models.layers import in_float32, linear, mlp
from training.settings.dcn_v2 import Settings


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

    def split(self, sides: Sides, dtype: torch.dtype) -> SplitDCNv2:
        """Everything that is computed over pairs, but the logit, is in `dtype`."""
        return SplitDCNv2(self, sides, dtype)


class SplitDCNv2:
    """DCN-V2 cut by side: each side's share of the first cross layer's W x_0 + b once, the layers after it for each pair.

    Columns of x_0 stand here in the order user, item, pair. Those of pairs are there where both sides have dense features and
    the bottom MLP mixes them. Parts: (R, X_side) the side's columns of x_0; (R, X) its share of W x_0 + b; of structure
    `parallel`, (R, H) its share of the first layer of `deep`; where the bottom MLP mixes, (R, H) its share of that one's.
    """

    def __init__(self, model: DCNv2, sides: Sides, dtype: torch.dtype) -> None:
        self._model, self._dtype = model, dtype
        first, *later = (each for each in model.cross if isinstance(each, CrossLayer))
        owners: list[bool | None] = [*sides.dense]  # of each column of x_0
        embedded = [each for each in sides.features for _ in range(model.embedding.weight.shape[1])]
        if len(model.bottom):
            made = first.up.out_features - len(embedded)
            owners = [Sides.owner(sides.dense)] * made
        owners += embedded
        self._own = {owner: Sides.places(owners, owner) for owner in (True, False, None)}
        user, item, pair = self._own.values()
        order = [*user, *item, *pair]
        self._first = {owner: _shared(first, order, own) for owner, own in self._own.items()}
        self._first[None] = [each.to(dtype) for each in self._first[None]]
        self._first_bias = first.up.bias.detach()[order]
        self._later = [_reordered(each, order, dtype) for each in later]
        self._dense = {side: Sides.places(sides.dense, side) for side in (True, False)}
        self._bottom = (
            SplitMLP(model.bottom, None, self._dense[True], self._dense[False], (), dtype)
            if len(model.bottom) and len(set(sides.dense)) == 2
            else None
        )
        weight = model.logit.weight.detach()
        if model.parallel:
            self._deep = SplitMLP(model.deep, None, user, item, pair, dtype)
            self._of_crossed, self._of_deep = weight[:, order], weight[:, len(order) :]
        else:
            self._deep = SplitMLP(model.deep, model.logit, (), (), order, dtype)

    def user_part(self, dense: Tensor, categorical: Tensor) -> Part:
        own, product = self._side(dense, categorical, side=True)
        part: Part = (own.to(self._dtype), (product + self._first_bias).to(self._dtype))
        if self._model.parallel:
            part = (*part, self._deep.user_share(own))
        return (*part, self._bottom.user_share(dense[:, self._dense[True]])) if self._bottom else part

    def item_part(self, dense: Tensor, categorical: Tensor) -> Part:
        own, product = self._side(dense, categorical, side=False)
        part: Part = (own.to(self._dtype), product.to(self._dtype))
        if self._model.parallel:
            part = (*part, self._deep.item_share(own))
        return (*part, self._bottom.item_share(dense[:, self._dense[False]])) if self._bottom else part

    def _side(self, dense: Tensor, categorical: Tensor, *, side: bool) -> tuple[Tensor, Tensor]:
        """The side's columns of x_0 (R, X_side), and W times them (R, X)."""
        model = self._model
        first = torch.cat([model.bottom(dense), model.embedding(categorical).flatten(1)], dim=1)
        own = first[:, self._own[side]]
        return own, self._product(own, side)

    def _product(self, values: Tensor, owner: bool | None) -> Tensor:
        """(…, X) the first cross layer's W, or U Vᵀ, times an owner's columns (…, X_owner) of x_0."""
        for weight in self._first[owner]:
            values = functional.linear(values, weight)
        return values

    def pair_part(self, users: Part, items: Part) -> Tensor:
        many, each = len(users[0]), items[0].shape[1]
        columns = [
            users[0].unsqueeze(1).expand(-1, each, -1),
            items[0].expand(many, -1, -1),
        ]
        product = users[1].unsqueeze(1) + items[1]  # (U, I, X)
        bottom = None
        if self._bottom:
            bottom = self._bottom.outputs(users[-1], items[-1], None)  # (U, I, X_pair)
            columns.append(bottom)
            product += self._product(bottom, None)
        first = torch.cat(columns, dim=2).flatten(0, 1)  # (U * I, X)
        crossed = torch.addcmul(first, first, product.flatten(0, 1))
        for down, up, bias in self._later:
            reduced = crossed if down is None else crossed @ down
            crossed.addcmul_(first, torch.addmm(bias, reduced, up))
        if not self._model.parallel:
            return self._deep.of_pairs(crossed.view(many, each, -1))
        deep = self._deep.outputs(users[2], items[2], bottom)
        logits = functional.linear(crossed.float(), self._of_crossed, self._model.logit.bias).view(many, each)
        return logits + functional.linear(deep.float(), self._of_deep).squeeze(2)


def _shared(layer: CrossLayer, order: list[int], own: list[int]) -> list[Tensor]:
    """The weights that some columns of x_0 meet one after the other: Vᵀ (r, X_own) and U (X, r), or W (X, X_own)."""
    up = layer.up.weight.detach()[order]
    if isinstance(layer.down, nn.Identity):
        return [up[:, own]]
    return [layer.down.weight.detach()[:, own], up]


def _reordered(
    layer: CrossLayer, order: list[int], dtype: torch.dtype
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Vᵀ's transpose (X, r), None at full rank; U's or W's, (r, X) or (X, X); and b (X,): for columns in this order."""
    up, bias = layer.up.weight.detach()[order], layer.up.bias.detach()[order]
    if isinstance(layer.down, nn.Identity):
        return None, up[:, order].t().contiguous().to(dtype), bias.to(dtype)
    down = layer.down.weight.detach()[:, order]
    return down.t().contiguous().to(dtype), up.t().contiguous().to(dtype), bias.to(dtype)


def build(settings: Settings, inputs: Inputs) -> DCNv2:
    return DCNv2(settings, inputs)
