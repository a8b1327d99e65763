"""Interface for objects whose state can be saved. The state is a set of named tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import nn

from training.embeddings.rows import RowBlock
from training.embeddings.tables_of_model import tables_of, weights_of
from training.embeddings.tiered_rows import RowTensor

WEIGHTS = "model."  # prefix of the names of weights in a trainer's state


class Stateful(Protocol):
    """An object whose training state can be saved, such as a `Trainer`."""

    def state(self) -> dict[str, RowTensor]:
        """Returns all tensors of the state by name."""
        ...

    def row_state(self) -> dict[str, tuple[RowBlock, ...]]:
        """Maps the name of each tensor with one entry per table row to the blocks of rows on this rank."""
        ...


@dataclass(frozen=True)
class WeightsOnly:
    """The state of a model without optimizers. All table rows of the model are in this process."""

    model: nn.Module

    def state(self) -> dict[str, RowTensor]:
        """See `Stateful`."""
        return {f"{WEIGHTS}{name}": value for name, value in weights_of(self.model).items()}

    def row_state(self) -> dict[str, tuple[RowBlock, ...]]:
        """See `Stateful`."""
        return {f"{WEIGHTS}{name}": table.blocks for name, table in tables_of(self.model).items()}
