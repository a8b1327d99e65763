"""Scores one set of many items for all users of a block, for models with dot products of vectors.

For one user, the first layer of the top MLP is linear in each vector of an item, because the user's vectors
are constants. So the dot products of pairs are not computed. Instead, the product of the user's vectors and
the layer's weights is computed once per user. This product is a matrix, and each item's vector is multiplied
by it. Two kinds of vectors need even less work:

* A vector that is equal in all items, such as the vector of a context feature, is multiplied once per user.
* If a feature of the items has few distinct values, only the vectors of these values are multiplied by the
  matrix of the user. These products are stored in a table, from which the products of each item's values are
  read and added up.

`PairLogits` computes all layers from these products to the logits, by a compiled function
(training/native/pair_logits.cpp). If the library is missing, torch computes these layers, which takes longer.

Notation: U users, I items, E elements of a vector, P vectors of a user, Q vectors of an item, H outputs of
the first layer of the top MLP, H' outputs of the first layer of the bottom MLP. The bottom MLP has E outputs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from training.models.factorization import DenseLayer, FactorizedMLP, LayersAfterFirst, Part
from training.native.library import BEST, address, library, required_library

# An item vector has few values if the number of its distinct values is at most this share of the items.
_FEW_VALUES_SHARE = 0.25
# Number of items for which the first layer's outputs are in memory at the same time.
_TILE_ITEMS = 1024
# Number of users per block. The matrices of these users fit into a core's cache, together with the outputs
# of the first layer for a tile of items.
_BLOCK_USERS = 24


class SharedItems:
    """Items that all users share. Logits can be computed for all of these items, or for a range of them.

    Args:
        top: the top MLP. Its input columns that depend on both sides are first the Q * P dot products of an
            item vector with a user vector, ordered by item vector, then by user vector. With `bottom`, E
            columns with the bottom MLP's output follow, then its P dot products with user vectors, then its Q
            dot products with item vectors.
        bottom: the bottom MLP if both sides have dense features; its output is a vector of the pair.
        items: the parts of the items. The first tensor (I, H) has their terms in the top MLP's first layer.
            The second (I, Q, E) has their vectors. With `bottom`, a third (I, H') has their terms in the
            bottom MLP's first layer.
        user_vectors: P.
    """

    def __init__(
        self, top: FactorizedMLP, bottom: FactorizedMLP | None, items: Part, user_vectors: int
    ) -> None:
        self._top, self._bottom, self._items = top, bottom, items
        vectors, weights = items[1], top.pair_weights
        number, dim = vectors.shape[1:]
        dots = number * user_vectors
        self._weights = weights[:dots].view(number, user_vectors, -1)  # (Q, P, H)
        self._divide(vectors)
        if bottom is not None:
            itself, of_users, of_items = weights[dots:].split([dim, user_vectors, number])
            self._bottom_weights, self._bottom_users = itself, of_users
            # For each item, the matrix by which the bottom MLP's output is multiplied, (I, E, H).
            self._bottom_items = torch.einsum("qh,iqe->ieh", of_items, vectors).contiguous()
        self._compiled_logits = self._compiled()

    @staticmethod
    def bytes_of(items: Part, hidden: int, *, mixed: bool) -> int:
        """Returns the additional memory, in bytes, that an object of this class needs besides `items`.

        `hidden` is the number of outputs of the top MLP's first layer. `mixed` says whether there is a bottom
        MLP.
        """
        vectors = items[1]
        return vectors.nelement() * 4 + (len(vectors) * vectors.shape[2] * hidden * 4 if mixed else 0)

    def _divide(self, vectors: Tensor) -> None:
        """Sorts the Q item vectors into three groups: those with one, few, or many distinct values."""
        self._equal: list[int] = []
        self._few: list[tuple[int, Tensor]] = []  # pairs of a vector's index and its distinct values
        self._many: list[int] = []
        numbers, start = [], 0
        for column in range(vectors.shape[1]):
            of_items = vectors[:, column].contiguous()
            values, number = _distinct(of_items)
            if len(values) == 1:
                self._equal.append(column)
            elif len(values) <= _FEW_VALUES_SHARE * len(of_items):
                self._few.append((column, values))
                numbers.append(number + start)
                start += len(values)
            else:
                self._many.append(column)
        self._numbers = torch.stack(numbers, 1) if numbers else None  # (I, item vectors with few values)
        # The elements of the item vectors with many values, concatenated: (I, vectors * E).
        self._values = vectors[:, self._many].flatten(1) if self._many else None

    def _compiled(self) -> PairLogits | None:
        """Returns the compiled computation of logits; None if the library is missing."""
        if library() is None:
            return None
        bottom = self._bottom
        items = ItemInputs(
            self._items[0],
            self._numbers,
            self._values,
            None if bottom is None else self._items[2],
            None if bottom is None else self._bottom_items,
        )
        return PairLogits(items, self._top.after, None if bottom is None else bottom.after)

    def logits(self, users: Part, items: slice) -> Tensor:
        """Returns the logit of each user for each item of a range, as float32 (U, I).

        Args:
            users: the parts of the users: (U, H), (U, P, E), and with a bottom MLP (U, H').
            items: the range of items.
        """
        logits = torch.empty(len(users[0]), items.stop - items.start)
        fill = self._fill if self._compiled_logits is None else self._compiled_logits.fill
        for first in range(0, len(users[0]), _BLOCK_USERS):
            block = slice(first, min(first + _BLOCK_USERS, len(users[0])))
            fill(logits[block], self._block_of(tuple(part[block] for part in users)), items)
        return logits

    def _block_of(self, users: Part) -> UserBlock:
        """Returns what a block of users contributes to the logits of all items; see `UserBlock`."""
        share, vectors = users[0], users[1]
        if self._equal:
            same = self._items[1][0, self._equal]  # (columns, E)
            dots = torch.einsum("qe,upe->uqp", same, vectors).flatten(1)
            share = share + dots @ self._weights[self._equal].flatten(0, 1)
        few = [self._of_vector(column, vectors, values) for column, values in self._few]
        many = [self._matrix(column, vectors) for column in self._many]
        bottom = None
        if self._bottom is not None:
            bottom = torch.einsum("ph,upe->ueh", self._bottom_users, vectors) + self._bottom_weights
        return UserBlock(
            share,
            torch.cat(few) if few else None,
            torch.cat(many) if many else None,
            None if self._bottom is None else users[2],
            bottom,
        )

    def _fill(self, logits: Tensor, block: UserBlock, items: slice) -> None:
        """Writes the logits of a block of users into `logits` (U, I), like `PairLogits.fill`."""
        share = block.share
        for first in range(items.start, items.stop, _TILE_ITEMS):
            tile = slice(first, min(first + _TILE_ITEMS, items.stop))
            count = tile.stop - tile.start
            if block.table is not None and self._numbers is not None:
                sums = functional.embedding_bag(self._numbers[tile], block.table, mode="sum")
            else:
                sums = share.new_zeros(count, share.nelement())
            if block.matrix is not None and self._values is not None:
                sums.addmm_(self._values[tile], block.matrix)
            hidden = sums.view(count, *share.shape)  # (I, U, H)
            hidden += self._items[0][tile].unsqueeze(1)
            hidden += share
            if block.bottom is not None and block.bottom_share is not None and self._bottom is not None:
                users = block.bottom_share.unsqueeze(0)
                bottom = self._bottom.outputs(self._items[2][tile], users, None)  # (I, U, E)
                hidden.baddbmm_(bottom, self._bottom_items[tile])
                hidden.transpose(0, 1).baddbmm_(bottom.transpose(0, 1), block.bottom)
            of_tile = self._top.after_first(hidden.flatten(0, 1), count, len(share))
            logits[:, tile.start - items.start : tile.stop - items.start] = of_tile.t()

    def _matrix(self, column: int, vectors: Tensor) -> Tensor:
        """Returns each user's matrix by which an item vector is multiplied in the first layer, (E, U * H)."""
        weights = self._weights[column]  # (P, H)
        return torch.einsum("ph,upe->euh", weights, vectors).flatten(1)

    def _of_vector(self, column: int, vectors: Tensor, values: Tensor) -> Tensor:
        """Returns the terms that values of an item vector add to each user's first layer, (values, U * H)."""
        return values @ self._matrix(column, vectors)


def _distinct(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the distinct rows of vectors (I, E), and for each row the number of its value, (I,).

    To save time, the function compares only one number per row: the sum of the row's elements, multiplied by
    random weights. If two different rows have the same sum, which is unlikely, all rows count as distinct.
    """
    draw = torch.Generator().manual_seed(0)
    weights = torch.rand(vectors.shape[1], generator=draw, dtype=torch.float64)
    sums, number = torch.unique(vectors.double() @ weights, return_inverse=True)
    place = torch.empty(len(sums), dtype=torch.int64)
    place[number] = torch.arange(len(vectors))
    values = vectors[place]
    if not torch.equal(values[number], vectors):
        return vectors, torch.arange(len(vectors))
    return values, number


# The code below computes logits by a compiled function (training/native/pair_logits.cpp). All tensors are on
# the CPU, and all but `numbers` are float32.


@dataclass(frozen=True)
class ItemInputs:
    """The inputs of `PairLogits` that do not depend on the user.

    Attributes:
        share: (I, H), the terms that the items add to the top MLP's first layer.
        numbers: (I, F) int64, for each item and each vector with few values, the row of the vector's value in
            `UserBlock.table`.
        vectors: (I, K) the elements of all other vectors.
        bottom_share: (I, H'), the terms that the items add to the bottom MLP's first layer; None if there is
            no bottom MLP.
        bottom: (I, E, H), for each item, a matrix. Multiplied by the outputs of the bottom MLP, it gives the
            item's term in the top MLP's first layer.
    """

    share: Tensor
    numbers: Tensor | None
    vectors: Tensor | None
    bottom_share: Tensor | None
    bottom: Tensor | None


@dataclass(frozen=True)
class UserBlock:
    """The inputs of `PairLogits` that depend on the users of a block.

    Attributes:
        share: (U, H), the terms that the users add to the top MLP's first layer.
        table: (values, U * H), for the item vectors with few values, the term that each value adds to the
            first layer.
        matrix: (K, U * H), the matrix by which `ItemInputs.vectors` is multiplied.
        bottom_share: (U, H'), the terms that the users add to the bottom MLP's first layer.
        bottom: (U, E, H), for each user, a matrix that is used like that of an item in `ItemInputs.bottom`.
    """

    share: Tensor
    table: Tensor | None
    matrix: Tensor | None
    bottom_share: Tensor | None
    bottom: Tensor | None


Group = TypeVar("Group", DenseLayer, ItemInputs, UserBlock)


class _Layer(ctypes.Structure):
    _fields_ = (
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("slopes", ctypes.c_void_p),
    )


class _Problem(ctypes.Structure):
    _fields_ = (
        ("users", ctypes.c_int64),
        ("items", ctypes.c_int64),
        ("hidden", ctypes.c_int64),
        ("share", ctypes.c_void_p),
        ("item_share", ctypes.c_void_p),
        ("few", ctypes.c_int64),
        ("numbers", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("many", ctypes.c_int64),
        ("vectors", ctypes.c_void_p),
        ("matrix", ctypes.c_void_p),
        ("first", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("bottom_share", ctypes.c_void_p),
        ("bottom_item_share", ctypes.c_void_p),
        ("bottom_items", ctypes.c_void_p),
        ("bottom_users", ctypes.c_void_p),
        ("bottom_slopes", ctypes.c_void_p),
        ("bottom_layers", ctypes.c_int64),
        ("bottom", ctypes.POINTER(_Layer)),
        ("top_slopes", ctypes.c_void_p),
        ("top_layers", ctypes.c_int64),
        ("top", ctypes.POINTER(_Layer)),
    )


class PairLogits:
    """Computes the logit of each user of a block for each item of a range.

    Args:
        items: the inputs of all items.
        top, bottom: the layers of the MLPs. `bottom` is None if there is no bottom MLP.
        instructions: the CPU instruction set; BEST selects the best one of this processor.
    """

    def __init__(
        self,
        items: ItemInputs,
        top: LayersAfterFirst,
        bottom: LayersAfterFirst | None,
        instructions: int = BEST,
    ) -> None:
        self._items = _each(items, Tensor.contiguous)
        self._top, self._bottom = _contiguous(top), None if bottom is None else _contiguous(bottom)
        self._top_layers = _layers(self._top)
        self._bottom_layers = None if self._bottom is None else _layers(self._bottom)
        self._instructions = instructions

    def fill(self, logits: Tensor, block: UserBlock, items: slice) -> None:
        """Writes the logit of each user of a block for each item of a range into `logits` (U, I).

        Raises:
            MemoryError: memory ran out.
            ValueError: `logits` has another shape.
        """
        own = _each(self._items, lambda tensor: tensor[items])
        users = _each(block, Tensor.contiguous)
        if logits.shape != (len(users.share), len(own.share)) or logits.stride(1) != 1:
            raise ValueError(f"internal error, please report: bad logits of the shape {tuple(logits.shape)}")
        problem = _Problem(
            users=len(users.share),
            items=len(own.share),
            hidden=users.share.shape[1],
            share=address(users.share),
            item_share=address(own.share),
            few=_width(own.numbers),
            numbers=address(own.numbers, torch.int64),
            table=address(users.table),
            many=_width(own.vectors),
            vectors=address(own.vectors),
            matrix=address(users.matrix),
            first=_width(users.bottom_share),
            dim=_width(users.bottom),
            bottom_share=address(users.bottom_share),
            bottom_item_share=address(own.bottom_share),
            bottom_items=address(own.bottom),
            bottom_users=address(users.bottom),
            bottom_slopes=address(self._bottom.slopes) if self._bottom else None,
            bottom_layers=len(self._bottom.layers) if self._bottom else 0,
            bottom=self._bottom_layers,
            top_slopes=address(self._top.slopes),
            top_layers=len(self._top.layers),
            top=self._top_layers,
        )
        failed = required_library().nightrank_pair_logits(
            ctypes.byref(problem), address(logits), logits.stride(0), self._instructions
        )
        if failed:
            raise MemoryError


def _each(group: Group, change: Callable[[Tensor], Tensor]) -> Group:
    """Returns a copy of a dataclass object with `change` applied to each tensor. None stays None."""
    changed: dict[str, Any] = {
        name: None if value is None else change(value) for name, value in vars(group).items()
    }
    return replace(group, **changed)


def _contiguous(mlp: LayersAfterFirst) -> LayersAfterFirst:
    """Returns the layers with contiguous tensors."""
    layers = [_each(layer, Tensor.contiguous) for layer in mlp.layers]
    return LayersAfterFirst(None if mlp.slopes is None else mlp.slopes.contiguous(), layers)


def _layers(mlp: LayersAfterFirst) -> ctypes.Array[_Layer]:
    """Returns the layers as C structures for compiled code, which are valid as long as `mlp` exists."""
    return (_Layer * len(mlp.layers))(
        *(
            _Layer(*layer.weight.shape, address(layer.weight), address(layer.bias), address(layer.slopes))
            for layer in mlp.layers
        )
    )


def _width(values: Tensor | None) -> int:
    return 0 if values is None else values.shape[1]
