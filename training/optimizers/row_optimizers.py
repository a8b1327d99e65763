"""The optimizers of table rows that the configuration can choose, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from training.embeddings.row_gradients import LookupGradient, SummedRowGradient
from training.embeddings.table import StackedEmbedding
from training.embeddings.tiered_rows import RowTensor
from training.optimizers.lazy_adam import LazyAdam
from training.optimizers.row_sgd import RowSgd
from training.optimizers.row_wise_adagrad import RowWiseAdagrad


class RowOptimizer(Protocol):
    """An optimizer that updates the rows of a gradient and does not read other rows."""

    def step(self, gradient: SummedRowGradient, rate: float, step: int) -> None:
        """Updates the rows of a gradient. `step` is the step of the training."""
        ...

    def state(self) -> dict[str, RowTensor]:
        """Returns the tensors of the state by name, without copying them.

        Each tensor has one entry per row of this rank's matrix.
        """
        ...


@runtime_checkable
class LookupOptimizer(RowOptimizer, Protocol):
    """A row optimizer that can use the update kernel, which also sums the gradients of the same row."""

    def step_lookups(self, gradient: LookupGradient, rate: float, step: int) -> None:
        """Does the same as `step`, for a table that uses Triton kernels."""
        ...


_KINDS: dict[str, Callable[[StackedEmbedding], RowOptimizer]] = {
    "row_wise_adagrad": RowWiseAdagrad,
    "sgd": RowSgd,
    "lazy_adam": LazyAdam,
}


def row_optimizer(name: str, table: StackedEmbedding) -> RowOptimizer:
    """Creates an optimizer for a table, by the name in `train.embeddings.optimizer`."""
    return _KINDS[name](table)
