"""Makes a DLRM without embedding lookups, whose training step is an upper limit of the speed of ours."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FixedVectors(nn.Module):
    """A replacement for an embedding table, which returns the same vectors (B, C, E) for all ids.

    The vectors receive a gradient, as vectors from a lookup do.
    """

    def __init__(self, rows: int, features: int, dim: int, device: torch.device) -> None:
        super().__init__()
        vectors = torch.randn(rows, features, dim, device=device).mul_(0.01).requires_grad_()
        self.register_buffer("vectors", vectors, persistent=False)

    vectors: Tensor
    may_use_kernels = True

    def forward(self, ids: object, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.vectors.to(dtype)


def without_tables(
    model: nn.Module, rows: int, features: int, dim: int, device: torch.device
) -> FixedVectors:
    """Replaces the embedding table of `model` by a `FixedVectors`, and returns this object."""
    model.embedding = FixedVectors(rows, features, dim, device)
    return model.embedding
