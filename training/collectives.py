"""What the ranks of a training do together. The loop sees this protocol; Horovod implements it in `worker`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from training.embedding.table import RowGradient, sum_rows


class Collectives(Protocol):
    """Every rank calls the same methods in the same order; each call returns when all ranks have made it."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def allreduce_sum(self, values: Tensor) -> Tensor:
        """The sum over ranks of tensors of one shape."""
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

    def allgather(self, *tensors: Tensor) -> list[Tensor]:
        return list(tensors)

    def all_to_all(self, values: Tensor, splits: Sequence[int]) -> tuple[Tensor, list[int]]:
        return values, list(splits)


def sum_over_ranks(gradient: RowGradient, collectives: Collectives) -> RowGradient:
    """The rows that any rank touched and the sum of their gradients: never a gradient of the whole table."""
    if collectives.size == 1:
        return gradient
    rows, values = collectives.allgather(gradient.rows, gradient.values)
    return sum_rows(rows, values)
