"""A gather of all ranks' vectors through which gradients flow back to the rank of each vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from training.distributed.collectives import Collectives


def gather_vectors(values: Tensor, first: int, collectives: Collectives) -> Tensor:
    """Returns the vectors (N, E) of all ranks in rank order, from this rank's `values` (n, E).

    In the backward pass, the gradient of a vector is summed over ranks. All ranks must call this function
    equally often, and all of them must run the backward pass.

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
