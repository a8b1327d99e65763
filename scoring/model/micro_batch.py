"""Micro-batches: a micro-batch is the group of rows or pairs that go through a model in one call.

Its size is halved when the device's memory runs out.
"""

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

# The activations of this many rows fit into a core's cache. Larger batches are slower.
_CPU_ROWS = 1_024
_GPU_LEAST_ROWS, _GPU_MOST_ROWS = 8_192, 1_048_576
# A micro-batch may take 1 / 4 of a GPU's free memory, because other tasks may share the GPU, and because the
# size of a row is an estimate.
_GPU_SHARE = 4

# Part of the message of the RuntimeError that torch raises when the CPU's memory runs out.
_CPU_OUT_OF_MEMORY = "can't allocate memory"


class MicroBatch:
    """The size of a micro-batch: how many rows go through a model in one call.

    The size is halved when the device's memory runs out. It is never increased.

    Args:
        rows: initial number of rows, at least 1.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def within_memory(self, work: Callable[[int], Result]) -> Result:
        """Calls `work` with the number of rows of a micro-batch, and returns its result.

        If memory runs out, this method halves the number of rows and calls `work` again. The repeated call
        must do the complete work again.

        Raises:
            InfrastructureError: memory runs out even with one row at a time.
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
            # Halve here, after the `except` block: by now the error, and the tensors that its traceback
            # refers to, are freed.
            self._halve(reason)

    def over(self, total: int, work: Callable[[slice], None]) -> None:
        """Calls `work` with consecutive slices of [0, total). Each slice has at most `self.rows` rows.

        If memory runs out for a slice, `work` is called again with a smaller slice that has the same start.

        Args:
            total: number of rows.
            work: function that processes the rows of one slice.

        Raises:
            InfrastructureError: memory runs out even with one row at a time.
        """
        start = 0
        while start < total:
            start = self.within_memory(partial(_step, work, start, total))

    def _halve(self, reason: str) -> None:
        """Halves the number of rows, logs a warning, and frees the GPU memory that torch has cached."""
        self.rows //= 2
        log.warning("out of memory on the device: from now on, %d rows at a time (%s)", self.rows, reason)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _step(work: Callable[[slice], None], start: int, total: int, rows: int) -> int:
    """Calls `work` with the slice that begins at `start`, and returns the start of the next slice."""
    stop = min(start + rows, total)
    work(slice(start, stop))
    return stop


def default_rows(model: nn.Module, device: torch.device) -> int:
    """Returns the initial number of rows of a micro-batch.

    On a CPU, the number is constant: the activations of so many rows fit into the cache of a core. On a GPU,
    the number of rows is chosen so that the rows fit into 1/4 of the free memory.
    """
    if device.type != "cuda":
        return _CPU_ROWS
    free, _ = torch.cuda.mem_get_info(device)
    return rows_within(free // _GPU_SHARE, row_bytes(model))


def rows_within(free_bytes: int, bytes_a_row: int) -> int:
    """Returns the number of rows that fit into `free_bytes`, rounded down to a power of two.

    The result is at least 8,192 and at most 1,048,576.
    """
    fitting = max(free_bytes // max(bytes_a_row, 1), 1)
    return min(max(1 << (fitting.bit_length() - 1), _GPU_LEAST_ROWS), _GPU_MOST_ROWS)


def row_bytes(model: nn.Module) -> int:
    """Estimates how many bytes of memory one row needs.

    The estimate counts the inputs and outputs of all linear layers, and the embedding vectors.
    """
    return sum(_widths(model)) * 4


def _widths(model: nn.Module) -> Iterator[int]:
    """Yields the number of float32 values that one row needs in a layer.

    There is one number for each linear layer and each embedding table. A module with the attribute
    `calls_per_row` computes its layers so many times for one row.
    """
    calls = {
        inner: cast(int, module.calls_per_row)
        for module in model.modules()
        if hasattr(module, "calls_per_row")
        for inner in module.modules()
    }
    for module in model.modules():
        if isinstance(module, nn.Linear):
            yield (module.in_features + module.out_features) * calls.get(module, 1)
        if hasattr(module, "cardinalities"):  # an embedding table
            vectors, dim = len(cast(Sized, module.cardinalities)), cast(torch.Tensor, module.weight).shape[1]
            # The vectors, a concatenated copy of them, and their dot products.
            yield 2 * vectors * dim + vectors * vectors
