"""Which optimiser has which parameter, and one update of them all.

Dense parameters are Adam's and tables the optimiser's that `train.embeddings.optimizer` names, but for linear parts that
are configured to be trained by FTRL.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from conf.types import Train
from training.distributed.collectives import ALONE, Collectives
from training.embeddings.table import RowGradient, tables_of
from training.models.layers import ftrl_parts
from training.optimizers.adam import Adam
from training.optimizers.ftrl import FtrlDense, FtrlRows
from training.optimizers.row_optimizers import row_optimizer


class Updates:
    """The optimisers of a model, and their state.

    Attributes:
        steps: updates made, a scalar; it is part of the state.
    """

    def __init__(self, model: nn.Module, train: Train) -> None:
        self._train = train
        self._tables = tables_of(model)
        parts = ftrl_parts(model)
        self._ftrl = {
            name: FtrlDense([part.weights, part.bias], ftrl) for name, (part, ftrl) in parts.items()
        }
        self._ftrl_rows = {
            f"{name}.embedding.weight": FtrlRows(part.embedding, ftrl) for name, (part, ftrl) in parts.items()
        }
        self._by_row = {
            name: row_optimizer(train.embeddings.optimizer, table)
            for name, table in self._tables.items()
            if name not in self._ftrl_rows
        }
        of_ftrl = [each for part, _ in parts.values() for each in (part.weights, part.bias)]
        elsewhere = {id(each) for each in (*of_ftrl, *(table.weight for table in self._tables.values()))}
        of_adam = [each for each in model.parameters() if id(each) not in elsewhere]
        self._adam = Adam(of_adam)
        self._dense = [*of_adam, *of_ftrl]
        size = sum(each.numel() for each in self._dense) + 1
        self._gradient = torch.empty(size, device=next(model.parameters()).device)
        self._sizes = [sum(each.numel() for each in of_adam), *(len(each.z) for each in self._ftrl.values())]

    @property
    def steps(self) -> Tensor:
        return self._adam.steps

    def take_dense_gradient(self, loss: Tensor) -> Tensor:
        """(P + 1,) the gradients of all dense parameters, flat, in the order that `apply` takes them, then the loss, a scalar.

        Clears them. The memory is used again at the next call.
        """
        torch.cat([*map(_take_gradient, self._dense), loss.view(1)], out=self._gradient)
        return self._gradient

    def take_row_gradients(self, collectives: Collectives = ALONE) -> dict[str, RowGradient]:
        """Table → the gradients, summed over ranks, of this rank's rows that any rank looked up; clears them."""
        return {name: table.take_gradient(collectives) for name, table in self._tables.items()}

    def apply(self, dense: Tensor, rows: Mapping[str, RowGradient], rate_factor: float) -> None:
        """Updates every parameter by its gradient, summed over ranks.

        Args:
            rate_factor: of the configured learning rates; FTRL has rates of its own.
        """
        of_adam, *of_ftrl = dense.split(self._sizes)
        self._adam.step(of_adam, self._train.learning_rate * rate_factor)
        for ftrl, gradient in zip(self._ftrl.values(), of_ftrl, strict=True):
            ftrl.step(gradient)
        step, rate = int(self.steps), self._train.embedding_learning_rate * rate_factor
        for name, optimizer in self._by_row.items():
            optimizer.step(rows[name], rate, step)
        for name, ftrl_rows in self._ftrl_rows.items():
            ftrl_rows.step(rows[name])

    def state(self) -> dict[str, Tensor]:
        """Moments and accumulators by name: `adam.*`, `<state of its optimiser>.<table>`, `ftrl.z.<table or part>` and
        `ftrl.n.…`; not copied.
        """
        by_row = {
            f"{kind}.{name}": value
            for name, optimizer in self._by_row.items()
            for kind, value in optimizer.state().items()
        }
        ftrl: dict[str, FtrlDense | FtrlRows] = {**self._ftrl, **self._ftrl_rows}
        return {
            "adam.mean": self._adam.mean,
            "adam.square": self._adam.square,
            "adam.steps": self._adam.steps,
            **by_row,
            **{f"ftrl.z.{name}": each.z for name, each in ftrl.items()},
            **{f"ftrl.n.{name}": each.n for name, each in ftrl.items()},
        }

    def row_state(self) -> dict[str, str]:
        """The names in `state` that hold one entry for each row of a table → that table."""
        by_row = {
            f"{kind}.{name}": name for name, optimizer in self._by_row.items() for kind in optimizer.state()
        }
        return by_row | {f"ftrl.{kind}.{name}": name for name in self._ftrl_rows for kind in "zn"}


def _take_gradient(parameter: nn.Parameter) -> Tensor:
    """A parameter's gradient, flat; zeros where the loss did not depend on it. Clears it."""
    gradient, parameter.grad = parameter.grad, None
    return torch.zeros_like(parameter).flatten() if gradient is None else gradient.flatten()
