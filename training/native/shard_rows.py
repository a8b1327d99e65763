"""The rows of a rank's shards that one buffer pool contains, and the memory to which they are written.

Notation: S batches of a pool, L rows of this rank in a batch, D dense features, W columns of ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

KindOfColumns = TypeVar("KindOfColumns")


@dataclass(frozen=True)
class RangeRows(Generic[KindOfColumns]):
    """Neighbouring rows in the order of a piece, which is a range of rows of a row group.

    Attributes:
        columns: the columns of the row group: the label, the dense features, and the ids.
        first: the row of the row group where the piece begins.
        blocks: the order in which the piece's blocks of BLOCK_ROWS rows are read; None keeps their order.
        rows: the rows, as positions in the order that results from `blocks`.
    """

    columns: tuple[KindOfColumns, ...]
    first: int
    blocks: NDArray[np.int64] | None
    rows: range


@dataclass(frozen=True)
class ShardRows(Generic[KindOfColumns]):
    """The rows of one shard.

    Attributes:
        ranges: the rows, one range after the other.
        order: (rows,), a permutation: the shard's n-th row of the pool is row `order[n]` of the ranges. None
            keeps the order of the ranges.
        first: the row of a batch where the shard's rows begin.
    """

    ranges: Sequence[RangeRows[KindOfColumns]]
    order: NDArray[np.int64] | None
    first: int

    @property
    def num_rows(self) -> int:
        """Returns the number of rows."""
        return sum(len(rows.rows) for rows in self.ranges)


@dataclass(frozen=True)
class PoolMemory:
    """The arrays of a pool.

    Attributes:
        targets: the labels (S * L, 1) float32, the dense features (S * L, D) float32, and the ids (S * L, W)
            int32. A matrix without columns has the shape (S * L, 0).
        weights: (S * L,) float32.
        steps: S.
        shard_rows: number of rows of each shard in a batch.
        batch_rows: L.
    """

    targets: Sequence[NDArray[Any]]
    weights: NDArray[np.float32]
    steps: int
    shard_rows: int
    batch_rows: int
