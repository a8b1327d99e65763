"""The optimizers of a model: Adam and FTRL for dense parameters, and the optimizers of table rows.

`Updates` assigns parameters to optimizers, and updates all parameters in a step. Adam updates dense
parameters. The optimizer in `train.embeddings.optimizer` updates tables. FTRL updates the linear parts that
the configuration assigns to it. `train.l2` changes the gradients of dense parameters and tables, but not the
gradients for FTRL.

The gradients of all dense parameters are in one flat buffer, which is summed over ranks. The moments of Adam
have the layout of this buffer. Adam uses torch's fused kernel, which needs one pass over memory. The kernel
is called directly, because torch.optim would import torch's compiler, which takes seconds on each rank.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from conf.types import Train
from training.collectives import ALONE, Collectives
from training.embeddings.rows import LookupGradient, RowGradient, RowTensor, SummedRowGradient
from training.embeddings.table import StackedEmbedding, tables_of
from training.models.layers import ftrl_parts
from training.native.library import BEST, address, library, required_library
from training.optimizers.gradients import DenseGradient
from training.settings.shared_settings import FtrlSettings


class Updates:
    """The optimizers of a model, and their state.

    Args:
        model: the model.
        train: the section `train` of the configuration.
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
        # With L2, the update kernel cannot be used: it sums a row's gradients itself, so the L2 term could
        # not be added before the update.
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
        """Maps the name of each tensor of `state` with one entry per table row to the name of its table."""
        by_row = {
            f"{kind}.{name}": name
            for name, optimizer in self._row_optimizers.items()
            for kind in optimizer.state()
        }
        return by_row | {f"ftrl.{kind}.{name}": name for name in self._ftrl_rows for kind in "zn"}


# The code below contains the optimizers of dense parameters, and L2 regularization.


class Adam:
    """Adam for dense parameters. The moments are stored in the order of the parameters.

    Args:
        parameters: the parameters to update. They must be float32, and all must stay on the same device.
    """

    decay, square_decay, epsilon = 0.9, 0.999, 1e-8

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        # These are views: updating a view updates the parameter.
        self._flat = [parameter.detach().view(-1) for parameter in parameters]
        self._sizes = [parameter.numel() for parameter in parameters]
        device = parameters[0].device if parameters else torch.device("cpu")
        self.mean = torch.zeros(sum(self._sizes), device=device)
        self.square = torch.zeros(sum(self._sizes), device=device)
        self.steps = torch.zeros((), dtype=torch.int64)
        self._kernel_steps = torch.zeros((), device=device)  # `steps` as float32, for the fused kernel

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: float) -> None:
        """Updates the parameters.

        `gradient` (size,) contains the concatenated gradients of the parameters.
        """
        self.steps += 1
        if not self._flat:
            return
        self._kernel_steps.fill_(int(self.steps))
        torch._fused_adam_(
            self._flat,
            list(gradient.split(self._sizes)),
            list(self.mean.split(self._sizes)),
            list(self.square.split(self._sizes)),
            [],
            [self._kernel_steps] * len(self._flat),
            lr=rate,
            beta1=self.decay,
            beta2=self.square_decay,
            weight_decay=0.0,
            eps=self.epsilon,
            amsgrad=False,
            maximize=False,
        )


# FTRL-Proximal (McMahan et al. 2013, "Ad Click Prediction: a View from the Trenches", KDD, algorithm 1).
#
# Each coordinate w of the weights is updated as follows. g is the gradient of a batch's mean loss. In the
# paper, g is the gradient of a single example.
#
#     σ = (√(n + g²) − √n) / α;   z += g − σ w;   n += g²
#     w = 0 where |z| ≤ λ₁, elsewhere −(z − sgn(z) λ₁) / ((β + √n) / α + λ₂)
#
# Here z and n are the state of the coordinate. α, β, λ₁ and λ₂ are the settings learning_rate, beta, l1 and
# l2. If g is 0, then z, n and w do not change, so only the looked-up rows of a table need updates. FTRL
# lowers the learning rate of a coordinate as its squared gradients add up. So the learning rate schedule is
# not applied to it.


class FtrlRows:
    """FTRL for the looked-up rows of a table. The table's weights must be zero at first, like z.

    Attributes:
        z, n: the state, two tensors of shape (rows, E).
    """

    def __init__(self, table: StackedEmbedding, settings: FtrlSettings) -> None:
        self.table = table
        self.settings = settings
        self.z = table.new_rows(table.dim)
        self.n = table.new_rows(table.dim)

    @torch.no_grad()
    def step(self, gradient: SummedRowGradient) -> None:
        """Updates the table rows that have a gradient."""
        matrices = (self.table.matrix, self.z, self.n)
        weight, z, n = (matrix.index_select(0, gradient.rows) for matrix in matrices)
        updated = _ftrl_step(weight, z, n, gradient.values, self.settings)
        for matrix, values in zip(matrices, updated, strict=True):
            matrix.index_copy_(0, gradient.rows, values)


