"""The memory that batches are cut from: a few pools, each written as a whole and then sliced, used again and again."""

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
    """Rows in the order of the batches: S steps of L rows, D dense features, W columns of ids.

    Attributes:
        labels, weights, dense, categorical: (S, L), (S, L), (S, L, D) float32 and (S, L, W) int32: views of one piece of
            memory.
        memory: all of it, as one tensor of int32: what is copied to a device.
    """

    labels: Tensor
    weights: Tensor
    dense: Tensor
    categorical: Tensor
    memory: Tensor

    @classmethod
    def of(cls, memory: Tensor, steps: int, rows: int, num_dense: int, id_width: int) -> Pool:
        """Cuts (S * L * (2 + D + W),) int32 into the four tensors."""
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
        """A copy on the device: one transfer, which the current stream may still be making."""
        steps, rows, num_dense = self.dense.shape
        moved = self.memory.to(device, non_blocking=True)
        return Pool.of(moved, steps, rows, num_dense, self.categorical.shape[2])


class Pools:
    """Lends pools of one shape, and lends one again when nothing refers to any tensor cut from it.

    So a batch may be kept as long as anyone likes. There are as many pools as are in use at once: with a consumer that
    lets go of its batches three or four.

    Args:
        pinned: whether a GPU copies from them: memory that is never paged out.
    """

    def __init__(self, steps: int, rows: int, num_dense: int, id_width: int, *, pinned: bool) -> None:
        self.made = 0
        self.steps = steps
        self.rows = rows
        self._shape = (steps, rows, num_dense, id_width)
        self._pinned = pinned
        self._free: list[NDArray[np.int32]] = []
        self._lock = threading.Lock()

    @property
    def pool_bytes(self) -> int:
        *_, num_dense, id_width = self._shape
        return 4 * self.steps * self.rows * (2 + num_dense + id_width)

    def take(self) -> Pool:
        """A pool whose content is undefined."""
        with self._lock:
            memory = self._free.pop() if self._free else None
        if memory is None:
            memory = self._make()
            self.made += 1
        # A tensor and all tensors cut from it hold the array it was made of, so the array's end is theirs.
        lent = memory[:]
        weakref.finalize(lent, self._give_back, memory).atexit = False
        return Pool.of(torch.from_numpy(lent), *self._shape)

    def _make(self) -> NDArray[np.int32]:
        if self._pinned:
            return torch.empty(self.pool_bytes // 4, dtype=torch.int32, pin_memory=True).numpy()
        # Of huge pages, where the system gives them: rows go to places all over a pool.
        pages = mmap.mmap(-1, max(self.pool_bytes, 1))
        if hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(pages, dtype=np.int32, count=self.pool_bytes // 4)

    def _give_back(self, memory: NDArray[np.int32]) -> None:
        with self._lock:
            self._free.append(memory)
