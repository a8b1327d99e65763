"""Small network: one hidden layer over dense features and the vectors of ids."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from nightrank.extending import ClickModel, Inputs, Strict, in_float32


class Settings(Strict):
    """Small network: one hidden layer over dense features and the vectors of ids."""

    embedding_dim: int = Field(default=8, gt=0, description="Numbers per vector.")
    hidden: int = Field(default=16, gt=0, description="Width of the hidden layer.")


class SmallNetwork(ClickModel):
    """The model. Notation as in ClickModel."""

    def __init__(self, settings: Settings, inputs: Inputs) -> None:
        super().__init__()
        self.embedding = inputs.table(settings.embedding_dim)
        width = inputs.num_dense + inputs.num_embedded * settings.embedding_dim
        self.hidden = nn.Linear(width, settings.hidden)
        self.last = nn.Linear(settings.hidden, 1)

    def embed(self, categorical: Tensor) -> list[Tensor]:
        """Returns the vectors (B, C, E)."""
        return [self.embedding(categorical)]

    def forward_dense(self, dense: Tensor, vectors: Sequence[Tensor]) -> Tensor:
        """Returns the logits (B,)."""
        joined = torch.cat([dense, vectors[0].flatten(1)], dim=1)  # (B, D + C * E)
        return in_float32(self.last, self.hidden(joined).relu()).squeeze(1)


def build(settings: Settings, inputs: Inputs) -> SmallNetwork:
    """Builds the model."""
    return SmallNetwork(settings, inputs)
