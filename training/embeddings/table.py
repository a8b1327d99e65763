"""The embedding table: ids in, vectors out, gradients by row.

One matrix holds the rows of every feature made of ids, one feature after the other, so that a batch is one gather
whatever their number, and one more for features that are lists of ids. Where tables are spread over ranks the matrix
holds a rank's part of them. Nothing outside this folder knows where a row lies: `blocks` says it to those who write
rows to disk and read them back.

No gradient is ever made of the table, nor of its elements: the vectors that a batch looked up are leaves of autograd, and
from their gradients those of the distinct rows are added up in one pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from storage.feature_spec import PAD_ID
from training import kernels
from training.distributed.collectives import ALONE, Collectives
from training.embeddings import counter_rng
from training.embeddings.exchange import Fetched, fetch, return_gradient, sum_over_ranks
from training.embeddings.lookup import ListElements
from training.embeddings.placement import Placement, everywhere
from training.embeddings.router import Router
from training.embeddings.row_storage import round_stochastically
from training.embeddings.rows import Groups, Lookups, RowBlock, RowGradient, group, sum_rows

__all__ = ["RowBlock", "RowGradient", "StackedEmbedding", "set_kernels", "sum_rows", "tables_of"]

# Numbers that are drawn at a time: they stay in a core's cache, whatever the size of the table.
_DRAWN_NUMBERS = 2**18


@dataclass(frozen=True)
class _Lookup:
    """What a batch looked up, until its gradient is taken: N elements.

    Attributes:
        vectors: (B, C, E), the leaf.
        keys: (N,) of the router, or rows of the matrix where nothing is exchanged.
        groups, fetched: of these keys, where rows were exchanged.
    """

    vectors: Tensor
    keys: Tensor
    lists: ListElements | None
    groups: Groups | None
    fetched: Fetched | None


class StackedEmbedding(nn.Module):
    """Embedding rows of C features in one table; starts at zero.

    Args:
        cardinalities: rows of each feature, in order.
        dim: E, numbers a row.
        list_lengths: columns that each of the last features takes, which are lists of ids; all others take one.
        pooling: how the vectors of a list become one.
        storage: of the numbers. Vectors and gradients are float32 whatever it is.
        placement: which rank holds which rows; None holds all of them here.
        collectives: of the ranks that the placement names. They are used by `forward` only where rows are exchanged: then
            every rank must look up as often as the others.
    """

    def __init__(
        self,
        cardinalities: Sequence[int],
        dim: int,
        list_lengths: Sequence[int] = (),
        pooling: Literal["sum", "mean"] = "mean",
        storage: torch.dtype = torch.float32,
        placement: Placement | None = None,
        collectives: Collectives = ALONE,
    ) -> None:
        super().__init__()
        self.cardinalities = tuple(cardinalities)
        self.list_lengths = tuple(list_lengths)
        self.pooling = pooling
        self.placement = placement or everywhere(self.cardinalities, collectives.size)
        self._collectives = collectives
        self.blocks = self.placement.blocks(collectives.rank)
        rows = self.placement.rows_of(collectives.rank)
        self.weight = nn.Parameter(torch.zeros(rows, dim, dtype=storage), requires_grad=False)
        self.router = Router(self.placement, collectives.rank)
        self._single = len(self.cardinalities) - len(self.list_lengths)
        self._lookups: list[_Lookup] = []
        # One draw, so that what is drawn after it does not depend on how many rows this rank has.
        self._seed = int(torch.randint(2**62, ()))

    may_use_kernels = True
    """Whether lookups and their update are left to kernels on a device that has them; `set_kernels` sets this."""

    unsummed = False
    """Whether the optimiser adds gradients of equal rows up itself; it sets this."""

    @property
    def on_kernels(self) -> bool:
        return self.may_use_kernels and kernels.available(self.weight.device)

    blocks: tuple[RowBlock, ...]
    """The rows that this rank holds, in their order in the matrix."""

    @torch.no_grad()
    def init_uniform(self) -> None:
        """Fills each feature's rows from U(-1/√n, 1/√n), n its cardinality, as the authors of DLRM do.

        The padding row of a list stays zero: nothing reads it and nothing trains it. Equal seeds of torch give a row equal
        numbers wherever it lies.
        """
        dim = self.weight.shape[1]

        def draw(seed: int, rows: Tensor, feature: int) -> Tensor:
            bound = 1 / math.sqrt(max(self.cardinalities[feature], 1))
            return counter_rng.uniform(seed, rows, range(dim)).mul_(2 * bound).sub_(bound)

        self._fill(draw)

    @torch.no_grad()
    def init_normal(self, deviation: float) -> None:
        """Fills all rows from N(0, deviation²), but for the padding rows of lists; as `init_uniform`."""
        dim = self.weight.shape[1]
        self._fill(lambda seed, rows, feature: counter_rng.normal(seed, rows, dim).mul_(deviation))

    def _fill(self, draw: Callable[[int, Tensor, int], Tensor]) -> None:
        """Sets all rows to what `draw` returns for a seed, rows of the unsharded table and the feature they are of."""
        seed = int(torch.randint(2**62, ()))
        count = max(_DRAWN_NUMBERS // self.weight.shape[1], 1)
        for block, rows in zip(self.blocks, self.columns(), strict=True):
            for part, place in zip(
                rows.split(count), range(block.place, block.place + block.rows, count), strict=True
            ):
                held = torch.arange(place, place + len(part), device=rows.device)
                part.copy_(draw(seed, self.router.in_unsharded(held), block.feature))
            if block.feature >= self._single and block.first == PAD_ID and block.rows:
                rows[PAD_ID] = 0

    def columns(self) -> list[Tensor]:
        """A view (rows, E) of each block's rows: where all rows are on every rank, those of each feature, which ids index."""
        weight = self.weight.detach()
        return [weight[each.place : each.place + each.rows] for each in self.blocks]

    def forward(self, ids: Tensor) -> Tensor:
        """Vectors (B, C, E) float32 of ids (B, W) int32 or int64, each in [0, cardinality of its feature).

        Of a list PAD_ID is left out, of the sum and of the mean's count; the vector of an empty list is zero.
        """
        with torch.no_grad():
            found = self._look_up(ids)
        if torch.is_grad_enabled() and self.training:
            found.vectors.requires_grad_()
            self._lookups.append(found)
        return found.vectors

    def _look_up(self, ids: Tensor) -> _Lookup:
        single, listed = ids[:, : self._single], ids[:, self._single :].long()
        lists = ListElements.of(listed, self.list_lengths, self._single) if self.list_lengths else None
        keys = self._keys(single, self.router.features[: self._single]).flatten()
        if lists is not None:
            keys = torch.cat([keys, self._keys(lists.ids, lists.features)])
        table: Tensor = self.weight
        positions, groups, fetched = keys, None, None
        if self.placement.exchanges:
            groups = group(keys, self.router.end)
            positions = groups.position()
            table, fetched = fetch(groups.keys, self.weight, self.router, self._collectives)
        elif self.may_use_kernels and kernels.available(ids.device) and table.dtype != torch.int8:
            first_rows = self.router.shared_places[: len(self.cardinalities)]
            vectors = kernels.look_up(table, ids, first_rows, self.list_lengths, self.pooling == "mean")
            return _Lookup(vectors, keys, lists, None, None)
        vectors = self._take(table, positions[: single.numel()])
        vectors = vectors.view(*single.shape, table.shape[1])
        if lists is not None:
            of_lists = positions[single.numel() :]
            if table.dtype != torch.float32:
                table = self._take(table, of_lists)
                of_lists = torch.arange(len(of_lists), device=table.device)
            pooled = lists.pool(table, of_lists, self.pooling)
            vectors = torch.cat([vectors, pooled], dim=1)
        return _Lookup(vectors, keys, lists, groups, fetched)

    def _take(self, table: Tensor, positions: Tensor) -> Tensor:
        """(N, E) float32: the rows `positions` (N,) of a table of this storage."""
        return table.index_select(0, positions).float()

    def _keys(self, ids: Tensor, features: Tensor) -> Tensor:
        if self.placement.exchanges:
            return self.router.keys(ids, features)
        return ids + self.router.shared_places[features]

    @torch.no_grad()
    def take_gradient(self, collectives: Collectives = ALONE) -> RowGradient:
        """The gradient since the last call, which this clears, summed over ranks; no rows when there is none.

        Args:
            collectives: of the ranks that train on parts of one batch.

        Returns:
            Of the rows of this rank's matrix, sorted. All ranks get the same of rows that all hold. With `unsummed` set,
            and nobody to share them with, the `Lookups` of one batch as they are.
        """
        lookups, self._lookups = self._lookups, []
        if self.unsummed and collectives.size == 1 and not self.placement.exchanges and len(lookups) == 1:
            return self._unsummed(lookups[0])
        parts = [self._gradient(each) for each in lookups if each.vectors.grad is not None]
        shared = self._sum([each for each, _ in parts], distinct=len(parts) == 1)
        shared = sum_over_ranks(shared, collectives, self.router.span)
        if not self.placement.exchanges:
            return shared
        owned = self._sum([each for _, each in parts if each is not None], distinct=False)
        return RowGradient(torch.cat([shared.rows, owned.rows]), torch.cat([shared.values, owned.values]))

    def _gradient(self, lookup: _Lookup) -> tuple[RowGradient, RowGradient | None]:
        """Of what every rank holds, from this rank; and of what this rank holds, from all."""
        gradient = lookup.vectors.grad
        if gradient is None:
            raise RuntimeError("this lookup has no gradient")
        flat = gradient.reshape(-1, gradient.shape[2])
        groups = lookup.groups or group(lookup.keys, self.router.span)
        source = weights = None
        if lookup.lists is not None:
            source, weights = lookup.lists.sources(flat.shape[0], self._single, self.pooling)
        values = groups.sum(flat, source, weights)
        if lookup.fetched is None:
            return RowGradient(groups.keys, values), None
        owned, shared = return_gradient(values, lookup.fetched, self._collectives)
        return shared, owned

    def _unsummed(self, lookup: _Lookup) -> RowGradient:
        vectors = lookup.vectors
        gradient = torch.zeros_like(vectors) if vectors.grad is None else vectors.grad
        source = weights = None
        flat = gradient.reshape(-1, vectors.shape[2])
        if lookup.lists is not None:
            source, weights = lookup.lists.sources(flat.shape[0], self._single, self.pooling)
        return Lookups(lookup.keys, flat, source, weights)

    def _sum(self, parts: Sequence[RowGradient], *, distinct: bool) -> RowGradient:
        """The parts' gradients, added up by row unless it is known that no row occurs twice."""
        weight = self.weight
        rows = torch.cat(
            [torch.zeros(0, dtype=torch.int64, device=weight.device), *(each.rows for each in parts)]
        )
        nothing = torch.zeros(0, weight.shape[1], device=weight.device)
        values = torch.cat([nothing, *(each.values for each in parts)])
        return RowGradient(rows, values) if distinct else sum_rows(rows, values, self.router.span)

    @torch.no_grad()
    def move_rows(self, rows: Tensor, change: Tensor, step: int) -> None:
        """Adds `change` (N, E) float32 to the rows (N,) of this rank's matrix, which are distinct.

        Args:
            step: of the training; with the row it decides how 16-bit numbers are rounded.
        """
        if self.weight.dtype == torch.float32:
            self.weight.index_add_(0, rows, change)
            return
        moved = self.weight.index_select(0, rows).float() + change
        where = self.router.in_unsharded(rows)
        rounded = round_stochastically(moved, self.weight.dtype, self._seed + step, where)
        self.weight.index_copy_(0, rows, rounded)

    @torch.no_grad()
    def apply_lookups(
        self,
        gradient: Lookups,
        rate: float,
        step: int,
        accumulator: Tensor | None = None,
        epsilon: float = 1e-8,
    ) -> None:
        """One step of row-wise Adagrad, or of SGD without an accumulator (rows,), by what `unsummed` left as it was."""
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
        f"{name}.weight": each for name, each in model.named_modules() if isinstance(each, StackedEmbedding)
    }


def set_kernels(model: nn.Module, use: bool) -> None:
    """Leaves what kernels can do in a model to them, or to torch's operators; before the model gets an optimiser."""
    for table in tables_of(model).values():
        table.may_use_kernels = use