class FtrlDense:
    """FTRL for dense parameters that start at zero.

    The state consists of two tensors, z and n, of shape (size,). In each tensor, the parameters' values
    follow one another.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], settings: FtrlSettings) -> None:
        self._parameters = list(parameters)
        self.settings = settings
        self.z = torch.cat([torch.zeros_like(parameter).flatten() for parameter in self._parameters]).detach()
        self.n = torch.zeros_like(self.z)

    @torch.no_grad()
    def step(self, gradient: Tensor) -> None:
        """Updates the parameters.

        `gradient` (size,) contains the concatenated gradients of the parameters.
        """
        weight = torch.cat([parameter.flatten() for parameter in self._parameters])
        weight, self.z[:], self.n[:] = _ftrl_step(weight, self.z, self.n, gradient, self.settings)
        parts = weight.split([parameter.numel() for parameter in self._parameters])
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.copy_(part.view_as(parameter))


def _ftrl_step(
    weight: Tensor, z: Tensor, n: Tensor, gradient: Tensor, settings: FtrlSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the new values of `weight`, `z` and `n` after a step. All tensors have the same shape."""
    new_n = n + gradient.square()
    sigma = (new_n.sqrt() - n.sqrt()) / settings.learning_rate
    new_z = z + gradient - sigma * weight
    curvature = (settings.beta + new_n.sqrt()) / settings.learning_rate + settings.l2
    shrunk = new_z.sign() * (new_z.abs() - settings.l1).clamp(min=0)  # 0 where |z| ≤ λ₁
    return -shrunk / curvature, new_z, new_n


# L2 regularization adds the gradient of ½ · l2 · Σ weight² to the gradients of a step.
#
# As in BPR (Rendle et al. 2009, UAI, section 4), the vectors that a step uses are regularized, not the whole
# table. A row is used if its gradient, summed over ranks, is not zero. So the result does not depend on the
# number of ranks. If a table row is looked up only for batch rows of weight zero, its gradient is zero.


class L2:
    """Adds the gradient of L2 regularization to the gradients of a step, which must be summed over ranks.

    Args:
        model: the model.
        parameters: its dense parameters, in the order of the flat gradient. Biases, the parameters of
            normalization layers, and the slopes of PReLU (He et al. 2015, ICCV, section 2.1) are not
            regularized.
        factor: `train.l2`. If it is 0, gradients are returned unchanged.
    """

    def __init__(self, model: nn.Module, parameters: Sequence[nn.Parameter], factor: float) -> None:
        self._factor = factor
        self._parameters = list(parameters)
        left_out = {id(parameter) for name, parameter in model.named_parameters() if name.endswith("bias")}
        left_out |= {
            id(parameter)
            for module in model.modules()
            if isinstance(module, nn.LayerNorm | nn.PReLU)
            for parameter in module.parameters()
        }
        self._factors = [0.0 if id(parameter) in left_out else factor for parameter in self._parameters]

    @torch.no_grad()
    def add_dense(self, gradient: Tensor) -> Tensor:
        """Adds the L2 term to the concatenated gradients of the parameters; returns the sum (size,)."""
        if not self._factor or not self._parameters:
            return gradient
        pairs = zip(self._parameters, self._factors, strict=True)
        return gradient + torch.cat([parameter.flatten() * factor for parameter, factor in pairs])

    @torch.no_grad()
    def add_rows(self, gradient: SummedRowGradient, table: StackedEmbedding) -> SummedRowGradient:
        """Returns the gradient of table rows, with the L2 term added for the rows that a step uses."""
        if not self._factor:
            return gradient
        used = gradient.values.any(dim=1, keepdim=True)
        weights = table.matrix.index_select(0, gradient.rows).float()
        return SummedRowGradient(gradient.rows, gradient.values + weights * used * self._factor)


# Row-wise Adagrad, the default optimizer of embedding tables.


