"""The compiled logits of pairs (pair_logits.cpp). training/models/shared_items.py calls it.

Notation: U users of a block, I items, H outputs of the top MLP's first layer, H' outputs of the bottom MLP's
first layer, E outputs of the bottom MLP. All tensors are on the CPU; all but `numbers` are float32.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from training.native.library import BEST, address, required_library


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


@dataclass(frozen=True)
class ItemInputs:
    """The inputs that do not depend on the user.

    Attributes:
        share: (I, H) the items' share of the top MLP's first layer.
        numbers: (I, F) int64, for each item and each vector with few values, the row of the vector's value in
            `UserBlock.table`.
        vectors: (I, K) the elements of all other vectors.
        bottom_share: (I, H') the items' share of the bottom MLP's first layer; None if there is no bottom
            MLP.
        bottom: (I, E, H) the items' factors of the outputs of the bottom MLP.
    """

    share: Tensor
    numbers: Tensor | None
    vectors: Tensor | None
    bottom_share: Tensor | None
    bottom: Tensor | None


@dataclass(frozen=True)
class UserBlock:
    """The inputs that depend on the users of a block.

    Attributes:
        share: (U, H) the users' share of the top MLP's first layer.
        table: (values, U * H), for the item vectors with few values, the term that each value adds to the
            first layer.
        matrix: (K, U * H) the factors of the elements of `ItemInputs.vectors`.
        bottom_share: (U, H') the users' share of the bottom MLP's first layer.
        bottom: (U, E, H) the users' factors of the outputs of the bottom MLP.
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
            raise ValueError(f"internal error, please report: logits of the shape {tuple(logits.shape)}")
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
    """Applies `change` to each tensor of a group, and returns the new group. None stays None."""
    changed: dict[str, Any] = {
        name: None if value is None else change(value) for name, value in vars(group).items()
    }
    return replace(group, **changed)


def _contiguous(mlp: LayersAfterFirst) -> LayersAfterFirst:
    """Returns the layers with tensors whose elements are adjacent."""
    layers = [_each(layer, Tensor.contiguous) for layer in mlp.layers]
    return LayersAfterFirst(None if mlp.slopes is None else mlp.slopes.contiguous(), layers)


def _layers(mlp: LayersAfterFirst) -> ctypes.Array[_Layer]:
    """Returns layers for the library, which are valid as long as `mlp` exists."""
    return (_Layer * len(mlp.layers))(
        *(
            _Layer(*layer.weight.shape, address(layer.weight), address(layer.bias), address(layer.slopes))
            for layer in mlp.layers
        )
    )


def _width(values: Tensor | None) -> int:
    return 0 if values is None else values.shape[1]
