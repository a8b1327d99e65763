"""The protocol of the collectives, the operations by which the ranks of a training communicate.

`training.launch.horovod_collectives` implements this protocol with Horovod.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

# Waits for the result of `start_all_to_all` and returns it.
ReceivedRows = Callable[[], tuple[Tensor, list[int]]]


class Collectives(Protocol):
    """Operations over all ranks. Every rank must call the same methods in the same order.

    A call returns when all ranks have called the method. A method `start_…` returns at once, with a function
    that waits for the result. Until that function is called, the tensors that were passed must not be read or
    changed, and other collectives may be called. The name belongs to this call alone until then. The order of
    calls of `start_…` with different names may differ between ranks.
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

    def start_allreduce_sum(self, values: Tensor, name: str) -> Callable[[], Tensor]:
        """Starts to replace `values` by the sum of all ranks' tensors, which must have equal shapes.

        Returns:
            A function that waits for the sum, and returns `values`.
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

    def start_all_to_all(self, values: Tensor, splits: Sequence[int], name: str) -> ReceivedRows:
        """Starts `all_to_all`, and returns a function that waits for its result."""
        ...


class LocalCollectives:
    """The collectives of a single rank, without communication."""

    rank = 0
    size = 1

    def allreduce_sum(self, values: Tensor) -> Tensor:
        """See `Collectives`."""
        return values

    def start_allreduce_sum(self, values: Tensor, name: str) -> Callable[[], Tensor]:
        """See `Collectives`."""
        return lambda: values

    def allgather(self, *tensors: Tensor) -> list[Tensor]:
        """See `Collectives`."""
        return list(tensors)

    def all_to_all(self, values: Tensor, splits: Sequence[int]) -> tuple[Tensor, list[int]]:
        """See `Collectives`."""
        return values, list(splits)

    def start_all_to_all(self, values: Tensor, splits: Sequence[int], name: str) -> ReceivedRows:
        """See `Collectives`."""
        return lambda: (values, list(splits))


ALONE = LocalCollectives()