class RowWiseAdagrad:
    """Adagrad with one accumulator per row (Mudigere et al. 2022, arXiv:2104.05158).

        accumulator[r] += mean(gradient[r]²);  weight[r] -= rate * gradient[r] / (√accumulator[r] + epsilon)

    A step reads and writes only the rows of the gradient.
    """

    epsilon = 1e-8

    def __init__(self, table: StackedEmbedding) -> None:
        self.table = table
        self.accumulator = table.new_rows()

    @torch.no_grad()
    def step(self, gradient: SummedRowGradient, rate: float, step: int) -> None:
        """Updates the table rows that `gradient` contains, in step number `step` of the training."""
        total = self.accumulator.index_select(0, gradient.rows) + gradient.values.square().mean(dim=1)
        self.accumulator.index_copy_(0, gradient.rows, total)
        scale = -rate / (total.sqrt() + self.epsilon)
        self.table.add_to_rows(gradient.rows, gradient.values * scale.unsqueeze(1), step)

    @torch.no_grad()
    def step_lookups(self, gradient: LookupGradient, rate: float, step: int) -> None:
        """Uses the update kernel to do the same as `step`, for a gradient with one entry per lookup."""
        self.table.apply_lookup_gradient(gradient, rate, step, self.accumulator, self.epsilon)

    def state(self) -> dict[str, RowTensor]:
        """Returns the accumulator, `adagrad` (rows,), which has one entry per row of this rank's matrix."""
        return {"adagrad": self.accumulator}


# Adam (Kingma & Ba 2015, algorithm 1) on the rows of a table that a batch looked up.
#
# The moments of other rows do not change, as in torch's SparseAdam and TensorFlow Addons' LazyAdam. These two
# optimizers correct the bias of the moments by the number of steps of the training. With that correction, a
# row that is first looked up at a late step would move by 3.2 times the learning rate in one step. The factor
# is (1 - decay) / √(1 - square_decay). In our optimizer, t counts the updates of the row instead:
#
#     m[r] = decay * m[r] + (1 - decay) * g[r]
#     v[r] = square_decay * v[r] + (1 - square_decay) * g[r]²
#     t[r] += 1
#     weight[r] -= rate * (m[r] / (1 - decay^t[r])) / (√(v[r] / (1 - square_decay^t[r])) + epsilon)
#
# Here g[r] is the gradient of row r, and m[r] and v[r] are the row's moments. On a CPU, compiled code reads
# and writes each row once (training/native/lazy_adam.cpp).
#
# A row does not change either if its gradient, summed over ranks, is zero. This is so if only batch rows of
# weight zero look up the row, or if its vector does not influence the loss. Which batch rows have weight zero
# depends on the number of ranks: a rank without a positive row has one batch row of weight zero
# (find_positive_rows).


# Further threads are used only if each thread then updates at least this many numbers.
_NUMBERS_OF_A_THREAD = 50_000


class _AdamStep(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("count", "dim")),
        *((name, ctypes.c_void_p) for name in ("rows", "gradient", "mean", "square", "updates", "change")),
        *((name, ctypes.c_double) for name in ("decay", "square_decay", "rate", "epsilon")),
    )


