"""The rows of an embedding table that a rank holds: their memory, initial values, and updates.

The rows of all features are one matrix. Only the modules of this folder depend on which row of the matrix
holds which id. Code that saves and loads rows uses `HeldRows.blocks`.

Notation: C features that are ids, E numbers per row, N rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from conf.train_types import EmbeddingStorage
from storage.feature_spec import PAD_ID
from training import kernels
from training.embeddings import counter_rng
from training.embeddings.counter_rng import random_bits
from training.embeddings.placement import Placement, Router
from training.embeddings.rows import LookupGradient, RowBlock, RowTensor, TieredRows, rows_of_block


class HeldRows(nn.Module):
    """The rows of C features that a rank holds. All rows are zero at first.

    Args:
        placement: which rank holds which rows, and which of them are in host memory.
        rank: the rank.
        dim: E, numbers per row.
        storage: dtype of the stored numbers.
        pinned: whether host memory of rows is pinned. Kernels on a GPU need pinned memory.

    Attributes:
        blocks: the rows that this rank holds; see `Placement.blocks`.
        weight: the rows on the device.
        tail: the rows in host memory; None if there are none. These rows stay in host memory when the table
            is moved to a device.
        may_use_kernels: whether lookups and updates may use Triton kernels on devices that support them.
            `set_kernels` sets this attribute.
    """

    may_use_kernels = True
    holds_rows = True  # False in a subclass that reads rows from files when needed
    list_lengths: tuple[int, ...] = ()

    def __init__(
        self, placement: Placement, rank: int, dim: int, storage: torch.dtype, *, pinned: bool
    ) -> None:
        super().__init__()
        self.placement = placement
        self.cardinalities = placement.cardinalities
        self.blocks: tuple[RowBlock, ...] = placement.blocks(rank) if self.holds_rows else ()
        rows = placement.hot_rows_of(rank) if self.holds_rows else 0
        self.weight = nn.Parameter(torch.zeros(rows, dim, dtype=storage), requires_grad=False)
        self.tail: Tensor | None = None
        if placement.hot is not None:
            rows = placement.tail_rows_of(rank)
            self.tail = torch.zeros(rows, dim, dtype=storage, device="cpu", pin_memory=pinned)
        self.router = Router(placement, rank)
        # Only this seed comes from torch's generator, so the generator's later numbers do not depend on how
        # many rows this rank has.
        self._seed = int(torch.randint(2**62, ()))

    @property
    def dim(self) -> int:
        """Returns E, the number of numbers per row."""
        return self.weight.shape[1]

    @property
    def on_kernels(self) -> bool:
        """Returns whether lookups and updates of this table use Triton kernels."""
        return self.may_use_kernels and kernels.available(self.weight.device)

    @property
    def matrix(self) -> RowTensor:
        """Returns the rows of this rank: `weight`, followed by `tail` if there is one."""
        return self.weight if self.tail is None else self._tiered(self.weight.detach(), self.tail)

    def new_rows(self, *shape: int, dtype: torch.dtype = torch.float32) -> RowTensor:
        """Returns zeros of the shape `shape` for each row of this rank, in the memory that holds the row."""
        device = self.weight.device
        hot = torch.zeros(len(self.weight), *shape, dtype=dtype, device=device)
        if self.tail is None:
            return hot
        pinned = self.tail.is_pinned()
        tail = torch.zeros(len(self.tail), *shape, dtype=dtype, device="cpu", pin_memory=pinned)
        return self._tiered(hot, tail)

    def _tiered(self, hot: Tensor, tail: Tensor) -> TieredRows:
        return TieredRows(hot, tail, self.placement.first_tail, by_kernel=self.on_kernels)

    @torch.no_grad()
    def init_uniform(self) -> None:
        """Initializes each feature's rows from U(-1/√n, 1/√n), as the authors of DLRM do.

        Here n is the cardinality of the feature. The padding row of a list feature stays zero, because no
        lookup reads it and no gradient changes it. With the same torch seed, a row gets the same numbers on
        any rank.
        """

        def draw(seed: int, rows: Tensor, feature: int) -> Tensor:
            bound = 1 / math.sqrt(max(self.cardinalities[feature], 1))
            return counter_rng.uniform(seed, rows, range(self.dim)).mul_(2 * bound).sub_(bound)

        fill_rows(self, draw)

    @torch.no_grad()
    def init_normal(self, deviation: float) -> None:
        """Initializes all rows from N(0, deviation²), except the padding rows of lists.

        With the same torch seed, a row gets the same numbers on any rank.
        """
        fill_rows(self, lambda seed, rows, feature: counter_rng.normal(seed, rows, self.dim).mul_(deviation))

    def block_rows(self) -> list[Tensor]:
        """Returns, for each block in `blocks`, a view (rows, E) of the block's rows.

        If all ranks hold all rows, there is one block per feature.
        """
        return [rows_of_block(self.matrix, block).detach() for block in self.blocks]

    @torch.no_grad()
    def add_to_rows(self, rows: Tensor, change: Tensor, step: int) -> None:
        """Adds `change` (N, E) float32 to the rows (N,) of this rank's matrix.

        Args:
            rows: the indices of the rows, all different.
            change: the numbers to add.
            step: the step of the training. The step and the row determine how 16-bit numbers are rounded.
        """
        if self.tail is None and self.weight.dtype == torch.float32:
            self.weight.index_add_(0, rows, change)
            return
        matrix = self.matrix
        values = matrix.index_select(0, rows).float() + change
        if matrix.dtype != torch.float32:
            unsharded = self.router.unsharded_rows(rows)
            values = round_stochastically(values, matrix.dtype, self._seed + step, unsharded)
        matrix.index_copy_(0, rows, values)

    def _names(self, rows: Tensor) -> Tensor | None:
        """Returns the rows' indices in the unsharded table, which determine how updates are rounded.

        The result is None if these indices equal `rows`, or if numbers have 32 bits and are not rounded.
        """
        moved = self.placement.exchanges or self.tail is not None
        if not moved or self.weight.dtype == torch.float32:
            return None
        return self.router.unsharded_rows(rows)

    @torch.no_grad()
    def apply_lookup_gradient(
        self,
        gradient: LookupGradient,
        rate: float,
        step: int,
        accumulator: RowTensor | None = None,
        epsilon: float = 1e-8,
    ) -> None:
        """Does one step of row-wise Adagrad with the update kernel.

        If `accumulator` (rows,) is None, this is one step of SGD.
        """
        matrix, tail, order_by = self.matrix, None, None
        sums = accumulator.hot if isinstance(accumulator, TieredRows) else accumulator
        if isinstance(matrix, TieredRows):
            tail = matrix.of_kernels(accumulator if isinstance(accumulator, TieredRows) else None)
            order_by = self.router.untiered_rows(gradient.rows)
        kernels.update(
            self.weight.detach(),
            sums,
            gradient.rows,
            gradient.values,
            rate,
            sources=gradient.sources,
            scales=gradient.weights,
            names=self._names(gradient.rows),
            epsilon=epsilon,
            seed=self._seed,
            step=step,
            tail=tail,
            order_by=order_by,
        )


# Tables store numbers in 32 bits, or in 16 bits with stochastic rounding of updates.
#
# Rounding to the nearest 16-bit number would lose every update that is smaller than half the distance between
# two neighbouring 16-bit numbers. Stochastic rounding rounds up with a probability proportional to the
# remainder (Gupta et al. 2015, "Deep Learning with Limited Numerical Precision", ICML, section 3.1). So the
# expected value of the rounded number is the number itself.

DTYPES: dict[EmbeddingStorage, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
_FP16_SMALLEST_NORMAL = 2.0**-14
_FP16_SMALLEST = 2.0**-24
_FP16_LARGEST = 65504.0


def round_stochastically(values: Tensor, dtype: torch.dtype, seed: int, rows: Tensor) -> Tensor:
    """Rounds values (N, E) to 16-bit numbers.

    Each value becomes one of its two neighbours, with probabilities that keep the expected value.

    NaN stays NaN. float16 values are clipped to ±65504.

    Args:
        values: (N, E) float32.
        dtype: torch.bfloat16 or torch.float16.
        seed: seed of the random bits.
        rows: (N,), the indices of the rows in the unsharded table. Only seed, row and column determine the
            random bits.
    """
    random = random_bits(seed, rows, range(values.shape[1]))
    if dtype == torch.bfloat16:
        return torch.where(values.isfinite(), _add_and_cut(values, random, 16), values).to(dtype)
    clipped = values.clamp(-_FP16_LARGEST, _FP16_LARGEST)  # keeps NaN
    share = (random & 0xFFFFFF).float().mul_(2.0**-24)
    subnormal = (clipped / _FP16_SMALLEST + share).floor_() * _FP16_SMALLEST
    rounded = torch.where(clipped.abs() < _FP16_SMALLEST_NORMAL, subnormal, _add_and_cut(clipped, random, 13))
    return torch.where(clipped.isnan(), clipped, rounded).to(dtype)


def _add_and_cut(values: Tensor, random: Tensor, bits: int) -> Tensor:
    """Adds random bits to the lowest `bits` bits of each value, and then sets these bits to zero.

    If the addition produces a carry into the higher bits, the value is rounded away from zero.
    """
    below = (1 << bits) - 1
    return ((values.view(torch.int32) + (random & below)) & ~below).view(torch.float32)


# The code below sets the rows of an embedding table to random numbers that do not depend on the ranks.

# This many numbers are drawn at a time for a table of any size. On a CPU, they fit into a core's cache. A GPU
# must draw more at a time, because starting an operation takes as long as computing a million numbers.
_DRAWN_NUMBERS = 2**18
_DRAWN_ON_A_GPU = 2**25


class FilledTable(Protocol):
    """The attributes of an embedding table (`StackedEmbedding`) that `fill_rows` uses."""

    blocks: tuple[RowBlock, ...]
    router: Router
    cardinalities: tuple[int, ...]
    list_lengths: tuple[int, ...]

    @property
    def dim(self) -> int:
        """Returns how many numbers a row has."""

    def block_rows(self) -> Sequence[Tensor]:
        """Returns, for each block in `blocks`, a view of the table rows of this block."""


@torch.no_grad()
def fill_rows(table: FilledTable, draw: Callable[[int, Tensor, int], Tensor]) -> None:
    """Sets all rows of a table to the result of `draw(seed, rows of the unsharded table, feature)`.

    The padding row of a list feature becomes zero.
    """
    seed = int(torch.randint(2**62, ()))
    first_list = len(table.cardinalities) - len(table.list_lengths)
    # Use the device of the router, because a GPU also draws the numbers for rows in host memory.
    device = table.router.block_ends.device
    count = max((_DRAWN_NUMBERS if device.type == "cpu" else _DRAWN_ON_A_GPU) // table.dim, 1)
    for block, rows in zip(table.blocks, table.block_rows(), strict=True):
        places = range(block.place, block.place + block.rows, count)
        for part, place in zip(rows.split(count), places, strict=True):
            local = torch.arange(place, place + len(part), device=device)
            part.copy_(draw(seed, table.router.unsharded_rows(local), block.feature))
        if block.feature >= first_list and block.first == PAD_ID and block.rows:
            rows[PAD_ID] = 0
