"""The models of benchmarks/peers/plain_run.py: a small DLRM, logistic regression, and their training.

The sizes, the initial weights and the learning rates are those of benchmarks/run.yaml: row-wise Adagrad for the
embedding table, Adam for all other parameters, one epoch.

Notation: B rows, C = 26 columns of ids, D = 13 integers, E = 16 elements of a vector, F = 27 vectors per row,
P = F (F - 1) / 2 pairs of vectors, H = 64 outputs of the first layer of the top MLP.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.peers.plain_data import CATEGORICAL, DENSE

DIM, BOTTOM, TOP = 16, 64, (64, 32)
VECTORS = 1 + len(CATEGORICAL)
BATCH = 2048
LEARNING_RATE, EMBEDDING_LEARNING_RATE = 3e-3, 0.15
_BETA1, _BETA2, _ADAM_EPSILON, _ADAGRAD_EPSILON = 0.9, 0.999, 1e-8, 1e-8
_WARMUP_SHARE, _DECAY_START_SHARE = 0.05, 0.6
# A table with more rows than this is updated only in the rows of the batch. Smaller tables are updated as a whole.
_SMALL_TABLE_ROWS = 4 * BATCH


def pair_positions() -> Tensor:
    """Returns the position of each pair of vectors among the P pairs, (F, F); P on the diagonal."""
    first, second = torch.tril_indices(VECTORS, VECTORS, -1)
    positions = torch.full((VECTORS, VECTORS), len(first))
    positions[first, second] = positions[second, first] = torch.arange(len(first))
    return positions


_POSITIONS = pair_positions().flatten()
_FIRST, _SECOND = torch.tril_indices(VECTORS, VECTORS, -1)
_LOWER = _FIRST * VECTORS + _SECOND


class _PairDots(torch.autograd.Function):
    """Dot products (B, P) of all pairs of vectors (B, F, E).

    The gradient of the vectors is one product with a symmetric matrix per row, in place of two products.
    """

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        ctx.save_for_backward(vectors)
        return torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, _LOWER)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (vectors,) = ctx.saved_tensors
        padded = torch.cat([gradient, gradient.new_zeros(len(gradient), 1)], 1)
        symmetric = padded.index_select(1, _POSITIONS).view(-1, VECTORS, VECTORS)
        return torch.bmm(symmetric, vectors)


class Model(Protocol):
    """A model with one embedding table (rows, width) for all columns, and `dense` parameters."""

    table: Tensor
    dense: list[Tensor]

    def logits(self, dense: Tensor, vectors: Tensor) -> Tensor:
        """Returns logits (B,) of `dense` (B, D) and `vectors` (B, C, width)."""
        ...


class DLRM:
    """A DLRM with bottom MLP 64-16 and top MLP 64-32-1.

    Args:
        cardinalities: number of ids of each column.
    """

    def __init__(self, cardinalities: Sequence[int]) -> None:
        tables = [(torch.rand(rows, DIM) * 2 - 1) / math.sqrt(rows) for rows in cardinalities]
        self.table = torch.cat(tables)
        pairs = VECTORS * (VECTORS - 1) // 2
        widths = ((len(DENSE), BOTTOM), (BOTTOM, DIM), (DIM + pairs, TOP[0]), TOP, (TOP[1], 1))
        # Weight and bias of each layer: two of the bottom MLP, three of the top MLP.
        self.dense = [
            parameter for width_in, width_out in widths for parameter in _layer(width_in, width_out)
        ]

    def logits(self, dense: Tensor, vectors: Tensor) -> Tensor:
        bottom1, bias1, bottom2, bias2, top1, bias3, top2, bias4, top3, bias5 = self.dense
        hidden = functional.linear(dense, bottom1, bias1).relu()
        bottom = functional.linear(hidden, bottom2, bias2).relu()  # (B, E)
        dots: Tensor = _PairDots.apply(torch.cat([bottom.unsqueeze(1), vectors], 1))  # (B, P)
        first = torch.addmm(functional.linear(bottom, top1[:, :DIM], bias3), dots, top1[:, DIM:].T).relu()
        return functional.linear(functional.linear(first, top2, bias4).relu(), top3, bias5).squeeze(1)


class LogisticRegression:
    """A weight for each id and each integer, and a bias. All start at zero.

    Args:
        cardinalities: number of ids of each column.
    """

    def __init__(self, cardinalities: Sequence[int]) -> None:
        self.table = torch.zeros(sum(cardinalities), 1)
        self.dense = [torch.zeros(len(DENSE), requires_grad=True), torch.zeros(1, requires_grad=True)]

    def logits(self, dense: Tensor, vectors: Tensor) -> Tensor:
        weights, bias = self.dense
        return dense @ weights + vectors.sum((1, 2)) + bias


def _layer(width_in: int, width_out: int) -> tuple[Tensor, Tensor]:
    weight = torch.randn(width_out, width_in) * math.sqrt(2 / (width_in + width_out))
    bias = torch.randn(width_out) * math.sqrt(1 / width_out)
    return weight.requires_grad_(), bias.requires_grad_()


@dataclass(frozen=True)
class Rows:
    """Rows of the log as tensors.

    Attributes:
        labels: (n,).
        dense: (n, D).
        ids: (n, C) int32, rows of the embedding table of all columns.
    """

    labels: Tensor
    dense: Tensor
    ids: Tensor


@dataclass
class OptimizerState:
    """The state of the optimizers: Adagrad's accumulator (rows,), and Adam's two moments and steps."""

    accumulator: Tensor
    moments: list[tuple[Tensor, Tensor]]
    steps: int = 0

    @classmethod
    def new(cls, model: Model) -> OptimizerState:
        """Returns the state before the first step of a model."""
        moments = [
            (torch.zeros_like(p, requires_grad=False), torch.zeros_like(p, requires_grad=False))
            for p in model.dense
        ]
        return cls(torch.zeros(len(model.table)), moments)


class Trainer:
    """Trains and applies models. Each thread computes a part of a batch.

    Torch's own threads are not used: an operator here takes less than a millisecond, and its threads would wait
    for each other after each operator.

    Args:
        rows: all rows.
        cardinalities: number of ids of each column.
        threads: number of threads.
    """

    def __init__(self, rows: Rows, cardinalities: Sequence[int], threads: int) -> None:
        torch.set_num_threads(1)
        self._rows, self._threads = rows, threads
        self._touched = _TouchedRows(cardinalities)
        self._pool = ThreadPoolExecutor(threads)

    def train(self, model: Model, state: OptimizerState, chosen: slice) -> None:
        """Trains a model for one epoch on the chosen rows in random order. Changes the model and the state."""
        order = torch.randperm(chosen.stop - chosen.start).add_(chosen.start)
        steps = -(-len(order) // BATCH)
        for step, batch in enumerate(order.split(BATCH)):
            rate = rate_factor(step, steps)
            parts = self._pool.map(partial(self._gradients, model, len(batch)), batch.chunk(self._threads))
            ids, of_vectors, *of_dense = zip(*parts, strict=True)
            _adagrad(
                model.table, state.accumulator, self._touched, torch.cat(ids), torch.cat(of_vectors),
                EMBEDDING_LEARNING_RATE * rate,
            )  # fmt: skip
            _adam(model.dense, state, [sum(gradients) for gradients in of_dense], LEARNING_RATE * rate)

    def _gradients(self, model: Model, batch_rows: int, part: Tensor) -> list[Tensor]:
        """Returns the ids (b, C) of a part of a batch, and the gradients of their vectors and of `dense`."""
        ids = self._rows.ids.index_select(0, part)
        vectors = functional.embedding(ids, model.table).requires_grad_()
        logits = model.logits(self._rows.dense.index_select(0, part), vectors)
        labels = self._rows.labels.index_select(0, part)
        loss = functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / batch_rows
        return [ids, *torch.autograd.grad(loss, [vectors, *model.dense])]

    def predict(self, model: Model, chosen: slice) -> Tensor:
        """Returns the logits of the chosen rows."""
        starts = range(chosen.start, chosen.stop, BATCH)
        parts = [slice(start, min(start + BATCH, chosen.stop)) for start in starts]
        return torch.cat(list(self._pool.map(partial(self._logits, model), parts)))

    @torch.inference_mode()
    def _logits(self, model: Model, part: slice) -> Tensor:
        vectors = functional.embedding(self._rows.ids[part], model.table)
        return model.logits(self._rows.dense[part], vectors)


def rate_factor(step: int, steps: int) -> float:
    """Returns the factor of the learning rates at a step: linear warm-up, constant, quadratic decay to 0."""
    if step < _WARMUP_SHARE * steps:
        return min((step + 1) / (_WARMUP_SHARE * steps), 1.0)
    decay_start = _DECAY_START_SHARE * steps
    return 1.0 if step < decay_start else ((steps - step) / (steps - decay_start)) ** 2


class _TouchedRows:
    """Finds the rows of the stacked table that a step updates.

    All rows of small tables are updated; rows without a gradient do not change. Of a large table, only the rows
    of the batch are updated.
    """

    def __init__(self, cardinalities: Sequence[int]) -> None:
        self._large = [column for column, rows in enumerate(cardinalities) if rows > _SMALL_TABLE_ROWS]
        starts = torch.tensor([0, *cardinalities]).cumsum(0)[:-1]
        self._rows = int(sum(cardinalities))
        small = [column for column in range(len(cardinalities)) if column not in self._large]
        self._small_rows = torch.cat([torch.arange(cardinalities[c]) + starts[c] for c in small])
        # What to subtract from an id, so that the small tables are stacked without the large ones.
        gaps = [
            sum(cardinalities[large] for large in self._large if large < c) for c in range(len(cardinalities))
        ]
        self._gaps = torch.tensor(gaps, dtype=torch.int32)

    def of(self, ids: Tensor) -> tuple[Tensor | None, Tensor, int]:
        """Returns the rows to update, the position of each id among them, and their number.

        The rows are None if all rows are updated.
        """
        if not self._large:
            return None, ids, self._rows
        places, rows = ids - self._gaps, [self._small_rows]
        total = len(self._small_rows)
        for column in self._large:
            unique, inverse = torch.unique(ids[:, column], return_inverse=True)
            places[:, column] = inverse + total
            rows.append(unique.long())
            total += len(unique)
        return torch.cat(rows), places, total


@torch.no_grad()
def _adagrad(
    table: Tensor, accumulator: Tensor, touched: _TouchedRows, ids: Tensor, gradient: Tensor, rate: float
) -> None:
    """Row-wise Adagrad: accumulator += mean(gradient²); row -= rate * gradient / (√accumulator + epsilon)."""
    rows, places, total = touched.of(ids)
    width = table.shape[1]
    index = places.flatten().long().unsqueeze(1).expand(-1, width)
    summed = table.new_zeros(total, width).scatter_add_(0, index, gradient.view(-1, width))
    squares = summed.square().mean(1)
    if rows is None:
        accumulator += squares
        table.addcdiv_(summed, accumulator.sqrt().add_(_ADAGRAD_EPSILON).unsqueeze(1), value=-rate)
        return
    of_rows = accumulator.index_select(0, rows).add_(squares)
    accumulator.index_copy_(0, rows, of_rows)
    table.index_add_(0, rows, summed / of_rows.sqrt().add_(_ADAGRAD_EPSILON).unsqueeze(1), alpha=-rate)


@torch.no_grad()
def _adam(
    parameters: Sequence[Tensor], state: OptimizerState, gradients: Sequence[Tensor], rate: float
) -> None:
    """A step of Adam. torch.optim is not used, because its first step imports torch's compiler."""
    state.steps += 1
    corrected = rate / (1 - _BETA1**state.steps)
    scale = math.sqrt(1 - _BETA2**state.steps)
    for parameter, gradient, (first, second) in zip(parameters, gradients, state.moments, strict=True):
        first.lerp_(gradient, 1 - _BETA1)
        second.mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
        parameter.addcdiv_(first, second.sqrt().div_(scale).add_(_ADAM_EPSILON), value=-corrected)
