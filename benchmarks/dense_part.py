"""The upper limit of a training step: our DLRM without embedding lookups and without table updates."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FixedVectors(nn.Module):
    """Returns the same vectors (B, C, E) for all ids, and receives their gradient like an embedding."""

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
    """Replaces the model's table in place and returns the replacement. The dense layers stay."""
    model.embedding = FixedVectors(rows, features, dim, device)
    return model.embedding
