"""One training step: loss, gradients summed over ranks, and each parameter's own optimiser.

Dense parameters are Adam's and tables row-wise Adagrad's, but for linear parts that are configured to be trained by FTRL.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from conf.types import Train
from training.adam import Adam
from training.collectives import Collectives, sum_over_ranks
from training.embedding import RowWiseAdagrad, tables_of
from training.ftrl import FtrlDense, FtrlRows
from training.layers import Dropout, ftrl_parts
from training.loader import Batch
from training.sharding import shards_of_rank


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
        parts = ftrl_parts(model)
        self._ftrl = {
            name: FtrlDense([part.weights, part.bias], ftrl) for name, (part, ftrl) in parts.items()
        }
        self._ftrl_rows = {
            f"{name}.embedding.weight": FtrlRows(part.embedding, ftrl) for name, (part, ftrl) in parts.items()
        }
        self._adagrad = {
            name: RowWiseAdagrad(table) for name, table in self._tables.items() if name not in self._ftrl_rows
        }
        of_ftrl = [each for part, _ in parts.values() for each in (part.weights, part.bias)]
        elsewhere = {id(each) for each in (*of_ftrl, *(table.weight for table in self._tables.values()))}
        of_adam = [each for each in model.parameters() if id(each) not in elsewhere]
        self._adam = Adam(of_adam)
        self._dense = [*of_adam, *of_ftrl]
        self._sizes = [sum(each.numel() for each in of_adam), *(len(each.z) for each in self._ftrl.values())]
        self._dropouts = [each for each in model.modules() if isinstance(each, Dropout)]
        self._shards = shards_of_rank(train.num_shards, collectives.rank, collectives.size)

    def step(self, batch: Batch, rate_factor: float) -> Tensor:
        """Updates the model by one global batch; returns the batch's mean loss, a scalar.

        Args:
            batch: this rank's rows, those of its shards one after the other.
            rate_factor: of the configured learning rates; FTRL has rates of its own.
        """
        for layer, dropout in enumerate(self._dropouts):
            dropout.begin(f"{self._train.seed}/{int(self._adam.steps)}/{layer}", self._shards)
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
        of_adam, *of_ftrl, mean_loss = summed.split([*self._sizes, 1])
        self._adam.step(of_adam, self._train.learning_rate * rate_factor)
        for ftrl, gradient in zip(self._ftrl.values(), of_ftrl, strict=True):
            ftrl.step(gradient)
        for name, adagrad in self._adagrad.items():
            adagrad.step(rows[name], self._train.embedding_learning_rate * rate_factor)
        for name, ftrl_rows in self._ftrl_rows.items():
            ftrl_rows.step(rows[name])
        return mean_loss[0]

    def optimizer_state(self) -> dict[str, Tensor]:
        """Moments and accumulators by name: `adam.*`, `adagrad.<table>`, `ftrl.z.<table or part>` and `ftrl.n.…`; not copied."""
        accumulators = {f"adagrad.{name}": adagrad.accumulator for name, adagrad in self._adagrad.items()}
        ftrl: dict[str, FtrlDense | FtrlRows] = {**self._ftrl, **self._ftrl_rows}
        return {
            "adam.mean": self._adam.mean,
            "adam.square": self._adam.square,
            "adam.steps": self._adam.steps,
            **accumulators,
            **{f"ftrl.z.{name}": each.z for name, each in ftrl.items()},
            **{f"ftrl.n.{name}": each.n for name, each in ftrl.items()},
        }

    def row_state(self) -> set[str]:
        """The names in `state` that hold one entry for each row of a table."""
        kinds = ("model", "adagrad", "ftrl.z", "ftrl.n")
        return {f"{kind}.{name}" for kind in kinds for name in self._tables} & self.state().keys()

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
