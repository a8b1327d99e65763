"""Measures the upper limit of a training step: our DLRM without embedding lookups and table updates."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FixedVectors(nn.Module):
    """Replaces an embedding table: returns the same vectors (B, C, E) for all ids.

    The vectors receive a gradient, like vectors that were looked up.
    """

    def __init__(self, rows: int, features: int, dim: int, device: torch.device) -> None:
        super().__init__()
        vectors = torch.randn(rows, features, dim, device=device).mul_(0.01).requires_grad_()
        self.register_buffer("vectors", vectors, persistent=False)

    vectors: Tensor
    may_use_kernels = True

    def forward(self, ids: object) -> Tensor:
        return self.vectors


def without_tables(
    model: nn.Module, rows: int, features: int, dim: int, device: torch.device
) -> FixedVectors:
    """Replaces the model's embedding table by `FixedVectors`, which it returns. The dense layers do not
    change.
    """
    model.embedding = FixedVectors(rows, features, dim, device)
    return model.embedding
