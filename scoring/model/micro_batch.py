"""Micro-batches: the number of rows or pairs that go through a model at once, halved when memory runs out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sized
from functools import partial
from typing import TypeVar, cast

import torch
from torch import nn

from conf.errors import InfrastructureError

log = logging.getLogger("nightrank.scoring")

Result = TypeVar("Result")

# The activations of so many rows fit a core's cache; larger batches are slower.
_CPU_ROWS = 1_024
_GPU_LEAST_ROWS, _GPU_MOST_ROWS = 8_192, 1_048_576
# A micro-batch may take 1 / 4 of a GPU's free memory: other tasks may share the GPU, and the size is an
# estimate.
_GPU_SHARE = 4

# Text of the RuntimeError that torch's CPU allocator raises when memory runs out.
_CPU_OUT_OF_MEMORY = "can't allocate memory"


class MicroBatch:
    """The number of rows that go through a model at once. It is halved when memory runs out and never raised.

    Args:
        rows: first size, at least 1.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def within_memory(self, work: Callable[[int], Result]) -> Result:
        """Returns the result of `work`, which is called again with half the rows while memory runs out.

        A repeated call starts from the beginning of its work.

        Raises:
            InfrastructureError: memory runs out with one row at once.
        """
        while True:
            try:
                return work(self.rows)
            except RuntimeError as error:
                if not isinstance(error, torch.OutOfMemoryError) and _CPU_OUT_OF_MEMORY not in str(error):
                    raise
                if self.rows == 1:
                    raise InfrastructureError(
                        f"the device's memory does not suffice to score one row at once: {error}",
                        "let fewer tasks share the device (spark.task.resource.gpu.amount, "
                        "spark.executor.cores), or give it more memory",
                    ) from error
                reason = str(error)
            # Outside of the handler, the error and the tensors that its traceback refers to are freed.
            self._halve(reason)

    def over(self, total: int, work: Callable[[slice], None]) -> None:
        """Calls `work` with consecutive slices of [0, total), none of more than `rows` rows.

        If memory runs out for a slice, `work` is called again with half of it, and the other half follows.

        Args:
            total: number of rows.
            work: is called with a slice of the rows.

        Raises:
            InfrastructureError: as `within_memory`.
        """
        start = 0
        while start < total:
            start = self.within_memory(partial(_step, work, start, total))

    def _halve(self, reason: str) -> None:
        """Halves the size, logs it, and frees cached memory of the GPU."""
        self.rows //= 2
        log.warning("out of memory on the device: %d rows at once from here on (%s)", self.rows, reason)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _step(work: Callable[[slice], None], start: int, total: int, rows: int) -> int:
    """Works on one slice; returns where the next one starts."""
    stop = min(start + rows, total)
    work(slice(start, stop))
    return stop


def default_rows(model: nn.Module, device: torch.device) -> int:
    """The first size: on a CPU what its caches hold, on a GPU what fits a quarter of its free memory."""
    if device.type != "cuda":
        return _CPU_ROWS
    free, _ = torch.cuda.mem_get_info(device)
    return rows_within(free // _GPU_SHARE, row_bytes(model))


def rows_within(free_bytes: int, bytes_a_row: int) -> int:
    """The largest power of two of rows that fits into `free_bytes`, between 8,192 and 1,048,576."""
    fitting = max(free_bytes // max(bytes_a_row, 1), 1)
    return min(max(1 << (fitting.bit_length() - 1), _GPU_LEAST_ROWS), _GPU_MOST_ROWS)


def row_bytes(model: nn.Module) -> int:
    """An estimate of the bytes of one row: inputs and outputs of all layers, and vectors of all tables."""
    return sum(_widths(model)) * 4


def _widths(model: nn.Module) -> Iterator[int]:
    """Numbers of each layer for one row."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            yield module.in_features + module.out_features
        if hasattr(module, "cardinalities"):  # an embedding table
            vectors, dim = len(cast(Sized, module.cardinalities)), cast(torch.Tensor, module.weight).shape[1]
            # The vectors, a copy of them side by side, and their dot products.
            yield 2 * vectors * dim + vectors * vectors
