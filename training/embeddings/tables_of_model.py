"""Finds the embedding tables of a model."""

from __future__ import annotations

from torch import nn

from training.embeddings.table import StackedEmbedding


def tables_of(model: nn.Module) -> dict[str, StackedEmbedding]:
    """Returns the embedding tables of a model, by the name of their weight in the model's state."""
    return {
        f"{name}.weight": module
        for name, module in model.named_modules()
        if isinstance(module, StackedEmbedding)
    }


def set_kernels(model: nn.Module, use: bool) -> None:
    """Sets whether a model's tables may use Triton kernels. Call it before you create the optimizers."""
    for table in tables_of(model).values():
        table.may_use_kernels = use
