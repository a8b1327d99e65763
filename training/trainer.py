"""One training step: loss, gradients summed over ranks, Adam for the dense part, row-wise Adagrad for the tables."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from conf.types import Train
from training.adam import Adam
from training.collectives import Collectives, sum_over_ranks
from training.embedding import RowWiseAdagrad, tables_of
from training.loader import Batch


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
        weights = {id(each.weight) for each in self._tables.values()}
        self._dense = [each for each in model.parameters() if id(each) not in weights]
        self._adam = Adam(self._dense)
        self._adagrad = {name: RowWiseAdagrad(table) for name, table in self._tables.items()}

    def step(self, batch: Batch, rate_factor: float) -> Tensor:
        """Updates the model by one global batch; returns the batch's mean loss, a scalar."""
        logits = self.model(batch.dense, batch.categorical)
        losses = functional.binary_cross_entropy_with_logits(logits, batch.labels, reduction="none")
        loss = (losses * batch.weights).sum() / batch.global_weight
        loss.backward()
        # All dense gradients travel in one buffer, with the loss at its end.
        local = torch.cat([*(_take_gradient(each) for each in self._dense), loss.detach().view(1)])
        summed = self._collectives.allreduce_sum(local)
        rows = {
            name: sum_over_ranks(table.take_gradient(), self._collectives)
            for name, table in self._tables.items()
        }
        self._adam.step(summed[:-1], self._train.learning_rate * rate_factor)
        for name, adagrad in self._adagrad.items():
            adagrad.step(rows[name], self._train.embedding_learning_rate * rate_factor)
        return summed[-1]

    def optimizer_state(self) -> dict[str, Tensor]:
        """Moments and accumulators by name: `adam.*`, and one accumulator (rows,) a table; not copied."""
        accumulators = {f"adagrad.{name}": adagrad.accumulator for name, adagrad in self._adagrad.items()}
        return {
            "adam.mean": self._adam.mean,
            "adam.square": self._adam.square,
            "adam.steps": self._adam.steps,
            **accumulators,
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


def _take_gradient(parameter: nn.Parameter) -> Tensor:
    """A parameter's gradient, flat; zeros where the loss did not depend on it. Clears it."""
    gradient, parameter.grad = parameter.grad, None
    return torch.zeros_like(parameter).flatten() if gradient is None else gradient.flatten()
