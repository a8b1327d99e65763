"""How many rows or pairs go through a model at once: a default for the device, halved where its memory does not suffice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sized
from functools import partial
from typing import TypeVar, cast

import torch
from torch import nn

from conf.errors import InfrastructureError

log = logging.getLogger("nightrank.scoring")

Done = TypeVar("Done")

# A step's activations stay in a core's cache: a DLRM scores 1,024 rows at a time up to twice as fast as 131,072.
_CPU_ROWS = 1_024
_GPU_LEAST_ROWS, _GPU_MOST_ROWS = 8_192, 1_048_576
# Share of a GPU's free memory that a step may take: other tasks may be on it, and estimates err.
_GPU_SHARE = 4

# What torch's CPU allocator says, in a RuntimeError, when the system has no memory for it.
_CPU_ALLOCATOR = "can't allocate memory"


class Steps:
    """The number of rows at once, which only ever falls.

    Args:
        rows: to begin with, at least 1.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def within_memory(self, work: Callable[[int], Done]) -> Done:
        """What `work` returns, called with the number of rows at once, again with half of it as often as memory runs out.

        Work that was cut short is done anew from its beginning.

        Raises:
            InfrastructureError: memory runs out with one row at once.
        """
        while True:
            try:
                return work(self.rows)
            except RuntimeError as error:
                if not isinstance(error, torch.OutOfMemoryError) and _CPU_ALLOCATOR not in str(error):
                    raise
                if self.rows == 1:
                    raise InfrastructureError(
                        f"the device's memory does not suffice to score one row at once: {error}",
                        "let fewer tasks share the device (spark.task.resource.gpu.amount, spark.executor.cores), or give "
                        "it more memory",
                    ) from error
                reason = str(error)
            self._halve(reason)  # here the error, and what its traceback held on the device, is gone

    def over(self, total: int, work: Callable[[slice], None]) -> None:
        """Calls `work` with consecutive slices of [0, total), each of at most as many rows as fit; a slice whose memory runs
        out is cut in halves and done anew.

        Raises:
            InfrastructureError: as `within_memory`.
        """
        start = 0
        while start < total:
            start = self.within_memory(partial(_step, work, start, total))

    def _halve(self, reason: str) -> None:
        self.rows //= 2
        log.warning("out of memory on the device: %d rows at once from here on (%s)", self.rows, reason)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _step(work: Callable[[slice], None], start: int, total: int, rows: int) -> int:
    stop = min(start + rows, total)
    work(slice(start, stop))
    return stop


def default_rows(model: nn.Module, device: torch.device) -> int:
    """How many rows at once a model starts with: on a CPU what its caches hold, on a GPU what fits a quarter of its free memory."""
    if device.type != "cuda":
        return _CPU_ROWS
    free, _ = torch.cuda.mem_get_info(device)
    return rows_within(free // _GPU_SHARE, row_bytes(model))


def rows_within(free_bytes: int, bytes_a_row: int) -> int:
    """The largest power of two of rows that fits, between 8,192 and 1,048,576."""
    fitting = max(free_bytes // max(bytes_a_row, 1), 1)
    return min(max(1 << (fitting.bit_length() - 1), _GPU_LEAST_ROWS), _GPU_MOST_ROWS)


def row_bytes(model: nn.Module) -> int:
    """About how many bytes a row takes on its way: every layer's input and output in float32, and every table's vectors."""
    return sum(_widths(model)) * 4


def _widths(model: nn.Module) -> Iterator[int]:
    for each in model.modules():
        if isinstance(each, nn.Linear):
            yield each.in_features + each.out_features
        if hasattr(each, "cardinalities"):  # a table
            vectors, dim = len(cast(Sized, each.cardinalities)), cast(torch.Tensor, each.weight).shape[1]
            yield (
                2 * vectors * dim + vectors * vectors
            )  # looked up and laid side by side, and their dot products
