"""The factorization of a model: computations per user, per item, and per pair of user and item.

A model that can be factorized has a method

    factorize(sides: FeatureSides, dtype: torch.dtype) -> Factorization

This method copies weights, so call it after the weights are loaded. Several models use `FactorizedMLP`, an
MLP whose first layer is computed as a sum of three terms. One term depends on the user, one on the item, and
one on the pair.

A side means either the users or the items. Context features are on the side of the items.

Notation: R rows of one side, U users, I items, H the width of a hidden layer. The shape (1|U, I, …) means one
list of I items for all users, or one list per user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from storage.feature_spec import FeatureSpec

Part = tuple[Tensor, ...]

# On a CPU, one batched matrix product for the lists of all users is slow if the lists are long. So if lists
# have at least this many items, they are multiplied one after the other.
_LOOPED_ITEMS = 16


class Side(Enum):
    """Says which inputs a value in a model depends on: the user's, the item's, or both (PAIR).

    Context features are inputs of the side ITEM.
    """

    USER = "user"
    ITEM = "item"
    PAIR = "pair"


@dataclass(frozen=True)
class FeatureSides:
    """The side of each feature, USER or ITEM.

    Attributes:
        dense: (D,), the sides of the dense features, in the spec's order.
        embedded: (C,), the sides of the features that are ids, in the order of `FeatureSpec.embedded`.
    """

    dense: tuple[Side, ...]
    embedded: tuple[Side, ...]

    @classmethod
    def of(cls, spec: FeatureSpec) -> FeatureSides:
        """Returns the side of each feature of a spec: USER if its scope is `user`, otherwise ITEM."""
        dense, embedded = (
            tuple(Side.USER if feature.scope == "user" else Side.ITEM for feature in features)
            for features in (spec.dense, spec.embedded)
        )
        return cls(dense, embedded)


def common_side(sides: Sequence[Side]) -> Side:
    """Returns the side that all elements of `sides` have in common; PAIR if they differ."""
    return sides[0] if len(set(sides)) == 1 else Side.PAIR


def positions_by_side(sides: Sequence[Side]) -> dict[Side, list[int]]:
    """Returns the positions of each side in `sides`, in ascending order."""
    return {side: [position for position, other in enumerate(sides) if other is side] for side in Side}


class Factorization(Protocol):
    """A model in three parts, which are computed once per user, once per item, and once per pair."""

    def side_part(self, side: Side, dense: Tensor, categorical: Tensor) -> Part:
        """Computes the values that depend only on users, or only on items and the context.

        Args:
            side: USER or ITEM.
            dense, categorical: (R, D) and (R, W), complete rows, with zeros in the columns of the other side.

        Returns:
            Tensors whose first dimension is R.
        """
        ...

    def pair_logits(self, users: Part, items: Part) -> Tensor:
        """Returns logits (U, I) float32.

        Args:
            users: tensors (U, …) from `side_part(Side.USER, …)`.
            items: tensors (1|U, I, …) from `side_part(Side.ITEM, …)`.
        """
        ...


class ItemScores(Protocol):
    """Items that all users share. Logits can be computed for all of these items, or for a range of them."""

    def logits(self, users: Part, items: slice) -> Tensor:
        """Returns the logits (U, I) float32 of users with a range of the items.

        Args:
            users: tensors (U, …) from `side_part(Side.USER, …)`.
            items: the range of items.
        """
        ...


@runtime_checkable
class SharesItems(Protocol):
    """A factorization that scores many shared items with less work than it needs for single pairs."""

    def share_items(self, items: Part, most_bytes: int) -> ItemScores | None:
        """Prepares items for scoring; returns None if this would need more than `most_bytes` of memory.

        Args:
            items: tensors (I, …) from `side_part(Side.ITEM, …)`, float32, on a CPU.
            most_bytes: maximum number of bytes in addition to `items`.
        """
        ...


@runtime_checkable
class Factorizable(Protocol):
    """A model that can be divided into computations per user, per item and per pair."""

    def factorize(self, sides: FeatureSides, dtype: torch.dtype) -> Factorization:
        """Returns this model divided into computations per user, per item and per pair.

        Results of `side_part`, and products per pair, are in `dtype`.
        """
        ...


@runtime_checkable
class VectorModel(Protocol):
    """A model whose logit is the dot product of a user vector and an item vector, plus a constant.

    So the best items of a user can be found by their vectors.
    """

    def user_vectors(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Returns user vectors (B, E) float32. Columns of item features do not influence them."""
        ...

    def item_vectors(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Returns item vectors (B, E) float32. Columns of user features do not influence them."""
        ...


@dataclass(frozen=True)
class DenseLayer:
    """A linear layer.

    Attributes:
        weight: (inputs, outputs).
        bias: (outputs,); None means zeros.
        slopes: (outputs,), the slopes of the PReLU after the layer; None means ReLU. The layer of the logit
            has no activation.
    """

    weight: Tensor
    bias: Tensor | None
    slopes: Tensor | None


@dataclass(frozen=True)
class LayersAfterFirst:
    """The layers of an MLP after its first layer.

    Attributes:
        slopes: (outputs,), the slopes of the PReLU after the first layer; None means ReLU.
        layers: the other layers, in the order in which they are computed.
    """

    slopes: Tensor | None
    layers: Sequence[DenseLayer]


class FactorizedMLP:
    """An MLP with ReLU or PReLU whose last layer computes the logit.

    Each input column of the MLP belongs to the users, the items or the pairs.

    W x + b = (W_u x_u + b) + W_i x_i + W_p x_p. Here W and b are the weights of the first layer, and x_u, x_i
    and x_p are the input columns of users, items and pairs. The first term is computed once per user, the
    second once per item.

    Args:
        hidden: a module that contains the linear layers. It may contain none. The activation of a layer is
            the `nn.PReLU` between this layer and the next linear layer, or ReLU if there is no `nn.PReLU`.
            Other modules must have no effect in evaluation.
        logit: the last layer. If it is None, the output is the output of the hidden layers.
        columns: maps each side to the positions of the side's columns in the first layer's input. `share` and
            `outputs` must get the columns in this order.
        dtype: the dtype of the products over pairs. The product of the last layer is always float32.
    """

    def __init__(
        self,
        hidden: nn.Module,
        logit: nn.Linear | None,
        columns: Mapping[Side, Sequence[int]],
        dtype: torch.dtype,
    ) -> None:
        linears, slopes = _layers_of(hidden)
        first, *rest = [*linears, *([logit] if logit is not None else [])]
        self._dtype = dtype if linears else torch.float32
        self._ends_first = not linears
        weight = first.weight.detach()  # (H, K)
        self._weights = {side: weight[:, list(columns[side])] for side in (Side.USER, Side.ITEM)}
        self._pair = weight[:, list(columns[Side.PAIR])].t().contiguous().to(self._dtype)  # (K_pair, H)
        self._bias = first.bias.detach()
        self._slopes = [None if slope is None else slope.to(self._dtype) for slope in slopes]
        hiddens = rest if logit is None or not linears else rest[:-1]
        self._hidden = [
            (layer.weight.detach().t().contiguous().to(dtype), layer.bias.detach().to(dtype))
            for layer in hiddens
        ]
        self._last = logit if linears else None

    def share(self, side: Side, values: Tensor) -> Tensor:
        """Returns the term (R, H) of the first layer that a side's columns `values` (R, K_side) contribute.

        The term of USER includes the bias.
        """
        bias = self._bias if side is Side.USER else None
        return functional.linear(values, self._weights[side], bias).to(self._dtype)

    def outputs(self, users: Tensor, items: Tensor, pairs: Tensor | None) -> Tensor:
        """Returns the logits (U, I) float32 of pairs; without `logit`, the hidden outputs (U, I, H).

        Args:
            users, items: the results of `share`, (U, H) and (1|U, I, H).
            pairs: the columns of pairs, (U, I, K_pair); None if there are no such columns.
        """
        values = users.unsqueeze(1) + items  # (U, I, H)
        num_users, num_items = values.shape[:2]
        flat = values.flatten(0, 1)
        if pairs is not None:
            flat.addmm_(pairs.reshape(num_users * num_items, -1).to(self._dtype), self._pair)
        return self.after_first(flat, num_users, num_items)

    @property
    def pair_weights(self) -> Tensor:
        """Returns the first layer's weights (K_pair, H) of the columns that depend on both user and item."""
        return self._pair

    @property
    def after(self) -> LayersAfterFirst:
        """Returns the MLP's layers after the first; none if the first layer computes the logit."""
        layers = [
            DenseLayer(weight, bias, slopes)
            for (weight, bias), slopes in zip(self._hidden, self._slopes[1:], strict=True)
        ]
        if self._last is not None:
            layers.append(DenseLayer(self._last.weight.detach().t(), self._last.bias.detach(), None))
        return LayersAfterFirst(self._slopes[0] if self._slopes else None, layers)

    def outputs_of_pairs(self, pairs: Tensor) -> Tensor:
        """Computes `outputs` if all input columns, `pairs` (U, I, K), depend on both user and item."""
        num_users, num_items = pairs.shape[:2]
        flat = pairs.reshape(num_users * num_items, -1).to(self._dtype)
        first = torch.addmm(self._bias.to(self._dtype), flat, self._pair)
        return self.after_first(first, num_users, num_items)

    def after_first(self, flat: Tensor, num_users: int, num_items: int) -> Tensor:
        """Computes the output from `flat` (U * I, H), the first layer's sums before its activation.

        May overwrite `flat`.
        """
        if self._ends_first:
            return flat.view(num_users, num_items)
        flat = _activate(flat, self._slopes[0])
        for (weight, bias), slope in zip(self._hidden, self._slopes[1:], strict=True):
            flat = _activate(torch.addmm(bias, flat, weight), slope)
        if self._last is None:
            return flat.view(num_users, num_items, -1)
        return functional.linear(flat.float(), self._last.weight, self._last.bias).view(num_users, num_items)


def _layers_of(hidden: nn.Module) -> tuple[list[nn.Linear], list[Tensor | None]]:
    """Returns the linear layers of a module, and for each layer the slopes (H,) of PReLU; None means ReLU."""
    linears: list[nn.Linear] = []
    slopes: list[Tensor | None] = []
    for module in hidden.modules():
        if isinstance(module, nn.Linear):
            linears.append(module)
            slopes.append(None)
        elif isinstance(module, nn.PReLU):
            slopes[-1] = module.weight.detach()
    return linears, slopes


def _activate(values: Tensor, slopes: Tensor | None) -> Tensor:
    """Returns ReLU or PReLU of `values` (R, H). May overwrite `values`."""
    return values.relu_() if slopes is None else functional.prelu(values, slopes)


def vector_products(users: Tensor, items: Tensor) -> Tensor:
    """Returns the dot products of all vectors of each item with all vectors of each user, (U, I, Q * P).

    Each user has P vectors, and each item has Q. In the last dimension of the result, the index of the user's
    vector changes fastest.

    Args:
        users: (U, P, E).
        items: (1|U, I, Q, E).
    """
    num_users, user_vectors, dim = users.shape
    lists, num_items, item_vectors, _ = items.shape
    if lists == 1:  # all users have the same list, so one matrix product is enough
        flat = items.reshape(num_items * item_vectors, dim) @ users.reshape(num_users * user_vectors, dim).t()
        products = flat.view(num_items, item_vectors, num_users, user_vectors).permute(2, 0, 1, 3)
        return products.reshape(num_users, num_items, item_vectors * user_vectors)  # from (U, I, Q, P)
    flat = items.reshape(num_users, num_items * item_vectors, dim)  # (U, I * Q, E)
    vectors = users.transpose(1, 2)  # (U, E, P)
    if items.is_cuda or num_items < _LOOPED_ITEMS:
        products = torch.bmm(flat, vectors)  # (U, I * Q, P)
    else:
        products = torch.empty(num_users, num_items * item_vectors, user_vectors, dtype=items.dtype)
        for matrix, other, out in zip(flat, vectors, products, strict=True):
            torch.mm(matrix, other, out=out)
    return products.view(num_users, num_items, item_vectors * user_vectors)
