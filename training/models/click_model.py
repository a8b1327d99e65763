"""The base class of models, which separates embedding lookups from the rest of the model.

The parts are the same as in torchrec's models: `embed` is the sparse architecture, and `forward_dense`
contains the dense architecture, the interaction and the over architecture.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn


class ClickModel(nn.Module, ABC):
    """A model of clicks. It maps ids to vectors, and vectors and dense features to logits.

    `forward_dense` is a function of tensors of fixed shapes, so it can be compiled, or recorded as a CUDA
    graph (training/loop/forward.py).

    Notation: B rows, D dense features, C features that are ids, W columns of ids, E numbers per vector. A
    lookup of the items of histories has L places in place of the C features.
    """

    @abstractmethod
    def embed(self, categorical: Tensor) -> list[Tensor]:
        """Returns for each lookup the vectors (B, C, E) of `categorical` (B, W) int64."""

    @abstractmethod
    def forward_dense(self, dense: Tensor, vectors: Sequence[Tensor]) -> Tensor:
        """Returns the logits, shape (B,), from `dense` (B, D) float32 and the result of `embed`."""

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Returns the logits, shape (B,), from `dense` (B, D) float32 and `categorical` (B, W) int64."""
        return self.forward_dense(dense, self.embed(categorical))
