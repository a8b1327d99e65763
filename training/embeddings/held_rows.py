"""The rows of an embedding table that a rank holds: their memory, their first numbers, and their updates.

The rows of all features are one matrix. Only the modules of this folder depend on which row of the matrix
holds which id. Code that saves and loads rows uses `HeldRows.blocks`.

Notation: C features that are ids, E numbers per row, N rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from training import kernels
from training.embeddings import counter_rng
from training.embeddings.initial_rows import fill_rows
from training.embeddings.placed_rows import Placement
from training.embeddings.router import Router
from training.embeddings.row_gradients import LookupGradient
from training.embeddings.row_storage import round_stochastically
from training.embeddings.rows import RowBlock
from training.embeddings.tiered_rows import RowTensor, TieredRows, rows_of_block


class HeldRows(nn.Module):
    """The rows of C features that a rank holds. All rows are zero at first.

    Args:
        placement: which rank holds which rows, and which of them are in host memory.
        rank: the rank.
        dim: E, numbers per row.
        storage: dtype of the stored numbers.
        pinned: whether host memory of rows is pinned, which kernels on a GPU need.

    Attributes:
        blocks: the rows that this rank holds; see `Placement.blocks`.
        weight: the rows on the device.
        tail: the rows in host memory; None if there are none. They stay there when the table is moved to a
            device.
        may_use_kernels: whether lookups and updates may use Triton kernels on devices that support them.
            `set_kernels` sets this attribute.
    """

    may_use_kernels = True
    holds_rows = True  # False if rows are read from files when they are needed
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
        # Only one number is drawn, so that later draws do not depend on this rank's number of rows.
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
        """Returns the rows of this rank: `weight`, with `tail` if there is one."""
        return self.weight if self.tail is None else self._tiered(self.weight.detach(), self.tail)

    def new_rows(self, *shape: int, dtype: torch.dtype = torch.float32) -> RowTensor:
        """Returns zeros of the shape `shape` for each row of this rank, in the memory of the row."""
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

        Here n is the cardinality of the feature. The padding row of a list feature stays zero: no lookup
        reads it and no gradient changes it. With the same torch seed, a row gets the same numbers on any
        rank.
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
            step: the step of the training. Together with the row, it determines how 16-bit numbers are
                rounded.
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
        """Returns the rows of the unsharded table, for rounding; None if the table does not need them."""
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
