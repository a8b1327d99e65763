"""One training step: loss, gradients summed over ranks, Adam for the dense part, row-wise Adagrad for the tables."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from conf.types import Train
from training.collectives import Collectives, sum_over_ranks
from training.embedding import RowWiseAdagrad, StackedEmbedding
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
        self._tables = [each for each in model.modules() if isinstance(each, StackedEmbedding)]
        tables = {id(each.weight) for each in self._tables}
        self._dense = [each for each in model.parameters() if id(each) not in tables]
        self._adam = torch.optim.Adam(self._dense, lr=train.learning_rate)
        self._adagrad = [RowWiseAdagrad(table) for table in self._tables]

    def step(self, batch: Batch, rate_factor: float) -> Tensor:
        """Updates the model by one global batch; returns the batch's mean loss, a scalar."""
        loss = self._backward(batch)
        loss = self._sum_dense_gradients(loss)
        gradients = [sum_over_ranks(table.take_gradient(), self._collectives) for table in self._tables]
        for group in self._adam.param_groups:
            group["lr"] = self._train.learning_rate * rate_factor
        self._adam.step()
        for adagrad, gradient in zip(self._adagrad, gradients, strict=True):
            adagrad.step(gradient, self._train.embedding_learning_rate * rate_factor)
        return loss

    def _backward(self, batch: Batch) -> Tensor:
        self._adam.zero_grad(set_to_none=False)
        logits = self.model(batch.dense, batch.categorical)
        losses = functional.binary_cross_entropy_with_logits(logits, batch.labels, reduction="none")
        loss = (losses * batch.weights).sum() / batch.global_weight
        loss.backward()
        return loss.detach()

    def _sum_dense_gradients(self, loss: Tensor) -> Tensor:
        """Sums the gradients of all dense parameters over ranks, in one buffer; the loss travels at its end."""
        if self._collectives.size == 1:
            return loss
        gradients = [_gradient(each) for each in self._dense]
        summed = self._collectives.allreduce_sum(
            torch.cat([*(each.flatten() for each in gradients), loss.view(1)])
        )
        *parts, total = summed.split([*(each.numel() for each in gradients), 1])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        return total[0]

    def state(self) -> dict[str, Tensor]:
        """Every tensor that the next step depends on, by name."""
        found = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for index, adagrad in enumerate(self._adagrad):
            found[f"adagrad.{index}"] = adagrad.accumulator
        for index, state in self._adam.state_dict()["state"].items():
            found |= {f"adam.{index}.{name}": value for name, value in state.items()}
        return found

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continues from what `state` returned."""
        self.model.load_state_dict(_below(state, "model."))
        for index, adagrad in enumerate(self._adagrad):
            adagrad.accumulator.copy_(state[f"adagrad.{index}"])
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in _below(state, "adam.").items():
            parameter, _, moment = name.partition(".")
            moments.setdefault(int(parameter), {})[moment] = value
        self._adam.load_state_dict({**self._adam.state_dict(), "state": moments})


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _below(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