class LazyAdam:
    """Adam on table rows. It holds moments (rows, E) float32 and update counts (rows,) int32."""

    decay, square_decay, epsilon = 0.9, 0.999, 1e-8

    def __init__(self, table: StackedEmbedding) -> None:
        self.table = table
        self.mean = table.new_rows(table.dim)
        self.square = table.new_rows(table.dim)
        self.updates = table.new_rows(dtype=torch.int32)

    @torch.no_grad()
    def step(self, gradient: SummedRowGradient, rate: float, step: int) -> None:
        """Updates the table rows whose gradient is not zero, in step number `step` of the training."""
        on_host = gradient.values.device.type == "cpu" and gradient.values.dtype == torch.float32
        if on_host and library() is not None:
            used = _without_zero_rows(gradient)
            self.table.add_to_rows(used.rows, self.compiled_change(used, rate), step)
            return
        rows, values = gradient.rows, gradient.values
        # Compute a mask, because selecting the rows would wait for the GPU.
        used_rows = (values != 0).any(dim=1, keepdim=True)
        old_mean, old_square = (state.index_select(0, rows) for state in (self.mean, self.square))
        mean = torch.where(used_rows, old_mean.lerp(values, 1 - self.decay), old_mean)
        new_square = (old_square * self.square_decay).addcmul_(values, values, value=1 - self.square_decay)
        square = torch.where(used_rows, new_square, old_square)
        updates = self.updates.index_select(0, rows) + used_rows.squeeze(1)
        self.mean.index_copy_(0, rows, mean)
        self.square.index_copy_(0, rows, square)
        self.updates.index_copy_(0, rows, updates)
        times = updates.clamp(min=1).double().unsqueeze(1)
        mean_bias = (1 - self.decay**times).float()
        square_bias = (1 - self.square_decay**times).float()
        scale = square.div_(square_bias).sqrt_().add_(self.epsilon)
        change = mean.div_(mean_bias).div_(scale).mul_(-rate)
        self.table.add_to_rows(rows, change.mul_(used_rows), step)

    def compiled_change(self, gradient: SummedRowGradient, rate: float, instructions: int = BEST) -> Tensor:
        """Updates the moments of the rows in compiled code, and returns the change (N, E) of their weights.

        Args:
            gradient: the gradient of N rows.
            rate: the learning rate.
            instructions: BEST, or the instructions to use.
        """
        mean, square, updates = self.mean, self.square, self.updates
        if isinstance(mean, Tensor) and isinstance(square, Tensor) and isinstance(updates, Tensor):
            return self._run_compiled(gradient, (mean, square, updates), rate, instructions)
        # Some rows are in host memory. Copy the state of all rows into plain tensors, and back after the
        # step.
        of_rows = (state.index_select(0, gradient.rows) for state in (mean, square, updates))
        taken_mean, taken_square, taken_updates = of_rows
        in_order = SummedRowGradient(torch.arange(len(gradient.rows)), gradient.values)
        taken = (taken_mean, taken_square, taken_updates)
        change = self._run_compiled(in_order, taken, rate, instructions)
        for state, changed in zip((mean, square, updates), taken, strict=True):
            state.index_copy_(0, gradient.rows, changed)
        return change

    def _run_compiled(
        self,
        gradient: SummedRowGradient,
        states: tuple[Tensor, Tensor, Tensor],
        rate: float,
        instructions: int,
    ) -> Tensor:
        """Updates the moments in `states`, and returns the change (N, E) of the rows' weights."""
        mean, square, updates = states
        rows, values = gradient.rows.contiguous(), gradient.values.contiguous()
        change = torch.empty_like(values)
        adam = _AdamStep(
            count=len(rows),
            dim=values.shape[1],
            rows=address(rows, torch.int64),
            gradient=address(values),
            mean=address(mean),
            square=address(square),
            updates=address(updates, torch.int32),
            change=address(change),
            decay=self.decay,
            square_decay=self.square_decay,
            rate=rate,
            epsilon=self.epsilon,
        )
        threads = min(torch.get_num_threads(), max(values.numel() // _NUMBERS_OF_A_THREAD, 1))
        required_library().nightrank_lazy_adam(ctypes.byref(adam), threads, instructions)
        return change

    def state(self) -> dict[str, RowTensor]:
        """Returns the moments and the update counts of this rank's rows by name."""
        return {
            "lazy_adam.mean": self.mean,
            "lazy_adam.square": self.square,
            "lazy_adam.updates": self.updates,
        }


def _without_zero_rows(gradient: SummedRowGradient) -> SummedRowGradient:
    """Returns a gradient without those of its rows that contain only zeros."""
    used = (gradient.values.abs().amax(dim=1) != 0).nonzero().squeeze(1)
    if len(used) == len(gradient.rows):
        return gradient
    return SummedRowGradient(gradient.rows.index_select(0, used), gradient.values.index_select(0, used))


# Stochastic gradient descent on the rows of a table that a batch looked up. The optimizer has no state.


class RowSgd:
    """Updates each row r that has a gradient: weight[r] -= rate * gradient[r]."""

    def __init__(self, table: StackedEmbedding) -> None:
        self.table = table

    @torch.no_grad()
    def step(self, gradient: SummedRowGradient, rate: float, step: int) -> None:
        """Updates the table rows that `gradient` contains, in step number `step` of the training."""
        self.table.add_to_rows(gradient.rows, gradient.values * -rate, step)

    @torch.no_grad()
    def step_lookups(self, gradient: LookupGradient, rate: float, step: int) -> None:
        """Uses the update kernel to do the same as `step`, for a gradient with one entry per lookup."""
        self.table.apply_lookup_gradient(gradient, rate, step)

    def state(self) -> dict[str, RowTensor]:
        """Returns an empty dictionary, because SGD has no state."""
        return {}


class RowOptimizer(Protocol):
    """An optimizer that updates only the table rows that have a gradient, and reads no other rows."""

    def step(self, gradient: SummedRowGradient, rate: float, step: int) -> None:
        """Updates the table rows that `gradient` contains, in step number `step` of the training."""
        ...

    def state(self) -> dict[str, RowTensor]:
        """Returns the tensors of the state by name, without copying them.

        Each tensor has one entry per row of this rank's matrix.
        """
        ...


@runtime_checkable
class LookupOptimizer(RowOptimizer, Protocol):
    """A row optimizer that can use the update kernel. The kernel also sums the gradients of a row."""

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
