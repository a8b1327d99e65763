"""Assigns parameters to optimizers, and updates all parameters in a step.

Adam updates dense parameters. The optimizer in `train.embeddings.optimizer` updates tables. FTRL updates the
linear parts that the configuration assigns to it. `train.l2` changes the gradients of dense parameters and
tables, but not the gradients for FTRL.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from conf.types import Train
from training.collectives import ALONE, Collectives
from training.embeddings.rows import LookupGradient, RowGradient, RowTensor
from training.embeddings.table import tables_of
from training.models.layers import ftrl_parts
from training.optimizers.dense_optimizers import L2, Adam, FtrlDense, FtrlRows
from training.optimizers.gradients import DenseGradient
from training.optimizers.row_optimizers import LookupOptimizer, row_optimizer


class Updates:
    """The optimizers of a model, and their state.

    Args:
        model: the model.
        train: the settings of the training.
        collectives: the collectives of the ranks that train on parts of one batch.

    Attributes:
        dense_gradient: collects the gradients of the dense parameters.
        steps: number of updates so far, a scalar. It is part of the state.
    """

    def __init__(self, model: nn.Module, train: Train, collectives: Collectives = ALONE) -> None:
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
        self._row_optimizers = {
            name: row_optimizer(train.embeddings.optimizer, table)
            for name, table in self._tables.items()
            if name not in self._ftrl_rows
        }
        # The update kernel sums the gradient of a row itself, so L2 could not be added to the sum.
        self._lookup_optimizers = {
            name: optimizer
            for name, optimizer in self._row_optimizers.items()
            if isinstance(optimizer, LookupOptimizer) and self._tables[name].on_kernels and not train.l2
        }
        ftrl_parameters = [parameter for part, _ in parts.values() for parameter in (part.weights, part.bias)]
        table_weights = [table.weight for table in self._tables.values()]
        not_adam = {id(parameter) for parameter in (*ftrl_parameters, *table_weights)}
        adam_parameters = [parameter for parameter in model.parameters() if id(parameter) not in not_adam]
        self._adam = Adam(adam_parameters)
        self._l2 = L2(model, adam_parameters, train.l2)
        device = next(model.parameters()).device
        self.dense_gradient = DenseGradient([*adam_parameters, *ftrl_parameters], device, collectives)
        adam_size = sum(parameter.numel() for parameter in adam_parameters)
        self._sizes = [adam_size, *(len(ftrl.z) for ftrl in self._ftrl.values())]

    @property
    def steps(self) -> Tensor:
        """Returns the number of updates so far, a scalar."""
        return self._adam.steps

    def take_row_gradients(self) -> dict[str, RowGradient]:
        """Returns and clears the gradients of this rank's table rows, summed over ranks, by table name.

        The gradient of a table is a LookupGradient if its optimizer uses the update kernel.
        """
        return {name: self._take_row_gradient(name) for name in self._tables}

    def _take_row_gradient(self, name: str) -> RowGradient:
        table = self._tables[name]
        if name in self._lookup_optimizers:
            gradient = table.take_lookup_gradient(self._collectives)
            if gradient is not None:
                return gradient
        return table.take_gradient(self._collectives)

    def apply_rows(self, rows: Mapping[str, RowGradient], rate_factor: float) -> None:
        """Updates table rows with their gradients.

        Call this method before `apply_dense`, which counts the step.

        Args:
            rows: the result of `take_row_gradients`.
            rate_factor: the configured learning rates are multiplied by this factor, except that of FTRL.
        """
        step, rate = int(self.steps) + 1, self._train.embedding_learning_rate * rate_factor
        for name, row_gradient in rows.items():
            self._update_rows(name, row_gradient, rate, step)

    def apply_dense(self, dense: Tensor, rate_factor: float) -> None:
        """Updates dense parameters with their gradients, summed over ranks.

        Args:
            dense: (P,), the sums of `dense_gradient`.
            rate_factor: the configured learning rates are multiplied by this factor, except that of FTRL.
        """
        adam_gradient, *ftrl_gradients = dense.split(self._sizes)
        self._adam.step(self._l2.add_dense(adam_gradient), self._train.learning_rate * rate_factor)
        for ftrl, gradient in zip(self._ftrl.values(), ftrl_gradients, strict=True):
            ftrl.step(gradient)

    def _update_rows(self, name: str, gradient: RowGradient, rate: float, step: int) -> None:
        if isinstance(gradient, LookupGradient):
            self._lookup_optimizers[name].step_lookups(gradient, rate, step)
        elif name in self._ftrl_rows:
            self._ftrl_rows[name].step(gradient)
        else:
            self._row_optimizers[name].step(self._l2.add_rows(gradient, self._tables[name]), rate, step)

    def state(self) -> dict[str, RowTensor]:
        """Returns moments and accumulators by name, without copying them.

        The names are `adam.*`, `<name of the optimizer's state>.<table>`, `ftrl.z.<table or part>` and
        `ftrl.n.…`.
        """
        by_row = {
            f"{kind}.{name}": value
            for name, optimizer in self._row_optimizers.items()
            for kind, value in optimizer.state().items()
        }
        ftrl: dict[str, FtrlDense | FtrlRows] = {**self._ftrl, **self._ftrl_rows}
        return {
            "adam.mean": self._adam.mean,
            "adam.square": self._adam.square,
            "adam.steps": self._adam.steps,
            **by_row,
            **{f"ftrl.z.{name}": optimizer.z for name, optimizer in ftrl.items()},
            **{f"ftrl.n.{name}": optimizer.n for name, optimizer in ftrl.items()},
        }

    def row_state(self) -> dict[str, str]:
        """Maps the name of each tensor of `state` with one entry per table row to the name of the table."""
        by_row = {
            f"{kind}.{name}": name
            for name, optimizer in self._row_optimizers.items()
            for kind in optimizer.state()
        }
        return by_row | {f"ftrl.{kind}.{name}": name for name in self._ftrl_rows for kind in "zn"}
