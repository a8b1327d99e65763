"""The forms in which a model is exported: modules of tensors to tensors, without lookups that depend on ids.

While torch exports a model (`torch.compiler.is_exporting()`), lookups, histories and interactions use plain
operators. So the exported program has a dynamic number of rows, and no operators of this project.

Notation: B rows, D dense features, W columns of ids, E numbers per vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

DENSE, CATEGORICAL = "dense", "categorical"


class Ranker(nn.Module):
    """Computes click probabilities.

    Args:
        model: a model in evaluation mode.
        inputs: those of the two inputs that have columns.
    """

    output = "probability"

    def __init__(self, model: nn.Module, inputs: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.inputs = tuple(inputs)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Returns probabilities (B,) float32 from `dense` (B, D) float32 and `categorical` (B, W) int64."""
        return torch.sigmoid(self.model(*self.dense_and_categorical(inputs)).float())

    def dense_and_categorical(self, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Returns `dense` and `categorical`; an input without columns is (B, 0)."""
        by_name = dict(zip(self.inputs, inputs, strict=True))
        rows = inputs[0].shape[0]
        dense = by_name.get(DENSE)
        categorical = by_name.get(CATEGORICAL)
        return (
            inputs[0].new_zeros(rows, 0, dtype=torch.float32) if dense is None else dense,
            inputs[0].new_zeros(rows, 0, dtype=torch.int64) if categorical is None else categorical,
        )


class SideVectors(Ranker):
    """Computes the vectors of users or of items. Their dot product orders items as the model's logits do.

    Args:
        model: a model with the methods `user_vectors` and `item_vectors`.
        inputs: those of the two inputs that have columns.
        side: `user` or `item`.
    """

    output = "vector"

    def __init__(self, model: nn.Module, inputs: Sequence[str], side: str) -> None:
        super().__init__(model, inputs)
        self._side = side

    def forward(self, *inputs: Tensor) -> Tensor:
        """Returns vectors (B, E) float32. Columns of features of the other side have no effect."""
        model: Any = self.model
        vectors: Tensor = getattr(model, f"{self._side}_vectors")(*self.dense_and_categorical(inputs))
        return vectors.float()


def forms_of(model: nn.Module, widths: Mapping[str, int]) -> dict[str, Ranker]:
    """Maps the name of each form that a model has to the form: `ranker`, and `user` and `item`.

    Args:
        model: a model in evaluation mode.
        widths: number of columns of `dense` and of `categorical`.
    """
    inputs = [name for name in (DENSE, CATEGORICAL) if widths[name]]
    forms: dict[str, Ranker] = {"ranker": Ranker(model, inputs)}
    if hasattr(model, "user_vectors") and hasattr(model, "item_vectors"):
        forms |= {side: SideVectors(model, inputs, side) for side in ("user", "item")}
    return forms
