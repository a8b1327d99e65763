"""The embedding table: ids in, vectors out, gradients by row.

One matrix holds the rows of all features made of ids, one feature after the other. So a batch is one gather,
whatever the number of features, and one more for features that are lists of ids. If rows are spread over
ranks, the matrix holds the rows of this rank. Only this folder knows which row of the matrix holds which id.
Code that writes rows to disk and reads them back uses `blocks`.

Autograd computes no gradient of the table or of its elements. The vectors that a batch looked up are leaves
of autograd, and their gradients are summed by distinct row in one pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from storage.feature_spec import PAD_ID
from training import kernels
from training.distributed.collectives import ALONE, Collectives
from training.embeddings import counter_rng
from training.embeddings.exchange import fetch, return_gradient, sum_over_ranks
from training.embeddings.lookup import BatchLookup, ListElements, Pooling
from training.embeddings.placement import Placement, replicate_all
from training.embeddings.router import Router
from training.embeddings.row_gradients import LookupGradient, SummedRowGradient
from training.embeddings.row_storage import round_stochastically
from training.embeddings.rows import RowBlock, group, sum_rows

# Numbers that are drawn at a time. They fit a core's cache, whatever the size of the table.
_DRAWN_NUMBERS = 2**18


class StackedEmbedding(nn.Module):
    """Embedding rows of C features in one table; all zero at first.

    Args:
        cardinalities: rows of each feature, in order.
        dim: E, numbers a row.
        list_lengths: columns of ids of each of the last features, which are lists of ids. Other features have
            one column.
        pooling: how the vectors of a list become one.
        storage: dtype of the numbers. Vectors and gradients are float32 in any case.
        placement: which rank holds which rows; None holds all of them here.
        collectives: of the ranks of the placement. `forward` calls them only if rows are exchanged. Then all
            ranks must call `forward` equally often.

    Attributes:
        blocks: the rows that this rank holds, in the order of the matrix.
        may_use_kernels: whether lookups and updates use kernels on a device that has them; `set_kernels` sets
            it.
    """

    blocks: tuple[RowBlock, ...]
    may_use_kernels = True

    def __init__(
        self,
        cardinalities: Sequence[int],
        dim: int,
        list_lengths: Sequence[int] = (),
        pooling: Pooling = "mean",
        storage: torch.dtype = torch.float32,
        placement: Placement | None = None,
        collectives: Collectives = ALONE,
    ) -> None:
        super().__init__()
        self.cardinalities = tuple(cardinalities)
        self.list_lengths = tuple(list_lengths)
        self.pooling = pooling
        self.placement = placement or replicate_all(self.cardinalities, collectives.size)
        self._collectives = collectives
        self.blocks = self.placement.blocks(collectives.rank)
        rows = self.placement.rows_of(collectives.rank)
        self.weight = nn.Parameter(torch.zeros(rows, dim, dtype=storage), requires_grad=False)
        self.router = Router(self.placement, collectives.rank)
        self._num_single = len(self.cardinalities) - len(self.list_lengths)
        self._lookups: list[BatchLookup] = []
        # One draw, so that later draws do not depend on the number of rows of this rank.
        self._seed = int(torch.randint(2**62, ()))

    @property
    def on_kernels(self) -> bool:
        """Whether lookups and updates of this table use kernels."""
        return self.may_use_kernels and kernels.available(self.weight.device)

    @torch.no_grad()
    def init_uniform(self) -> None:
        """Fills each feature's rows from U(-1/√n, 1/√n), n its cardinality, as the authors of DLRM do.

        The padding row of a list stays zero: no lookup reads it and no gradient changes it. Equal seeds of
        torch give a row equal numbers on any rank.
        """
        dim = self.weight.shape[1]

        def draw(seed: int, rows: Tensor, feature: int) -> Tensor:
            bound = 1 / math.sqrt(max(self.cardinalities[feature], 1))
            return counter_rng.uniform(seed, rows, range(dim)).mul_(2 * bound).sub_(bound)

        self._fill(draw)

    @torch.no_grad()
    def init_normal(self, deviation: float) -> None:
        """Fills all rows but the padding rows of lists from N(0, deviation²); seeds as in `init_uniform`."""
        dim = self.weight.shape[1]
        self._fill(lambda seed, rows, feature: counter_rng.normal(seed, rows, dim).mul_(deviation))

    def _fill(self, draw: Callable[[int, Tensor, int], Tensor]) -> None:
        """Sets all rows to what `draw` returns for a seed, rows of the unsharded table and their feature."""
        seed = int(torch.randint(2**62, ()))
        count = max(_DRAWN_NUMBERS // self.weight.shape[1], 1)
        for block, rows in zip(self.blocks, self.block_rows(), strict=True):
            places = range(block.place, block.place + block.rows, count)
            for part, place in zip(rows.split(count), places, strict=True):
                local = torch.arange(place, place + len(part), device=rows.device)
                part.copy_(draw(seed, self.router.unsharded_rows(local), block.feature))
            if block.feature >= self._num_single and block.first == PAD_ID and block.rows:
                rows[PAD_ID] = 0

    def block_rows(self) -> list[Tensor]:
        """A view (rows, E) of each block's rows; of each feature's rows if all ranks hold all rows."""
        weight = self.weight.detach()
        return [weight[block.place : block.place + block.rows] for block in self.blocks]

    def forward(self, ids: Tensor) -> Tensor:
        """Vectors (B, C, E) float32 of ids (B, W) int32 or int64, each in [0, cardinality of its feature).

        PAD_ID in a list counts neither in the sum nor in the mean; the vector of an empty list is zero.
        """
        with torch.no_grad():
            lookup = self._look_up(ids)
        if torch.is_grad_enabled() and self.training:
            lookup.vectors.requires_grad_()
            self._lookups.append(lookup)
        return lookup.vectors

    def _look_up(self, ids: Tensor) -> BatchLookup:
        single, listed = ids[:, : self._num_single], ids[:, self._num_single :].long()
        lists = ListElements.of(listed, self.list_lengths, self._num_single) if self.list_lengths else None
        keys = self._keys(single, self.router.features[: self._num_single]).flatten()
        if lists is not None:
            keys = torch.cat([keys, self._keys(lists.ids, lists.features)])
        table: Tensor = self.weight
        positions, groups, exchanged = keys, None, None
        if self.placement.exchanges:
            groups = group(keys, self.router.end)
            positions = groups.position()
            table, exchanged = fetch(groups.keys, self.weight, self.router, self._collectives)
        elif self.may_use_kernels and kernels.available(ids.device) and table.dtype != torch.int8:
            first_rows = self.router.replicated_places[: len(self.cardinalities)]
            vectors = kernels.look_up(table, ids, first_rows, self.list_lengths, self.pooling == "mean")
            return BatchLookup(vectors, keys, lists)
        vectors = self._take(table, positions[: single.numel()])
        vectors = vectors.view(*single.shape, table.shape[1])
        if lists is not None:
            list_positions = positions[single.numel() :]
            if table.dtype != torch.float32:
                table = self._take(table, list_positions)
                list_positions = torch.arange(len(list_positions), device=table.device)
            pooled = lists.pool(table, list_positions, self.pooling)
            vectors = torch.cat([vectors, pooled], dim=1)
        return BatchLookup(vectors, keys, lists, groups, exchanged)

    def _take(self, table: Tensor, positions: Tensor) -> Tensor:
        """(N, E) float32: the rows `positions` (N,) of a table of this storage."""
        return table.index_select(0, positions).float()

    def _keys(self, ids: Tensor, features: Tensor) -> Tensor:
        if self.placement.exchanges:
            return self.router.keys(ids, features)
        return ids + self.router.replicated_places[features]

    @torch.no_grad()
    def take_gradient(self, collectives: Collectives = ALONE) -> SummedRowGradient:
        """The gradient since the last call, summed over ranks and sorted by row. Clears it.

        It has no rows if no gradient was computed. All ranks get the same gradient of rows that all hold.

        Args:
            collectives: of the ranks that train on parts of one batch.
        """
        lookups, self._lookups = self._lookups, []
        lookups = [lookup for lookup in lookups if lookup.vectors.grad is not None]
        parts = [self._gradient(lookup) for lookup in lookups]
        replicated = self._sum([(part.rows, part.values) for part, _ in parts], distinct=len(parts) == 1)
        replicated = sum_over_ranks(replicated, collectives, self.router.span)
        if not self.placement.exchanges:
            return replicated
        owned = self._sum([part for _, part in parts if part is not None], distinct=False)
        return SummedRowGradient(
            torch.cat([replicated.rows, owned.rows]), torch.cat([replicated.values, owned.values])
        )

    @torch.no_grad()
    def take_lookup_gradient(self) -> LookupGradient | None:
        """The gradient of the only batch since the last call, with an entry for each lookup. Clears it.

        Returns:
            None, and clears nothing, if rows are exchanged or there was not one batch: then use
            `take_gradient`.
        """
        if self.placement.exchanges or len(self._lookups) != 1:
            return None
        lookup = self._lookups.pop()
        return LookupGradient(lookup.keys, *lookup.gradients(self.pooling))

    def _gradient(self, lookup: BatchLookup) -> tuple[SummedRowGradient, tuple[Tensor, Tensor] | None]:
        """The gradient of one lookup.

        Returns:
            The gradient of replicated rows, from this rank; and rows (A,) that this rank alone holds, with
            repeats, and their values (A, E) from all ranks, or None if no rows are exchanged.
        """
        flat, sources, weights = lookup.gradients(self.pooling)
        groups = lookup.groups or group(lookup.keys, self.router.span)
        values = groups.sum(flat, sources, weights)
        if lookup.exchanged is None:
            return SummedRowGradient(groups.keys, values), None
        owned, replicated = return_gradient(values, lookup.exchanged, self._collectives)
        return replicated, (lookup.exchanged.requested, owned)

    def _sum(self, parts: Sequence[tuple[Tensor, Tensor]], *, distinct: bool) -> SummedRowGradient:
        """The sum of (rows, values) by row. Pass `distinct` if no row occurs twice."""
        weight = self.weight
        no_rows = torch.zeros(0, dtype=torch.int64, device=weight.device)
        no_values = torch.zeros(0, weight.shape[1], device=weight.device)
        rows = torch.cat([no_rows, *(rows for rows, _ in parts)])
        values = torch.cat([no_values, *(values for _, values in parts)])
        return SummedRowGradient(rows, values) if distinct else sum_rows(rows, values, self.router.span)

    @torch.no_grad()
    def add_to_rows(self, rows: Tensor, change: Tensor, step: int) -> None:
        """Adds `change` (N, E) float32 to the rows (N,) of this rank's matrix, which are distinct.

        Args:
            rows: distinct rows.
            change: what is added.
            step: of the training. With the row it determines how 16-bit numbers are rounded.
        """
        if self.weight.dtype == torch.float32:
            self.weight.index_add_(0, rows, change)
            return
        values = self.weight.index_select(0, rows).float() + change
        unsharded = self.router.unsharded_rows(rows)
        rounded = round_stochastically(values, self.weight.dtype, self._seed + step, unsharded)
        self.weight.index_copy_(0, rows, rounded)

    @torch.no_grad()
    def apply_lookup_gradient(
        self,
        gradient: LookupGradient,
        rate: float,
        step: int,
        accumulator: Tensor | None = None,
        epsilon: float = 1e-8,
    ) -> None:
        """One step by the update kernel: row-wise Adagrad, or SGD without an accumulator (rows,)."""
        kernels.update(
            self.weight.detach(),
            accumulator,
            gradient.rows,
            gradient.values,
            rate,
            sources=gradient.sources,
            scales=gradient.weights,
            epsilon=epsilon,
            seed=self._seed,
            step=step,
        )


def tables_of(model: nn.Module) -> dict[str, StackedEmbedding]:
    """The embedding tables of a model, by the name of their weight in its state."""
    return {
        f"{name}.weight": module
        for name, module in model.named_modules()
        if isinstance(module, StackedEmbedding)
    }


def set_kernels(model: nn.Module, use: bool) -> None:
    """Sets whether the tables of a model may use kernels. Call it before the model gets an optimizer."""
    for table in tables_of(model).values():
        table.may_use_kernels = use
