"""The protocol of the collectives, the operations by which the ranks of a training communicate.

`training.launch.rank_main` implements this protocol with Horovod.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor


class Collectives(Protocol):
    """Operations over all ranks. Every rank must call the same methods in the same order.

    A call returns when all ranks have called the method.
    """

    @property
    def rank(self) -> int:
        """Returns the index of this rank, from 0 to `size` - 1."""
        ...

    @property
    def size(self) -> int:
        """Returns the number of ranks."""
        ...

    def allreduce_sum(self, values: Tensor) -> Tensor:
        """Returns the sum of all ranks' tensors, which must have equal shapes."""
        ...

    def start_allreduce_sum(self, values: Tensor) -> Callable[[], Tensor]:
        """Starts `allreduce_sum` and returns a function that waits for the sum.

        Until that function is called, `values` must not change. Other collectives may be called in the
        meantime, but not this method again.
        """
        ...

    def allgather(self, *tensors: Tensor) -> list[Tensor]:
        """Returns all ranks' tensors, concatenated along dimension 0 in rank order.

        The lengths of the ranks' tensors in dimension 0 may differ.
        """
        ...

    def all_to_all(self, values: Tensor, splits: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Sends the first splits[0] rows of `values` to rank 0, the next splits[1] to rank 1, and so on.

        Returns:
            The rows that this rank received, in the order of the sending ranks; and the number of rows from
            each rank.
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
