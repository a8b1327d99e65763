"""One training step: loss, gradients summed over ranks, and the update of every parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from conf.types import Train
from training.collectives import Collectives
from training.data.batch import Batch, CatalogueItems, RowsOfStep
from training.data.sharding import shards_of_rank
from training.device import side_stream
from training.embeddings.rows import RowBlock, RowTensor
from training.embeddings.table import StackedEmbedding, tables_of, take_hot_share, weights_of
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
        train: the section `train` of the configuration.
        collectives: the collectives of this training run's ranks.
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
        self._updates = Updates(model, train, collectives)
        self._early = EarlyRequests(model, next(model.parameters()).device)
        self._next: tuple[Batch, Batch] | None = None
        self._random_layers = [module for module in model.modules() if isinstance(module, RandomLayer)]
        self._forward = Forward(model, train, collectives)
        self._loss_scale = LossScale(next(model.parameters()).device, active=train.precision == "fp16")
        self._shards = shards_of_rank(train.num_shards, collectives.rank, collectives.size)

    @property
    def looks_ahead(self) -> bool:
        """Returns whether `step` needs the next batch. It does if ranks exchange table rows."""
        return self._early.are_possible

    def step(
        self, batch: Batch, rate_factor: float, progress: float = 1.0, next_batch: Batch | None = None
    ) -> Tensor:
        """Updates the model with one global batch. Returns the batch's mean loss, a scalar.

        The rank computes while gradients are summed over ranks and rows are exchanged:

        * As soon as a dense gradient is computed, the backward pass starts to sum it over ranks. The gradient
          of a table row is sent to the rank that holds the row.
        * The ids of the next batch are sent to the ranks that hold their rows before the backward pass. These
          ranks send back the vectors after the update of the rows.

        Args:
            batch: this rank's rows, shard after shard.
            rate_factor: the configured learning rates are multiplied by this factor, except the learning
                rates of FTRL.
            progress: the share of the training's steps that are done; see `PenalizedModel`.
            next_batch: the batch of the next step; None if it is not known. The next step must get the same
                object. If one rank passes None, all ranks must pass None.
        """
        rows = self._rows_of(batch)
        self._next = None
        if next_batch is not None:
            self._next = next_batch, self._expanded(next_batch)
            self._early.note_next_batch()
        with self._updates.dense_gradient.computing():
            loss = self._gradients(rows, progress)
        wait_for_sum = self._updates.dense_gradient.start_sum(loss)
        by_row = self._updates.take_row_gradients()
        scale = self._loss_scale
        accepted = not scale.is_active or scale.accepts(wait_for_sum()[0], by_row.values(), self._collectives)
        if accepted:
            unscaled = {
                name: replace(grad, values=scale.unscaled(grad.values)) for name, grad in by_row.items()
            }
            self._updates.apply_rows(unscaled, rate_factor)
        self._early.start_fetch()
        dense, summed_loss = wait_for_sum()
        if accepted:
            self._updates.apply_dense(clipped(scale.unscaled(dense), self._train.clip_norm), rate_factor)
        return summed_loss.clone()  # a copy, because the next step overwrites the original

    def discard_requests(self) -> None:
        """Discards the batch that a step got as `next_batch`. All ranks must call this method."""
        self._next = None
        self._early.discard()

    def _rows_of(self, batch: Batch) -> Batch:
        """Returns the rows of a step. They exist already if the last step got this batch as `next_batch`."""
        if self._next is not None and self._next[0] is batch:
            return self._next[1]
        return self._expanded(batch)

    def _expanded(self, batch: Batch) -> Batch:
        """Returns the rows of a step and their weight in the global batch.

        All ranks must call this method.
        """
        rows = self._rows_of_step.expand(batch) if self._rows_of_step else batch
        if not rows.weighted:
            return rows
        # Sums of float32 weights of similar size are exact in float64, for every number of ranks.
        total = self._collectives.allreduce_sum(rows.weights.sum(dtype=torch.float64).view(1))
        return replace(rows, global_weight=total.float().squeeze(0), weighted=False)

    def _gradients(self, batch: Batch, progress: float) -> Tensor:
        """Computes the gradients of this rank's share of the mean loss. Returns this share, a scalar."""
        for number, layer in enumerate(self._random_layers):
            key = f"{self._train.seed}/{int(self._updates.steps)}/{number}"
            equal = [len(batch.labels) // len(self._shards)] * len(self._shards)
            if layer.of_items and isinstance(batch.items, CatalogueItems):
                # All ranks compute the vectors of all items, so they must use the same random masks.
                layer.draw_mask(key, range(1), [len(batch.items.dense)])
            else:
                layer.draw_mask(key, self._shards, batch.shard_rows or equal)
        return self._forward.backward(
            batch, self._loss_scale.scale, progress, lambda: self._request_next(batch.categorical)
        )

    def _request_next(self, ids: Tensor) -> None:
        """Requests the rows of the next batch, after the tables have looked up the `ids` of this batch."""
        self._early.note_lookups(ids)
        if self._next is not None:
            self._early.request(self._next[1].categorical)

    def facts(self) -> dict[str, float]:
        """Returns values for a history entry. All ranks must call this method at the same steps.

        With fp16, these values are the loss scale and the number of skipped steps. If some table rows are in
        host memory, `hot_share` is the share of lookups that read rows on a device. It is computed over the
        lookups of all ranks since the last call.
        """
        share = take_hot_share(self.model, self._collectives)
        return self._loss_scale.facts() | ({} if share is None else {"hot_share": share})

    def optimizer_state(self) -> dict[str, RowTensor]:
        """Returns the state of the optimizers; see `Updates.state`."""
        return self._updates.state()

    def row_state(self) -> dict[str, tuple[RowBlock, ...]]:
        """Returns this rank's blocks of rows, for each tensor of `state` with one entry per table row."""
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


# The code below requests the rows of the next batch of a training run from other ranks, while a step
# computes.
#
# TorchRec's pipeline for sparse features uses the same method (Ivchenko et al. 2022, RecSys). Before the step
# of a batch, the batch's ids are sent to the ranks that hold the rows of these ids. When the previous step
# has updated the rows, these ranks send back the rows' vectors.


class EarlyRequests:
    """Requests the table rows of the next batch from other ranks, for tables that exchange rows.

    Rows of a table are requested if a step looks up all ids of the step's batch in this table once, and looks
    up no other ids. Whether this is so is known when the forward pass of a step has ended.

    Args:
        model: the model.
        device: its device. On a GPU, requests are computed on another stream, so that the CPU waits for the
            requests and not for the step.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        tables = tables_of(model)
        for name, table in tables.items():
            table.send_early(name)
        self._tables = [table for table in tables.values() if table.placement.exchanges]
        self._take_part: list[StackedEmbedding] = []
        self._device = device
        self._stream = side_stream(device, "requests") if self._tables else None
        self._ids_are_there: torch.cuda.Event | None = None

    @property
    def are_possible(self) -> bool:
        """Returns whether rows can be requested: whether ranks exchange rows of any table of the model."""
        return bool(self._tables)

    def note_lookups(self, ids: Tensor) -> None:
        """Records for which tables rows will be requested.

        `ids` are the ids of this step, whose forward pass must have ended.
        """
        self._take_part = [table for table in self._tables if table.has_only_looked_up(ids)]

    def note_next_batch(self) -> None:
        """Marks the point of the stream at which the ids of the next batch are ready.

        Call this method before the work of the step is queued.
        """
        if self._stream is not None:
            self._ids_are_there = torch.cuda.current_stream(self._device).record_event()

    def request(self, ids: Tensor) -> None:
        """Requests the table rows of `ids` (B, W) from other ranks. The next step must look up `ids`."""
        if self._stream is None:
            self._request(ids)
            return
        main = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            if self._ids_are_there is not None:
                self._stream.wait_event(self._ids_are_there)
            self._request(ids)
        main.wait_stream(self._stream)
        for table in self._take_part:
            table.batch_rows.record_stream(main)

    def _request(self, ids: Tensor) -> None:
        for table in self._take_part:
            table.batch_rows.request(ids, padded=table.on_kernels)

    def start_fetch(self) -> None:
        """Sends the vectors that other ranks requested. Call this method after the update of the rows."""
        for table in self._tables:
            table.start_fetch()

    def discard(self) -> None:
        """Discards requests that no step has used. All ranks must call this method."""
        for table in self._tables:
            table.batch_rows.discard()
