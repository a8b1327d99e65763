"""How a model's logit of a (user, item) pair splits into what hangs on the user alone, on the item alone, and on both.

A model that can be split has a method

    split(sides: Sides, dtype: torch.dtype) -> Split

which takes its weights as they are, so it is called once they are loaded. `SplitMLP` is what such models share: an MLP whose
first layer is a sum of three shares.

Notation: R rows of one side, U users, I items, H widths of hidden layers; (1|U, I, …) is one list of I items that all users share,
or one of each user's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from storage.feature_spec import FeatureSpec

Part = tuple[Tensor, ...]

# A CPU multiplies a stack of matrices as narrow as these a fraction as fast as one after the other, if they are long.
_LOOPED_ITEMS = 16


@dataclass(frozen=True)
class Sides:
    """Which inputs are the user's; all others, those of the context included, are the item's.

    Attributes:
        dense: (D,) of the dense features, in the spec's order.
        features: (C,) of the features made of ids, in the order of `FeatureSpec.embedded`.
    """

    dense: tuple[bool, ...]
    features: tuple[bool, ...]

    @classmethod
    def of(cls, spec: FeatureSpec) -> Sides:
        return cls(
            tuple(each.scope == "user" for each in spec.dense),
            tuple(each.scope == "user" for each in spec.embedded),
        )

    @staticmethod
    def places(owners: Sequence[bool | None], owner: bool | None) -> list[int]:
        """Where in `owners` this one stands: True for the user, False for the item, None for both together."""
        return [place for place, each in enumerate(owners) if each is owner]

    @staticmethod
    def owner(owners: Sequence[bool]) -> bool | None:
        """Whose what is made of all of these is: True for the user's, False for the item's, None where both have some."""
        return owners[0] if len(set(owners)) == 1 else None


class Split(Protocol):
    """A model cut in three. The inputs of a part are whole rows, in which the other side's places hold zeros."""

    def user_part(self, dense: Tensor, categorical: Tensor) -> Part:
        """What hangs on users alone: tensors whose first dimension is R, of dense (R, D) and categorical (R, W)."""
        ...

    def item_part(self, dense: Tensor, categorical: Tensor) -> Part:
        """What hangs on items and the context alone; as `user_part`."""
        ...

    def pair_part(self, users: Part, items: Part) -> Tensor:
        """Logits (U, I) float32.

        Args:
            users: tensors (U, …) of `user_part`.
            items: tensors (1|U, I, …) of `item_part`.
        """
        ...


@runtime_checkable
class Splits(Protocol):
    """A model that can be split."""

    def split(self, sides: Sides, dtype: torch.dtype) -> Split:
        """The model's three parts; products of matrices over pairs, and what is kept for them, are in `dtype`."""
        ...


class SplitMLP:
    """Linear layers, each followed by ReLU, and a last one to the logit, whose input's columns are of users, items or pairs.

    W x + b = (W_u x_u + b) + W_i x_i + W_p x_p: the first two terms are computed once a user and once an item.

    Args:
        hidden: holds the linear layers that ReLU follows, maybe none; other modules do nothing in evaluation.
        logit: the last layer; None ends with the hidden layers' output.
        user, item, pair: columns of the first layer's input, in the order in which the shares are given them.
        dtype: of the products over pairs. The last layer's are float32.
    """

    def __init__(
        self,
        hidden: nn.Module,
        logit: nn.Linear | None,
        user: Sequence[int],
        item: Sequence[int],
        pair: Sequence[int],
        dtype: torch.dtype,
    ) -> None:
        linears = [each for each in hidden.modules() if isinstance(each, nn.Linear)]
        first, *rest = [*linears, *([logit] if logit is not None else [])]
        self._dtype = dtype if linears else torch.float32
        self._ends_first = not linears
        weight = first.weight.detach()  # (H, K)
        self._user, self._item = weight[:, list(user)], weight[:, list(item)]
        self._pair = weight[:, list(pair)].t().contiguous().to(self._dtype)  # (K_pair, H)
        self._bias = first.bias.detach()
        hiddens = rest if logit is None or not linears else rest[:-1]
        self._hidden = [
            (each.weight.detach().t().contiguous().to(dtype), each.bias.detach().to(dtype))
            for each in hiddens
        ]
        self._last = logit if linears else None

    def user_share(self, values: Tensor) -> Tensor:
        """(R, H) of the users' columns (R, K_user) float32; holds the bias."""
        return functional.linear(values, self._user, self._bias).to(self._dtype)

    def item_share(self, values: Tensor) -> Tensor:
        """(R, H) of the items' columns (R, K_item) float32."""
        return functional.linear(values, self._item).to(self._dtype)

    def outputs(self, users: Tensor, items: Tensor, pairs: Tensor | None) -> Tensor:
        """(U, I, H) of shares (U, H) and (1|U, I, H), and the pairs' columns (U, I, K_pair), None where there are none.

        Without a logit what the last ReLU leaves, else the logits (U, I) float32.
        """
        values = users.unsqueeze(1) + items  # (U, I, H)
        many, each = values.shape[:2]
        flat = values.flatten(0, 1)
        if pairs is not None:
            flat.addmm_(pairs.reshape(many * each, -1).to(self._dtype), self._pair)
        return self._onwards(flat, many, each)

    def of_pairs(self, pairs: Tensor) -> Tensor:
        """As `outputs`, where all columns (U, I, K) are the pairs'."""
        many, each = pairs.shape[:2]
        flat = pairs.reshape(many * each, -1).to(self._dtype)
        return self._onwards(torch.addmm(self._bias.to(self._dtype), flat, self._pair), many, each)

    def _onwards(self, flat: Tensor, many: int, each: int) -> Tensor:
        """From the first layer's sums (U * I, H), which this may overwrite, to the end."""
        if self._ends_first:
            return flat.view(many, each)
        flat.relu_()
        for weight, bias in self._hidden:
            flat = torch.addmm(bias, flat, weight).relu_()
        if self._last is None:
            return flat.view(many, each, -1)
        return functional.linear(flat.float(), self._last.weight, self._last.bias).view(many, each)


def products(users: Tensor, items: Tensor) -> Tensor:
    """Dot products of every vector of a user with every one of an item: (U, I, Q * P), the user's vectors innermost.

    Args:
        users: (U, P, E).
        items: (1|U, I, Q, E).
    """
    many, own, dim = users.shape
    lists, each, theirs, _ = items.shape
    if lists == 1:  # one product of matrices for all users
        flat = items.reshape(each * theirs, dim) @ users.reshape(many * own, dim).t()
        found = flat.view(each, theirs, many, own).permute(2, 0, 1, 3)  # (U, I, Q, P)
        return found.reshape(many, each, theirs * own)
    flat, vectors = items.reshape(many, each * theirs, dim), users.transpose(1, 2)  # (U, I * Q, E), (U, E, P)
    if items.is_cuda or each < _LOOPED_ITEMS:
        found = torch.bmm(flat, vectors)  # (U, I * Q, P)
    else:
        found = torch.empty(many, each * theirs, own, dtype=items.dtype)
        for matrix, other, out in zip(flat, vectors, found, strict=True):
            torch.mm(matrix, other, out=out)
    return found.view(many, each, theirs * own)
