"""The collectives of a training. The loop uses this protocol; `training.launch.rank_main` implements it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor


class Collectives(Protocol):
    """Operations over all ranks. Every rank must call the same methods in the same order.

    A call returns when all ranks have made it.
    """

    @property
    def rank(self) -> int:
        """This rank."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    def allreduce_sum(self, values: Tensor) -> Tensor:
        """The sum of the ranks' tensors, which have equal shapes."""
        ...

    def start_allreduce_sum(self, values: Tensor) -> Callable[[], Tensor]:
        """Starts `allreduce_sum` and returns a function that waits for the sum.

        Before that function is called, `values` must not change. Other collectives may be called, except
        this one.
        """
        ...

    def allgather(self, *tensors: Tensor) -> list[Tensor]:
        """The ranks' tensors, concatenated along dimension 0 in rank order; their lengths may differ."""
        ...

    def all_to_all(self, values: Tensor, splits: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Sends the first splits[0] rows of `values` to rank 0, the next splits[1] to rank 1, and so on.

        Returns:
            The rows that the ranks sent to this one, in rank order, and the number of rows from each rank.
        """
        ...


class LocalCollectives:
    """The collectives of a single rank, without communication."""

    rank = 0
    size = 1

    def allreduce_sum(self, values: Tensor) -> Tensor:
        """See `Collectives`."""
        return values

    def start_allreduce_sum(self, values: Tensor) -> Callable[[], Tensor]:
        """See `Collectives`."""
        return lambda: values

    def allgather(self, *tensors: Tensor) -> list[Tensor]:
        """See `Collectives`."""
        return list(tensors)

    def all_to_all(self, values: Tensor, splits: Sequence[int]) -> tuple[Tensor, list[int]]:
        """See `Collectives`."""
        return values, list(splits)


ALONE = LocalCollectives()
