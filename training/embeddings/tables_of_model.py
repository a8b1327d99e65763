"""Finds the embedding tables of a model."""

from __future__ import annotations

from torch import nn

from training.distributed.collectives import Collectives
from training.embeddings.table import StackedEmbedding
from training.embeddings.tiered_rows import RowTensor


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


def weights_of(model: nn.Module) -> dict[str, RowTensor]:
    """Returns the weights and buffers of a model by name, with all rows of its tables on this rank."""
    tables = {name: table for name, table in tables_of(model).items() if table.tail is not None}
    return {**model.state_dict(), **{name: table.matrix for name, table in tables.items()}}


def take_hot_share(model: nn.Module, collectives: Collectives) -> float | None:
    """Returns the share of lookups since the last call that read rows on a device, on all ranks.

    It is None if all rows of the model are on devices, or if nothing was looked up in a training. All ranks
    must call this function.
    """
    counts = [
        table.hot_share.take(table.weight.device)
        for table in tables_of(model).values()
        if table.hot_share is not None
    ]
    if not counts:
        return None
    hot, lookups = collectives.allreduce_sum(sum(counts[1:], start=counts[0])).tolist()
    return round(hot / lookups, 6) if lookups else None
