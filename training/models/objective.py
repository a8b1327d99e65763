"""What a model can add to the loss of a step: penalties, and further items that rows reconstruct."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor


@dataclass(frozen=True)
class Bags:
    """The items that P rows reconstruct in addition to the item of each row.

    Attributes:
        weights: (P, V) float32, the weight of each id of the item's feature in the likelihood of a row.
        item_ids: (I,) int64, the ids of the I items with which the rows are compared.
    """

    weights: Tensor
    item_ids: Tensor


@runtime_checkable
class BagModel(Protocol):
    """A model whose rows may reconstruct several items. Losses that compare the catalogue use these items."""

    def bags(self, categorical: Tensor, items: Tensor) -> Bags | None:
        """Returns the items that rows reconstruct; None if each row reconstructs only its item.

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
            progress: the share of the training's steps that are done, in [0, 1]. The weight of a penalty may
                depend on it.
        """
        ...
