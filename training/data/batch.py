"""A batch of rows, and its transfer to a device."""

from __future__ import annotations

import mmap
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.collectives import Collectives
from training.device import side_stream
from training.models.click_model import Bags

# Buffer pools contain the rows of batches. A pool is filled completely, sliced into batches, and then reused.


@dataclass(frozen=True)
class Pool:
    """The rows of one rank's next S batches. A batch has L rows, D dense features and W columns of ids.

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
        """Returns a copy on the device. The transfer may still run on the current stream."""
        steps, rows, num_dense = self.dense.shape
        moved = self.memory.to(device, non_blocking=True)
        return Pool.of(moved, steps, rows, num_dense, self.categorical.shape[2])


class Pools:
    """Provides pools of one shape, and reuses a pool when no tensor refers to its memory any more.

    The consumer may therefore keep a batch for any length of time. A new pool is created only if all other
    pools are in use. If the consumer does not keep batches, there are three or four pools.

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
        # All views of a tensor hold a reference to the tensor's NumPy array. So Python finalizes the array
        # when the last view has been deleted.
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


# Some losses compare the user vector of a positive row with vectors of items. The following classes hold
# these items.
#
# Notation: I items, P positive rows, D dense features, W columns of ids. Rows of items have zeros in the
# columns of features that do not have the scope `item`.


@dataclass(frozen=True)
class CatalogueItems:
    """For each train day, the items of the rows of that day. A loss compares a row with its day's items.

    Attributes:
        dense: (I, D) float32, the features of the items on their day.
        categorical: (I, W) int32.
        starts: the position of the first item of each day, followed by I.
        own: (P,) int64, for each positive row, the position (0 to I - 1) of the row's item on the row's day.
    """

    dense: Tensor
    categorical: Tensor
    starts: Sequence[int]
    own: Tensor


@dataclass(frozen=True)
class BatchItems:
    """The items of this rank's positive rows. I equals P: item p is the item of row p.

    Attributes:
        dense: (P, D) float32, the features of the items on the day of the row.
        categorical: (P, W) int32.
        keys: (P,) int64, hashes of item keys.
        log_shares: (P,) float32, the logarithm of the item's share of all positive train rows.
    """

    dense: Tensor
    categorical: Tensor
    keys: Tensor
    log_shares: Tensor


@dataclass(frozen=True)
class DrawnItems:
    """The items of this rank's positive rows, followed by the distinct items of their drawn negatives.

    Attributes:
        dense: (I, D) float32, the features of the items. An item of a row has the features of this row; a
            drawn item has its features on the day of the row for which it was drawn.
        categorical: (I, W) int32.
        index: (P, G) int64, for each positive row, the position of its item and of its G - 1 negatives.
    """

    dense: Tensor
    categorical: Tensor
    index: Tensor


ComparedItems = CatalogueItems | BatchItems | DrawnItems


@dataclass(frozen=True)
class Vectors:
    """The vectors that a loss over item vectors compares.

    The logit of a user and an item is the dot product of their vectors. A constant bias of the model is the
    same for all items, so it does not change the loss.

    Attributes:
        users: (P, E) float32, the vectors of the users of this rank's positive rows.
        items: (I, E) float32, the vectors of the items of `compared`.
        compared: the items.
        collectives: the ranks' collectives. A loss that calls collectives must be computed on all ranks, and
            all ranks must run its backward pass.
        bags: for a loss that compares rows with the catalogue, further target items of each row in addition
            to the row's item; None if rows have no further targets.
    """

    users: Tensor
    items: Tensor
    compared: ComparedItems
    collectives: Collectives
    bags: Bags | None = None

    @property
    def catalogue(self) -> CatalogueItems:
        """Returns the compared items, for a loss that compares rows with the items of the catalogue."""
        assert isinstance(self.compared, CatalogueItems)
        return self.compared

    @property
    def of_batch(self) -> BatchItems:
        """Returns the compared items, for a loss that compares rows with the items of the same step."""
        assert isinstance(self.compared, BatchItems)
        return self.compared


