"""One training step: loss, gradients summed over ranks, and the update of every parameter."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from conf.types import Train
from training.collectives import Collectives, sum_over_ranks
from training.embedding.table import RowBlock, tables_of
from training.layers import Dropout
from training.reading.batch import Batch
from training.reading.sharding import shards_of_rank
from training.updates import Updates


class Trainer:
    """A model and the state of its optimisers, equal on all ranks after every step.

    The loss is the weighted sum over the local rows divided by the global batch's weight, so gradients are summed over
    ranks, not averaged, and do not depend on how rows are spread over ranks.
    """

    def __init__(self, model: nn.Module, train: Train, collectives: Collectives) -> None:
        self.model = model
        self._train = train
        self._collectives = collectives
        self._tables = tables_of(model)
        self._updates = Updates(model, train)
        self._dropouts = [each for each in model.modules() if isinstance(each, Dropout)]
        self._shards = shards_of_rank(train.num_shards, collectives.rank, collectives.size)

    def step(self, batch: Batch, rate_factor: float) -> Tensor:
        """Updates the model by one global batch; returns the batch's mean loss, a scalar.

        Args:
            batch: this rank's rows, those of its shards one after the other.
            rate_factor: of the configured learning rates; FTRL has rates of its own.
        """
        loss = self._gradients(batch)
        # All dense gradients travel in one buffer, with the loss at its end.
        summed = self._collectives.allreduce_sum(
            torch.cat([self._updates.take_dense_gradient(), loss.view(1)])
        )
        rows = {
            name: sum_over_ranks(gradient, self._collectives)
            for name, gradient in self._updates.take_row_gradients().items()
        }
        self._updates.apply(summed[:-1], rows, rate_factor)
        return summed[-1]

    def _gradients(self, batch: Batch) -> Tensor:
        """Leaves the gradients of this rank's share of the mean loss at the parameters; returns that share, a scalar."""
        for layer, dropout in enumerate(self._dropouts):
            dropout.begin(f"{self._train.seed}/{int(self._updates.steps)}/{layer}", self._shards)
        logits = self.model(batch.dense, batch.categorical)
        losses = functional.binary_cross_entropy_with_logits(logits, batch.labels, reduction="none")
        loss: Tensor = (losses * batch.weights).sum() / batch.global_weight
        loss.backward()
        return loss.detach()

    def optimizer_state(self) -> dict[str, Tensor]:
        """As `Updates.state`."""
        return self._updates.state()

    def row_state(self) -> dict[str, tuple[RowBlock, ...]]:
        """The names in `state` that hold one entry for each row of a table → where which of its rows lie on this rank."""
        weights = {f"model.{name}": name for name in self._tables}
        return {
            name: self._tables[table].blocks
            for name, table in {**weights, **self._updates.row_state()}.items()
        }

    def state(self) -> dict[str, Tensor]:
        """Every tensor that the next step depends on, by name; not copied."""
        return {
            **{f"model.{name}": value for name, value in self.model.state_dict().items()},
            **self.optimizer_state(),
        }

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continues from what `state` returned."""
        for name, value in self.state().items():
            value.copy_(state[name])
