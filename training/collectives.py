"""The protocol of the collectives, the operations by which the ranks of a training run communicate.

`training.launch.rank_main` implements this protocol with Horovod.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from conf import errors
from conf.errors import NightrankError

# `start_all_to_all` returns a function of this type, which waits for the exchange and returns what
# `all_to_all` returns.
ReceivedRows = Callable[[], tuple[Tensor, list[int]]]


class Collectives(Protocol):
    """Operations over all ranks. All ranks must call the same methods in the same order.

    A call returns when all ranks have called the method. A method `start_…` returns at once, with a function
    that waits for the result. Until that function is called, the tensors that were passed must not be read or
    changed. Other collectives may be called in the meantime, but not with the same name. The order of calls
    of `start_…` with different names may differ between ranks.
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
            The rows that this rank received, in the order of the sending ranks, and the number of rows that
            each rank sent to this rank.
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


# The code below gathers the vectors of all ranks. In the backward pass, each rank receives the gradients of
# its own vectors.


def gather_vectors(values: Tensor, first: int, collectives: Collectives) -> Tensor:
    """Returns the vectors (N, E) of all ranks in rank order, from this rank's `values` (n, E).

    In the backward pass, the gradient of a vector is summed over ranks. All ranks must call this function the
    same number of times, and all ranks must run the backward pass.

    Args:
        values: this rank's vectors.
        first: the position of this rank's first vector in the result.
        collectives: the ranks' collectives.
    """
    if collectives.size == 1:
        return values
    gathered: Tensor = _GatherVectors.apply(values, first, collectives)
    return gathered


class _GatherVectors(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, first: int, collectives: Collectives) -> Tensor:
        ctx.own, ctx.collectives = slice(first, first + len(values)), collectives
        return collectives.allgather(values)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        summed = ctx.collectives.allreduce_sum(gradients[0].contiguous())
        return summed[ctx.own], None, None


# The code below exchanges JSON values and errors between ranks. Every rank must make these calls in the same
# order.


def gather_json(collectives: Collectives, value: Any) -> list[Any]:
    """Returns the JSON values of all ranks, in rank order.

    Waits until all ranks have called this function.
    """
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    lengths, texts = collectives.allgather(torch.tensor([len(text)]), text)
    return [json.loads(part.numpy().tobytes()) for part in texts.split(lengths.tolist())]


def raise_on_all_ranks(collectives: Collectives, error: NightrankError | None) -> None:
    """If a rank has an error, raises the first error on all ranks, so that no rank waits for others."""
    fields = None if error is None else [type(error).__name__, error.problem, error.remedy]
    for rank, fields_of_rank in enumerate(gather_json(collectives, fields)):
        if fields_of_rank is not None:
            kind, problem, remedy = fields_of_rank
            raise getattr(errors, kind)(f"rank {rank}: {problem}", remedy) from error
