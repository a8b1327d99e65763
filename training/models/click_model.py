"""The base class of models, and what a model can add to the loss of a step.

The class separates embedding lookups from the rest of the model.

The parts are the same as in torchrec's models: `embed` is the sparse architecture, and `forward_dense`
contains the dense architecture, the interaction and the over architecture.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor, nn


class ClickModel(nn.Module, ABC):
    """A model of clicks. It maps ids to vectors, and vectors and dense features to logits.

    `forward_dense` is a function of tensors of fixed shapes, so it can be compiled, or recorded as a CUDA
    graph (training/loop/forward.py).

    Notation: B rows, D dense features, C features that are ids, W columns of ids, E numbers per vector. If a
        lookup reads the items of histories, its vectors are (B, L, E), with L items per history, not (B, C,
        E).
    """

    @abstractmethod
    def embed(self, categorical: Tensor) -> list[Tensor]:
        """Returns a tensor of vectors (B, C, E) for each lookup; `categorical` (B, W) int64 has the ids."""

    @abstractmethod
    def forward_dense(self, dense: Tensor, vectors: Sequence[Tensor]) -> Tensor:
        """Returns the logits, shape (B,), from `dense` (B, D) float32 and the result of `embed`."""

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """Returns the logits, shape (B,), from `dense` (B, D) float32 and `categorical` (B, W) int64."""
        return self.forward_dense(dense, self.embed(categorical))


# The classes below describe what a model can add to the loss of a step: penalties, and further target items
# of rows.


@dataclass(frozen=True)
class Bags:
    """Target items of P rows in addition to each row's own item.

    Attributes:
        weights: (P, V) float32, for each row, the weight of each item id as a target, 0 if it is no target.
            The ids are those of the item's feature.
        item_ids: (I,) int64, the ids of the I items with which the rows are compared.
    """

    weights: Tensor
    item_ids: Tensor


@runtime_checkable
class BagModel(Protocol):
    """A model, such as an autoencoder, whose rows may have several target items.

    Losses that compare rows with the catalogue use these items.
    """

    def bags(self, categorical: Tensor, items: Tensor) -> Bags | None:
        """Returns the further target items of rows; None if the only target of each row is its own item.

        Args:
            categorical: (P, W), the ids of the rows.
            items: (I, W), the ids of the items with which the rows are compared.
        """
        ...


@runtime_checkable
class PenalizedModel(Protocol):
    """A model that adds a penalty of each row to the loss, such as a divergence of its latent variables."""

    def take_penalty(self, progress: float) -> Tensor:
        """Returns and clears the penalties (B,) float32 of the rows of the last forward pass in training.

        Args:
            progress: the share of the training run's steps that are done, in [0, 1]. The weight of a penalty
                may depend on it.
        """
        ...
