"""What the ranks of a training do together. The loop sees this protocol; Horovod implements it in `worker`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor


class Collectives(Protocol):
    """Every rank calls the same methods in the same order; each call returns when all ranks have made it."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def allreduce_sum(self, values: Tensor) -> Tensor:
        """The sum over ranks of tensors of one shape."""
        ...

    def start_allreduce_sum(self, values: Tensor) -> Callable[[], Tensor]:
        """As `allreduce_sum`, but returns at once: what it returns waits for the sum. Other calls may come between;
        a second one of this kind may not, and `values` must not change.
        """
        ...

    def allgather(self, *tensors: Tensor) -> list[Tensor]:
        """Each tensor, concatenated along dimension 0 in rank order; lengths may differ between ranks."""
        ...

    def all_to_all(self, values: Tensor, splits: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Sends the first splits[0] rows of `values` to rank 0, the next splits[1] to rank 1, and so on.

        Returns:
            What the ranks sent to this one, in rank order, and how many rows each of them sent.
        """
        ...


class LocalCollectives:
    """One rank, no communication."""

    rank = 0
    size = 1

    def allreduce_sum(self, values: Tensor) -> Tensor:
        return values

    def start_allreduce_sum(self, values: Tensor) -> Callable[[], Tensor]:
        return lambda: values

    def allgather(self, *tensors: Tensor) -> list[Tensor]:
        return list(tensors)

    def all_to_all(self, values: Tensor, splits: Sequence[int]) -> tuple[Tensor, list[int]]:
        return values, list(splits)


ALONE = LocalCollectives()
