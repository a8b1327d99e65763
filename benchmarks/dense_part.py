"""The limit of a training step: our DLRM whose embedding vectors are already there, and whose tables nobody updates."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FixedVectors(nn.Module):
    """Gives the same vectors (B, C, E) for whatever ids, and takes their gradient, as an embedding would."""

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
    """Changes the model in place: its table is gone, its dense layers stay. Returns what stands for the table."""
    model.embedding = FixedVectors(rows, features, dim, device)
    return model.embedding
