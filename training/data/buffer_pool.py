"""Buffer pools: the memory of batches. A pool is filled completely, sliced into batches, and then reused."""

from __future__ import annotations

import mmap
import threading
import weakref
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Pool:
    """The rows of one rank's next S batches, L rows each, with D dense features and W columns of ids.

    Attributes:
        labels: (S, L) float32.
        weights: (S, L) float32.
        dense: (S, L, D) float32.
        categorical: (S, L, W) int32.
        memory: one int32 tensor. The other four tensors are views of this tensor, so all are copied to a
            device in one transfer.
    """

    labels: Tensor
    weights: Tensor
    dense: Tensor
    categorical: Tensor
    memory: Tensor

    @classmethod
    def of(cls, memory: Tensor, steps: int, rows: int, num_dense: int, id_width: int) -> Pool:
        """Divides `memory`, shape (S * L * (2 + D + W),) int32, into the four tensors of a pool."""
        sizes = [steps * rows * width for width in (1, 1, num_dense, id_width)]
        labels, weights, dense, categorical = memory.split(sizes)
        return cls(
            labels.view(torch.float32).view(steps, rows),
            weights.view(torch.float32).view(steps, rows),
            dense.view(torch.float32).view(steps, rows, num_dense),
            categorical.view(steps, rows, id_width),
            memory,
        )

    def to(self, device: torch.device) -> Pool:
        """Returns a copy on the device. The transfer may still be running on the current stream."""
        steps, rows, num_dense = self.dense.shape
        moved = self.memory.to(device, non_blocking=True)
        return Pool.of(moved, steps, rows, num_dense, self.categorical.shape[2])


class Pools:
    """Lends pools of one shape, and reuses a pool when no tensor refers to its memory any more.

    The consumer may therefore keep a batch for any length of time. A new pool is created only if all others
    are in use. If the consumer does not keep batches, there are three or four pools.

    Args:
        steps: number of batches in a pool.
        rows: number of rows in a batch.
        num_dense: number of dense features.
        id_width: number of columns of ids.
        pinned: whether to use pinned memory, which speeds up copies to a GPU.
    """

    def __init__(self, steps: int, rows: int, num_dense: int, id_width: int, *, pinned: bool) -> None:
        self.created = 0
        self.steps = steps
        self.rows = rows
        self._shape = (steps, rows, num_dense, id_width)
        self._pinned = pinned
        self._free: list[NDArray[np.int32]] = []
        self._lock = threading.Lock()

    @property
    def pool_bytes(self) -> int:
        """Returns the size of one pool in bytes."""
        *_, num_dense, id_width = self._shape
        return 4 * self.steps * self.rows * (2 + num_dense + id_width)

    def take(self) -> Pool:
        """Returns a pool with undefined content."""
        with self._lock:
            memory = self._free.pop() if self._free else None
        if memory is None:
            memory = self._create()
            self.created += 1
        # All views of a tensor hold a reference to its array. So the array is finalized when the last view is
        # gone.
        lent = memory[:]
        weakref.finalize(lent, self._return, memory).atexit = False
        return Pool.of(torch.from_numpy(lent), *self._shape)

    def _create(self) -> NDArray[np.int32]:
        if self._pinned:
            return torch.empty(self.pool_bytes // 4, dtype=torch.int32, pin_memory=True).numpy()
        # Use huge pages if the system has them, because rows are written to random places of a pool.
        pages = mmap.mmap(-1, max(self.pool_bytes, 1))
        if hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(pages, dtype=np.int32, count=self.pool_bytes // 4)

    def _return(self, memory: NDArray[np.int32]) -> None:
        with self._lock:
            self._free.append(memory)
