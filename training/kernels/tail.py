"""Describes the rows of a table that are in host memory. Kernels read and write them there."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Tail:
    """The rows of a matrix that are not in the device's memory.

    Attributes:
        rows: (T, E), in host memory that is pinned if the device is a GPU.
        first: the index of the first of these rows in the matrix. All earlier rows are on the
            device.
        accumulator: (T,) float32, the state of row-wise Adagrad of these rows; None for lookups and for SGD.
    """

    rows: Tensor
    first: int
    accumulator: Tensor | None = None