@dataclass(frozen=True)
class Batch:
    """One rank's share of a global batch: L rows, D dense features, W columns of ids.

    Do not change the tensors, because several batches may share their memory.

    A batch with drawn negatives (training/data/negative_sampler.py) consists of groups of G rows: a positive
    row, then its G - 1 negatives. In any other batch G is 1. With `DrawnItems`, `dense` and `categorical`
    have only the positive rows.

    Attributes:
        dense: (L, D) float32.
        categorical: (L, W) int32 ids; training/models/inputs.py defines their columns.
        labels: (L,) float32, 0 or 1.
        weights: (L,) float32, 0 for padding. Other rows have the weight 1, or their weight in the feature
            table (FeatureSpec.weight).
        global_weight: number of rows in the global batch, without padding; equal on all ranks. With drawn
            negatives or `items`, only positive rows count: the value is the expected number of positive rows,
            or the expected sum of their weights if rows have weights. In other batches whose rows have
            weights, `Trainer` replaces this value by the sum of the weights, a scalar tensor.
        ready: a stream must wait for this CUDA event before it reads the tensors. If it is None, the tensors
            can be read without waiting.
        row_keys: (L, 7) int32, the columns of row_keys.py; None if the loader does not read them.
        epoch: number of the epoch, from 0.
        group: G.
        log_draw: (L,) float32, the logarithm of the probability with which the row's item is drawn; None
            without drawn negatives.
        items: the items with which positive rows are compared (training/data/item_comparison.py); None for a
            loss that compares logits. If there are items, all rows are positive.
        shard_rows: number of rows of each shard of this rank; None if all shards have the same number of
            rows.
        weighted: True if rows have weights from the feature table, and `Trainer` has not yet replaced
            `global_weight` by their sum.
        drawn_weight: the expected sum of the weights of drawn negatives in the global batch; None if it is
            `global_weight` times G - 1.
    """

    dense: Tensor
    categorical: Tensor
    labels: Tensor
    weights: Tensor
    global_weight: float | Tensor
    ready: torch.cuda.Event | None = None
    row_keys: Tensor | None = None
    epoch: int = 0
    group: int = 1
    log_draw: Tensor | None = None
    items: ComparedItems | None = None
    shard_rows: Sequence[int] | None = None
    weighted: bool = False
    drawn_weight: float | None = None

    def to(self, device: torch.device) -> Batch:
        """Returns the batch on a device, ready for use on the device's current stream."""
        tensors = {
            name: value.to(device)
            for name in ("dense", "categorical", "labels", "weights", "row_keys")
            if (value := getattr(self, name)) is not None
        }
        if self.ready is not None:
            stream = torch.cuda.current_stream(device)
            stream.wait_event(self.ready)
            for tensor in tensors.values():
                tensor.record_stream(stream)  # torch then waits for this stream before it reuses the memory
        return replace(self, **tensors, ready=None)


class RowsOfStep(Protocol):
    """Selects the rows of a step from a batch of the loader, and adds the items that the loss needs."""

    def expand(self, batch: Batch) -> Batch:
        """Returns the rows of the step.

        Args:
            batch: this rank's rows on the device of the training, shard after shard, with `row_keys`.
        """
        ...


class Transfer:
    """Copies pools to a GPU on a separate stream, while the GPU computes with earlier batches.

    On a CPU, pools are not copied.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = side_stream(device, "loader")
        self._copying: deque[tuple[torch.cuda.Event, Pool]] = deque()

    def __enter__(self) -> Transfer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.synchronize()  # holds each pool in host memory until its copy has ended
        self._copying.clear()

    def copy(self, pool: Pool) -> tuple[Pool, torch.cuda.Event | None]:
        """Returns the pool on the device and the event that marks the end of the copy.

        The pool in host memory is kept until the copy has ended.
        """
        if self._stream is None:
            return pool, None
        while self._copying and self._copying[0][0].query():
            self._copying.popleft()
        with torch.cuda.stream(self._stream):
            moved = pool.to(self._device)
            event = torch.cuda.Event()
            event.record(self._stream)
        self._copying.append((event, pool))
        return moved, event
