"""DCN-V2 (Wang et al. 2021, arXiv:2008.13535): a network of cross layers, and an MLP.

    x_{l+1} = x_0 ⊙ (W_l x_l + b_l) + x_l             (equation 1; full rank)
    x_{l+1} = x_0 ⊙ (U_l (V_lᵀ x_l) + b_l) + x_l      (equation 2; U and V have `cross_rank` columns)

x_0 contains the embeddings and the dense features. If the model has a bottom MLP, x_0 contains the output of
this MLP instead of the dense features (as in MLPerf's DLRM-DCNv2). x_l is the input of cross layer l.

Notation: B rows, D dense features, C features that are ids, W columns of ids, E embedding_dim, X columns of
x_0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.architecture_settings.dcn_v2 import Settings
from training.models.click_model import ClickModel
from training.models.factorization import (
    FactorizedMLP,
    FeatureSides,
    Part,
    Side,
    common_side,
    positions_by_side,
)
from training.models.inputs import Inputs
from training.models.layers import in_float32, linear, mlp


class CrossLayer(nn.Module):
    """A cross layer with a full weight matrix (equation 1), or with one of rank `rank` (equation 2)."""

    def __init__(self, width: int, rank: int | None) -> None:
        super().__init__()
        self.down = nn.Identity() if rank is None else linear(width, rank, bias=False)  # Vᵀ
        self.up = linear(width if rank is None else rank, width)  # W or U, and b

    def forward(self, first: Tensor, last: Tensor) -> Tensor:
        """Returns the output of this layer, x_{l+1} (B, X).

        `first` (B, X) is the first cross layer's input, x_0. `last` (B, X) is this layer's input, x_l.
        """
        return first * self.up(self.down(last)) + last


class DCNv2(ClickModel):
    """A cross network and an MLP over the embeddings and the dense features."""

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

    def embed(self, categorical: Tensor) -> list[Tensor]:
        """Returns a list with one tensor, the vectors (B, C, E) of `categorical` (B, W) int64."""
        return [self.embedding(categorical)]

    def cross_input(self, dense: Tensor, vectors: Tensor) -> Tensor:
        """Returns the input of the cross layers, x_0 (B, X), from `dense` (B, D) and `vectors` (B, C, E)."""
        return torch.cat([self.bottom(dense), vectors.flatten(1)], dim=1)

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """See `ClickModel.forward`. The bottom MLP runs while vectors arrive from other ranks."""
        bottom = self.bottom(dense)
        (vectors,) = self.embed(categorical)
        return self._logits(torch.cat([bottom, vectors.flatten(1)], dim=1))

    def forward_dense(self, dense: Tensor, vectors: Sequence[Tensor]) -> Tensor:
        """Returns the logits (B,) from `dense` (B, D) and `vectors`, a list with one tensor (B, C, E)."""
        return self._logits(self.cross_input(dense, vectors[0]))

    def _logits(self, first: Tensor) -> Tensor:
        """Returns the logits (B,) from the input of the cross layers, x_0 (B, X)."""
        crossed = first
        for layer in self.cross:
            crossed = layer(first, crossed)
        if self.parallel:
            return in_float32(self.logit, torch.cat([crossed, self.deep(first)], dim=1)).squeeze(1)
        return in_float32(self.logit, self.deep(crossed)).squeeze(1)

    def factorize(self, sides: FeatureSides, dtype: torch.dtype) -> FactorizedDCNv2:
        """Returns this model divided into computations per user, per item and per pair.

        Products that run per pair use `dtype`. The logits are float32.
        """
        return FactorizedDCNv2(self, sides, dtype)


def cross_input_sides(sides: FeatureSides, dim: int, bottom_width: int | None) -> list[Side]:
    """Returns for each of the X columns of x_0 whether it depends on the user, on the item, or on both.

    Args:
        sides: for each feature, whether it belongs to the user or to the item.
        dim: number of columns of each feature that is an id.
        bottom_width: number of columns of the bottom MLP's output; None if there is no bottom MLP.
    """
    embedded = [side for side in sides.embedded for _ in range(dim)]
    if bottom_width is None:
        return [*sides.dense, *embedded]
    return [*[common_side(sides.dense)] * bottom_width, *embedded]


class FactorizedDCNv2:
    """The factorization of DCN-V2.

    W x_0 + b of the first cross layer is a sum over the columns of x_0. The terms of user columns are
    computed once per user, and the terms of item columns once per item. Here the columns of x_0 are ordered:
    user columns, item columns, and pair columns, which depend on both. There are pair columns only if users
    and items both have dense features, because each output of the bottom MLP then depends on both. A side
    means either the users or the items. For R rows of a side, `side_part` returns these tensors:

    * (R, X_side), the side's columns of x_0
    * (R, X), the terms of these columns in W x_0 + b
    * for the structure `parallel`: (R, H), the terms of these columns in the H outputs of the first layer of
      `deep`
    * if there are pair columns: (R, H'), the terms of the side's dense features in the H' outputs of the
      bottom MLP's first layer
    """

    def __init__(self, model: DCNv2, sides: FeatureSides, dtype: torch.dtype) -> None:
        self._model, self._dtype = model, dtype
        first, *later = (layer for layer in model.cross if isinstance(layer, CrossLayer))
        dim = model.embedding.weight.shape[1]
        bottom_width = first.up.out_features - len(sides.embedded) * dim if len(model.bottom) else None
        self._columns = positions_by_side(cross_input_sides(sides, dim, bottom_width))
        order = [column for columns in self._columns.values() for column in columns]
        self._first = {side: _factors(first, order, columns) for side, columns in self._columns.items()}
        self._first[Side.PAIR] = [weight.to(dtype) for weight in self._first[Side.PAIR]]
        self._first_bias = first.up.bias.detach()[order]
        self._later = [_reordered(layer, order, dtype) for layer in later]
        self._dense = positions_by_side(sides.dense)
        mixed = len(model.bottom) and common_side(sides.dense) is Side.PAIR
        self._bottom = FactorizedMLP(model.bottom, None, self._dense, dtype) if mixed else None
        weight = model.logit.weight.detach()
        if model.parallel:
            self._deep = FactorizedMLP(model.deep, None, self._columns, dtype)
            self._crossed_weight, self._deep_weight = weight[:, order], weight[:, len(order) :]
        else:
            of_pairs: dict[Side, Sequence[int]] = {Side.USER: (), Side.ITEM: (), Side.PAIR: order}
            self._deep = FactorizedMLP(model.deep, model.logit, of_pairs, dtype)

    def side_part(self, side: Side, dense: Tensor, categorical: Tensor) -> Part:
        """See `Factorization.side_part`."""
        model = self._model
        first = model.cross_input(dense, model.embedding(categorical))
        columns = first[:, self._columns[side]]  # (R, X_side)
        product = self._product(columns, side)  # (R, X)
        if side is Side.USER:
            product = product + self._first_bias
        part: Part = (columns.to(self._dtype), product.to(self._dtype))
        if model.parallel:
            part = (*part, self._deep.share(side, columns))
        return (*part, self._bottom.share(side, dense[:, self._dense[side]])) if self._bottom else part

    def _product(self, values: Tensor, side: Side) -> Tensor:
        """Returns the product (…, X) of the first cross layer's W and a side's columns of x_0.

        `values` (…, X_side) contains the side's columns. If the layer has a low rank, W is U Vᵀ.
        """
        for weight in self._first[side]:
            values = functional.linear(values, weight)
        return values

    def pair_logits(self, users: Part, items: Part) -> Tensor:
        """See `Factorization.pair_logits`."""
        num_users, num_items = len(users[0]), items[0].shape[1]
        columns = [
            users[0].unsqueeze(1).expand(-1, num_items, -1),
            items[0].expand(num_users, -1, -1),
        ]
        product = users[1].unsqueeze(1) + items[1]  # (U, I, X)
        bottom = None
        if self._bottom:
            bottom = self._bottom.outputs(users[-1], items[-1], None)  # (U, I, X_pair)
            columns.append(bottom)
            product += self._product(bottom, Side.PAIR)
        first = torch.cat(columns, dim=2).flatten(0, 1)  # (U * I, X)
        crossed = torch.addcmul(first, first, product.flatten(0, 1))
        for down, up, bias in self._later:
            reduced = crossed if down is None else crossed @ down
            crossed.addcmul_(first, torch.addmm(bias, reduced, up))
        if not self._model.parallel:
            return self._deep.outputs_of_pairs(crossed.view(num_users, num_items, -1))
        deep = self._deep.outputs(users[2], items[2], bottom)
        logits = functional.linear(crossed.float(), self._crossed_weight, self._model.logit.bias)
        deep_logits = functional.linear(deep.float(), self._deep_weight).squeeze(2)
        return logits.view(num_users, num_items) + deep_logits


def _factors(layer: CrossLayer, order: list[int], columns: list[int]) -> list[Tensor]:
    """Returns the weights of a layer for the columns `columns` of x_0, with the outputs in `order`.

    Returns: W (X, X_side) at full rank; Vᵀ (r, X_side) and U (X, r) at low rank.
    """
    up = layer.up.weight.detach()[order]
    if isinstance(layer.down, nn.Identity):
        return [up[:, columns]]
    return [layer.down.weight.detach()[:, columns], up]


def _reordered(
    layer: CrossLayer, order: list[int], dtype: torch.dtype
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Returns the weights of a layer after the columns of x_0 are put into the order `order`.

    Returns:
        Three tensors. At low rank: V (X, r), the transpose of U (r, X), and b (X,). At full rank: None, the
        transpose of W (X, X), and b (X,).
    """
    up, bias = layer.up.weight.detach()[order], layer.up.bias.detach()[order]
    if isinstance(layer.down, nn.Identity):
        return None, up[:, order].t().contiguous().to(dtype), bias.to(dtype)
    down = layer.down.weight.detach()[:, order]
    return down.t().contiguous().to(dtype), up.t().contiguous().to(dtype), bias.to(dtype)


def build(settings: Settings, inputs: Inputs) -> DCNv2:
    """Builds the model from its settings."""
    return DCNv2(settings, inputs)
