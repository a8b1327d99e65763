"""The optimizers of table rows that the configuration can choose, by name."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from training.embeddings.rows import LookupGradient, RowTensor, SummedRowGradient
from training.embeddings.table import StackedEmbedding
from training.native.library import BEST, address, library, required_library

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
        """Updates the rows of a gradient. `step` is the step of the training."""
        total = self.accumulator.index_select(0, gradient.rows) + gradient.values.square().mean(dim=1)
        self.accumulator.index_copy_(0, gradient.rows, total)
        scale = -rate / (total.sqrt() + self.epsilon)
        self.table.add_to_rows(gradient.rows, gradient.values * scale.unsqueeze(1), step)

    @torch.no_grad()
    def step_lookups(self, gradient: LookupGradient, rate: float, step: int) -> None:
        """Uses the update kernel to do the same as `step`, for a gradient with one entry per lookup."""
        self.table.apply_lookup_gradient(gradient, rate, step, self.accumulator, self.epsilon)

    def state(self) -> dict[str, RowTensor]:
        """Returns `adagrad` (rows,), which has one entry per row of this rank's matrix."""
        return {"adagrad": self.accumulator}


# Adam (Kingma & Ba 2015, algorithm 1) on the rows of a table that a batch looked up.
#
# The moments of other rows do not change, as in torch's SparseAdam and TensorFlow Addons' LazyAdam. These two
# optimizers correct the bias of the moments by the number of steps of the training. With that correction, a
# row that is first looked up at a late step would move by (1 - decay) / √(1 - square_decay) = 3.2 times the
# learning rate in one step. In our optimizer, t counts the updates of the row instead:
#
#     m[r] = decay * m[r] + (1 - decay) * g[r]
#     v[r] = square_decay * v[r] + (1 - square_decay) * g[r]²
#     t[r] += 1
#     weight[r] -= rate * (m[r] / (1 - decay^t[r])) / (√(v[r] / (1 - square_decay^t[r])) + epsilon)
#
# Here g[r] is the gradient of row r, and m[r] and v[r] are the row's moments. On a CPU, compiled code reads
# and writes each row once (training/native/lazy_adam.cpp).


# The number of threads is at most the count of updated numbers divided by this number.
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
        """Updates the rows of a gradient. `step` is the step of the training."""
        on_host = gradient.values.device.type == "cpu" and gradient.values.dtype == torch.float32
        if on_host and library() is not None:
            self.table.add_to_rows(gradient.rows, self.compiled_change(gradient, rate), step)
            return
        rows, values = gradient.rows, gradient.values
        mean = self.mean.index_select(0, rows).lerp_(values, 1 - self.decay)
        square = self.square.index_select(0, rows).mul_(self.square_decay)
        square.addcmul_(values, values, value=1 - self.square_decay)
        updates = self.updates.index_select(0, rows) + 1
        self.mean.index_copy_(0, rows, mean)
        self.square.index_copy_(0, rows, square)
        self.updates.index_copy_(0, rows, updates)
        times = updates.double().unsqueeze(1)
        mean_bias = (1 - self.decay**times).float()
        square_bias = (1 - self.square_decay**times).float()
        scale = square.div_(square_bias).sqrt_().add_(self.epsilon)
        self.table.add_to_rows(rows, mean.div_(mean_bias).div_(scale).mul_(-rate), step)

    def compiled_change(self, gradient: SummedRowGradient, rate: float, instructions: int = BEST) -> Tensor:
        """Updates the moments of the rows, and returns the change (N, E) of their weights, by compiled code.

        Args:
            gradient: the gradient of N rows.
            rate: the learning rate.
            instructions: BEST, or the instructions to use.
        """
        mean, square, updates = self.mean, self.square, self.updates
        if isinstance(mean, Tensor) and isinstance(square, Tensor) and isinstance(updates, Tensor):
            return self._run_compiled(gradient, (mean, square, updates), rate, instructions)
        # The rows are in two memories.
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
        """Computes `compiled_change` for these moments and update counts."""
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


# Stochastic gradient descent on the rows of a table that a batch looked up. The optimizer has no state.


class RowSgd:
    """Updates each row r that has a gradient: weight[r] -= rate * gradient[r]."""

    def __init__(self, table: StackedEmbedding) -> None:
        self.table = table

    @torch.no_grad()
    def step(self, gradient: SummedRowGradient, rate: float, step: int) -> None:
        """Updates the rows of a gradient. `step` is the step of the training."""
        self.table.add_to_rows(gradient.rows, gradient.values * -rate, step)

    @torch.no_grad()
    def step_lookups(self, gradient: LookupGradient, rate: float, step: int) -> None:
        """Uses the update kernel to do the same as `step`, for a gradient with one entry per lookup."""
        self.table.apply_lookup_gradient(gradient, rate, step)

    def state(self) -> dict[str, RowTensor]:
        """Returns an empty dictionary, because SGD has no state."""
        return {}


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
    """A row optimizer that can use the update kernel. The kernel also sums the gradients of a row."""

    def step_lookups(self, gradient: LookupGradient, rate: float, step: int) -> None:
        """Does one step, as `step` does, for a table that uses Triton kernels."""
        ...


_KINDS: dict[str, Callable[[StackedEmbedding], RowOptimizer]] = {
    "row_wise_adagrad": RowWiseAdagrad,
    "sgd": RowSgd,
    "lazy_adam": LazyAdam,
}


def row_optimizer(name: str, table: StackedEmbedding) -> RowOptimizer:
    """Creates an optimizer for a table, by the name in `train.embeddings.optimizer`."""
    return _KINDS[name](table)
