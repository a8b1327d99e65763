"""A batch of rows, and its transfer to a device."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from training.data.buffer_pool import Pool
from training.data.compared_items import ComparedItems


@dataclass(frozen=True)
class Batch:
    """One rank's share of a global batch: L rows, D dense features, W columns of ids.

    Do not change the tensors, because several batches may share their memory.

    A batch with drawn negatives (training/data/negative_sampler.py) consists of groups of G rows: a positive
    row, then its G - 1 negatives. In any other batch G is 1.

    Attributes:
        dense: (L, D) float32.
        categorical: (L, W) int32 ids; training/models/inputs.py defines their columns.
        labels: (L,) float32, 0 or 1.
        weights: (L,) float32, 0 for padding. A row has the weight 1, or that of the feature table
            (FeatureSpec.weight).
        global_weight: number of rows in the global batch, without padding; equal on all ranks. With drawn
            negatives or `items`, the expected number of positive rows. If rows have weights, it is the sum
            of the weights in both cases, once `Trainer` has the rows of the step: a scalar tensor in the
            first case.
        ready: the CUDA event that a stream must wait for before it reads the tensors; None if the tensors can
            be read at once.
        row_keys: (L, 7) int32, the columns of row_keys.py; None if the loader does not read them.
        epoch: number of the epoch, from 0.
        group: G.
        log_draw: (L,) float32, the logarithm of the probability with which the row's item is drawn; None
            without drawn negatives.
        items: the items with which positive rows are compared (training/data/item_comparison.py); None for a
            loss of logits. With them, all rows are positive.
        shard_rows: number of rows of each shard of this rank; None if all shards have equally many rows.
        weighted: whether rows have weights of the feature table, and `global_weight` is still the number of
            rows.
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
                tensor.record_stream(stream)  # torch reuses its memory only after this stream's work
        return replace(self, **tensors, ready=None)


class RowsOfStep(Protocol):
    """Selects the rows of a step from a batch of the loader, and adds what the loss compares them with."""

    def expand(self, batch: Batch) -> Batch:
        """Returns the rows of the step.

        Args:
            batch: this rank's rows on the device of the training, shard after shard, with `row_keys`.
        """
        ...


class Transfer:
    """Copies pools to a GPU on a separate stream, while the GPU computes with earlier batches.

    On a CPU it copies nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._copying: deque[tuple[torch.cuda.Event, Pool]] = deque()

    def __enter__(self) -> Transfer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.synchronize()  # the pools must outlive their copies
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
