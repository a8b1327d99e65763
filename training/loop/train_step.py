"""One training step: loss, gradients summed over ranks, and the update of every parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from conf.types import Train
from training.data.batch import Batch, RowsOfStep
from training.data.compared_items import CatalogueItems
from training.data.sharding import shards_of_rank
from training.distributed.collectives import Collectives
from training.embeddings.row_gradients import RowGradient
from training.embeddings.row_pools import RowTensor
from training.embeddings.rows import RowBlock
from training.embeddings.tables_of_model import tables_of, take_hot_share, weights_of
from training.loop.forward import Forward
from training.models.layers import RandomLayer
from training.optimizers.gradients import LossScale, clipped
from training.optimizers.updates import Updates


class Trainer:
    """A model and the state of its optimizers.

    After every step, all ranks have the same dense parameters. A rank may hold only some of the table rows.

    The loss is the weighted sum over the local rows divided by the weight of the global batch. Gradients are
    therefore summed over ranks, not averaged, and do not depend on which rank has which rows.

    Args:
        model: the model; it is trained in place.
        train: the settings of the training.
        collectives: those of this training's ranks.
        rows_of_step: draws the negatives of every step, or selects the rows for a loss over item vectors;
            None if the batches contain all rows of a step.
    """

    def __init__(
        self,
        model: nn.Module,
        train: Train,
        collectives: Collectives,
        rows_of_step: RowsOfStep | None = None,
    ) -> None:
        self.model = model
        self._rows_of_step = rows_of_step
        self._train = train
        self._collectives = collectives
        self._tables = tables_of(model)
        self._updates = Updates(model, train)
        self._random_layers = [module for module in model.modules() if isinstance(module, RandomLayer)]
        self._forward = Forward(model, train, collectives)
        self._loss_scale = LossScale(next(model.parameters()).device, active=train.precision == "fp16")
        self._shards = shards_of_rank(train.num_shards, collectives.rank, collectives.size)

    def step(self, batch: Batch, rate_factor: float, progress: float = 1.0) -> Tensor:
        """Updates the model with one global batch. Returns the batch's mean loss, a scalar.

        Args:
            batch: this rank's rows, shard after shard.
            rate_factor: the configured learning rates are multiplied by this factor, except those of FTRL.
            progress: the share of the training's steps that are done; see `PenalizedModel`.
        """
        rows = self._rows_of_step.expand(batch) if self._rows_of_step else batch
        loss = self._gradients(rows, progress)
        # One buffer holds all dense gradients and then the loss. While it is summed, gradients of rows are
        # reduced.
        wait_for_sum = self._collectives.start_allreduce_sum(self._updates.take_dense_gradient(loss))
        by_row = self._updates.take_row_gradients(self._collectives)
        summed = wait_for_sum()
        if self._loss_scale.accepts(summed[:-1], by_row.values(), self._collectives):
            self._apply(summed[:-1], by_row, rate_factor)
        return summed[-1].clone()  # the next step overwrites the buffer

    def _apply(self, dense: Tensor, rows: Mapping[str, RowGradient], rate_factor: float) -> None:
        """Updates every parameter with its gradient.

        The arguments are the gradients of the scaled loss, summed over all ranks.
        """
        unscaled = self._loss_scale.unscaled
        gradient = clipped(unscaled(dense), self._train.clip_norm)
        by_row = {name: replace(grad, values=unscaled(grad.values)) for name, grad in rows.items()}
        self._updates.apply(gradient, by_row, rate_factor)

    def _gradients(self, batch: Batch, progress: float) -> Tensor:
        """Computes the gradients of this rank's share of the mean loss. Returns this share, a scalar."""
        for number, layer in enumerate(self._random_layers):
            key = f"{self._train.seed}/{int(self._updates.steps)}/{number}"
            equal = [len(batch.labels) // len(self._shards)] * len(self._shards)
            if layer.of_items and isinstance(batch.items, CatalogueItems):
                # All ranks compute the vectors of all items, with the same masks.
                layer.draw_mask(key, range(1), [len(batch.items.dense)])
            else:
                layer.draw_mask(key, self._shards, batch.shard_rows or equal)
        return self._forward.backward(batch, self._loss_scale.scale, progress)

    def facts(self) -> dict[str, float]:
        """Returns values for a history entry. All ranks must call it at the same steps.

        With fp16, they are the loss scale and the number of skipped steps. If table rows are in two memories,
        `hot_share` is the share of the lookups since the last call that read rows on a device, on all ranks.
        """
        share = take_hot_share(self.model, self._collectives)
        return self._loss_scale.facts() | ({} if share is None else {"hot_share": share})

    def optimizer_state(self) -> dict[str, RowTensor]:
        """Returns the state of the optimizers; see `Updates.state`."""
        return self._updates.state()

    def row_state(self) -> dict[str, tuple[RowBlock, ...]]:
        """Returns, for each tensor of `state` with one entry per table row, its row blocks on this rank."""
        weights = {f"model.{name}": name for name in self._tables}
        return {
            name: self._tables[table].blocks
            for name, table in {**weights, **self._updates.row_state()}.items()
        }

    def state(self) -> dict[str, RowTensor]:
        """Returns all tensors on which the next step depends, by name, without copying them."""
        return {
            **{f"model.{name}": value for name, value in weights_of(self.model).items()},
            **self.optimizer_state(),
            **self._loss_scale.state(),
        }

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Copies tensors, as returned by `state`, into this trainer."""
        for name, value in self.state().items():
            value.copy_(state[name])
