"""The embedding table, which maps ids to vectors and sums gradients by row.

One matrix holds the rows of all features that are ids, one feature after the other. So one gather looks up a
batch, for any number of features. If some features are lists of ids, there is a second gather. If rows are
spread over ranks, the matrix holds the rows of this rank. Only the modules of this folder depend on which row
of the matrix holds which id. Code that saves and loads rows uses `StackedEmbedding.blocks`.

Autograd does not compute a gradient of the table. The vectors that a batch looked up are leaves of autograd,
and their gradients are summed by distinct row in one pass.

Notation: B rows of a batch, C features that are ids, W columns of ids, E numbers per row, N lookups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from storage.feature_spec import PAD_ID
from training import kernels
from training.collectives import ALONE, Collectives
from training.embeddings.held_rows import HeldRows
from training.embeddings.lookup import (
    BatchLookup,
    BatchRows,
    ExchangedRows,
    ListElements,
    PaddedLists,
    Pooling,
    RowsOfBatch,
    start_return,
    sum_over_ranks,
)
from training.embeddings.placement import Placement, Router, replicate_all
from training.embeddings.rows import (
    Groups,
    LookupGradient,
    RowTensor,
    SummedRowGradient,
    TieredRows,
    group,
    sum_rows,
)


class StackedEmbedding(HeldRows):
    """Embedding rows of C features in one table. All rows are zero at first.

    Args:
        cardinalities: number of rows of each feature, in the order of the features.
        dim: E, numbers per row.
        list_lengths: number of id columns of each list feature. List features come last; each other feature
            has one column.
        pooling: how the vectors of a list are combined into one vector.
        storage: dtype of the stored numbers. The dtype of vectors does not depend on it.
        placement: which rank holds which rows; None means that this process holds all rows.
        collectives: the collectives of the ranks in the placement. `forward` uses them only if rows are
            exchanged. In this case, all ranks must call `forward` the same number of times.
        pinned: whether host memory of rows is pinned. Kernels on a GPU need pinned memory.

    Attributes:
        batch_rows: computes the rows that batches read. A training run requests them before the step
            (train_step.py).
        reuses_memory: whether the vectors of all training batches are written to the same memory, if kernels
            are used. A CUDA graph that reads this memory needs no copy of the vectors.
        hot_share: counts the lookups of a training run, and how many of them read rows in device memory; None
            if no rows are in host memory.
    """

    reuses_memory = False

    def __init__(
        self,
        cardinalities: Sequence[int],
        dim: int,
        list_lengths: Sequence[int] = (),
        pooling: Pooling = "mean",
        storage: torch.dtype = torch.float32,
        placement: Placement | None = None,
        collectives: Collectives = ALONE,
        *,
        pinned: bool = False,
    ) -> None:
        placement = placement or replicate_all(cardinalities, collectives.size)
        super().__init__(placement, collectives.rank, dim, storage, pinned=pinned)
        self.list_lengths = tuple(list_lengths)
        self.pooling = pooling
        self._collectives = collectives
        self._num_single = len(self.cardinalities) - len(self.list_lengths)
        self.hot_share = HotShare(self._num_single) if self.router.tiered else None
        self.batch_rows = BatchRows(self.placement, self.router, list_lengths, collectives)
        self._pending = PendingLookups(self.placement, self.router, pooling, collectives)
        self._memory: Tensor | None = None
        self._vector_dtype = torch.float32

    def forward(self, ids: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Returns the vectors (B, C, E) of ids (B, W) int32 or int64.

        Each id must be in [0, cardinality of its feature).

        In a list, PAD_ID is ignored in the sum and in the mean. The vector of an empty list is zero.

        Args:
            ids: the ids.
            dtype: the dtype of the vectors and of their gradients. Sums are computed in float32.
        """
        if torch.compiler.is_exporting():
            places, mean = self.router.replicated_places, self.pooling == "mean"
            return plain_vectors(self.weight, self._scales(), ids, places, self.list_lengths, mean=mean)
        trains = self.training and torch.is_grad_enabled()
        if trains and self.hot_share is not None:
            self.hot_share.add(ids, self.router.hot[self._column_features(ids)])
        with torch.no_grad():
            self._vector_dtype = dtype if self.on_kernels else torch.float32
            rows = self.batch_rows.of_batch(ids, padded=self.on_kernels, trains=trains)
            if self.on_kernels:
                reused = self.reuses_memory and trains and not self._pending.any()
                lookup = self._look_up_by_kernel(rows, dtype, reused=reused)
            else:
                lookup = self._look_up(rows)
                lookup = replace(lookup, vectors=lookup.vectors.to(dtype))
        return self._recorded(lookup)

    def feature_vectors(self, ids: Tensor, feature: int) -> Tensor:
        """Returns the vectors (N, E) float32 of N ids of one feature, without pooling.

        Args:
            ids: (N,) int32 or int64.
            feature: index of the feature.
        """
        if torch.compiler.is_exporting():
            return plain_rows(self.weight, self._scales(), ids + self.router.replicated_places[feature])
        if self.hot_share is not None and self.training and torch.is_grad_enabled():
            self.hot_share.add_ids(ids, self.router.hot[feature])
        with torch.no_grad():
            rows = self.batch_rows.of_feature(ids, feature)
            table, positions, exchanged = self._rows_to_read(rows)
            vectors = self._take(table, positions).unsqueeze(1)
        return self._recorded(BatchLookup(vectors, ids, rows.keys, None, rows.groups, exchanged)).squeeze(1)

    def _recorded(self, lookup: BatchLookup) -> Tensor:
        """Returns the vectors of a lookup. In training, keeps the lookup until its gradient is read."""
        if torch.is_grad_enabled() and self.training:
            lookup.vectors.requires_grad_()
            self._pending.add(lookup)
        return lookup.vectors

    def _rows_to_read(
        self, rows: RowsOfBatch, dtype: torch.dtype = torch.float32
    ) -> tuple[RowTensor, Tensor, ExchangedRows | None]:
        """Returns a matrix, the position of each element's row in this matrix, and the exchanged rows.

        If the rows come from other ranks, the matrix has the dtype `dtype`.
        """
        if rows.request is None or rows.groups is None:
            return self.matrix, rows.keys, None
        table, exchanged = rows.request.vectors(self.matrix, dtype)
        return table, rows.groups.position(), exchanged

    def _look_up(self, rows: RowsOfBatch) -> BatchLookup:
        table, positions, exchanged = self._rows_to_read(rows)
        single = rows.ids[:, : self._num_single]
        vectors = self._take(table, positions[: single.numel()])
        vectors = vectors.view(*single.shape, table.shape[1])
        if isinstance(rows.lists, ListElements):
            list_positions = positions[single.numel() :]
            if isinstance(table, TieredRows) or table.dtype != torch.float32:
                table = self._take(table, list_positions)
                list_positions = torch.arange(len(list_positions), device=table.device)
            pooled = rows.lists.pool(table, list_positions, self.pooling)
            vectors = torch.cat([vectors, pooled], dim=1)
        return BatchLookup(vectors, rows.ids, rows.keys, rows.lists, rows.groups, exchanged)

    def _look_up_by_kernel(self, rows: RowsOfBatch, dtype: torch.dtype, *, reused: bool) -> BatchLookup:
        """Looks up a batch. With `reused`, the vectors overwrite those of the last call with `reused`."""
        table, positions, exchanged = self._rows_to_read(rows, dtype)
        ids, first_rows = rows.ids, self.router.replicated_places
        weight, tail = (table.hot, table.of_kernels()) if isinstance(table, TieredRows) else (table, None)
        if exchanged is not None or tail is not None:
            # The kernel ignores the id 0 in lists, but row 0 must be read. So row r gets the id r + 1, and -1
            # is passed as the row of id 0.
            ids = (positions + 1).view(ids.shape)
            first_rows = torch.full_like(first_rows, -1)
            if isinstance(rows.lists, PaddedLists):
                ids[:, self._num_single :].masked_fill_(~rows.lists.filled, 0)
        features = (first_rows, self.list_lengths, self.pooling == "mean")
        memory = self._memory if reused else None
        vectors = kernels.look_up(weight, ids, *features, dtype, scales=self._scales(), out=memory, tail=tail)
        if reused:
            self._memory, vectors = vectors, vectors.detach()
        return BatchLookup(vectors, rows.ids, rows.keys, rows.lists, rows.groups, exchanged)

    def _scales(self) -> Tensor | None:
        """Returns the factors (rows,) that turn rows of `weight` into vectors; None if all factors are 1."""
        return None

    def _column_features(self, ids: Tensor) -> Tensor:
        """Returns the feature of each column of `ids` (B, W), (W,) int64."""
        if not self.list_lengths:
            return self.router.features
        return PaddedLists.of(ids, self.list_lengths).features(self._num_single)

    def _take(self, table: RowTensor, positions: Tensor) -> Tensor:
        """Returns the rows of `table` with the indices `positions` (N,), as (N, E) float32."""
        return table.index_select(0, positions).float()

    def send_early(self, name: str) -> None:
        """Makes the backward pass send gradients to the ranks that hold the rows.

        `name` is the table's name, which must be the same on all ranks.
        """
        self.batch_rows.name = self._pending.name = name

    def has_only_looked_up(self, ids: Tensor) -> bool:
        """Returns whether `ids` is the only tensor that was looked up since the last gradient was taken."""
        return self._pending.only(ids)

    def start_fetch(self) -> None:
        """Sends the vectors that ranks requested for their next batch, in the dtype of the last lookup."""
        self.batch_rows.start_fetch(self.matrix, self._vector_dtype)

    def take_gradient(self, collectives: Collectives = ALONE) -> SummedRowGradient:
        """Returns and clears the rows' gradient since the last call; see `PendingLookups.take_gradient`."""
        return self._pending.take_gradient(self.weight, collectives)

    def take_lookup_gradient(self, collectives: Collectives = ALONE) -> LookupGradient | None:
        """Returns and clears the gradient of one batch; see `PendingLookups.take_lookup_gradient`."""
        return self._pending.take_lookup_gradient(collectives)


# The code below keeps the lookups of a table since the last step, and computes the gradient of the rows that
# they read.
#
# Notation: E numbers per row, N entries.

# The result of `start_return`: the gradient of replicated rows, and a function that waits for the gradients
# of this rank's other rows.
Return = tuple[SummedRowGradient, Callable[[], Tensor]]


class PendingLookups:
    """The lookups of one table whose gradients were not read yet.

    Args:
        placement, router, pooling: the attributes of the table.
        collectives: the collectives over which the table exchanges rows.

    Attributes:
        name: name of the table, the same on all ranks. If it is not empty, gradients are sent to other ranks
            as soon as the backward pass has computed them.
    """

    def __init__(
        self, placement: Placement, router: Router, pooling: Pooling, collectives: Collectives
    ) -> None:
        self._placement, self._router, self._pooling = placement, router, pooling
        self._collectives = collectives
        self.name = ""
        self._lookups: list[BatchLookup] = []
        self._names: dict[int, str] = {}
        self._hooks: dict[int, RemovableHandle] = {}
        self._returns: dict[int, Return] = {}

    def add(self, lookup: BatchLookup) -> None:
        """Adds the lookup of a batch."""
        if lookup.exchanged is not None and self.name:
            self._names[id(lookup)] = f"{self.name}.gradient.{len(self._lookups)}"
            self._hooks[id(lookup)] = lookup.vectors.register_post_accumulate_grad_hook(
                lambda _: self._start_return(lookup)
            )
        self._lookups.append(lookup)

    def any(self) -> bool:
        """Returns whether there is a lookup whose gradient has not been read yet."""
        return bool(self._lookups)

    def only(self, ids: Tensor) -> bool:
        """Returns whether exactly these ids were looked up, and no others."""
        return len(self._lookups) == 1 and self._lookups[0].ids is ids

    @torch.no_grad()
    def take_gradient(self, weight: Tensor, collectives: Collectives) -> SummedRowGradient:
        """Returns and clears the gradient since the last call, summed over ranks and sorted by row.

        The result has no rows if no gradient was computed. For rows that all ranks hold, all ranks get the
        same gradient.

        Args:
            weight: the table's matrix (rows, E).
            collectives: the collectives of the ranks that train on parts of one batch.
        """
        parts = [self._gradient(lookup) for lookup in self._lookups if lookup.vectors.grad is not None]
        self._clear()
        of_replicated = [(part.rows, part.values) for part, _ in parts]
        replicated = self._sum(weight, of_replicated, distinct=len(parts) == 1)
        if self._placement.replicated_rows:
            replicated = sum_over_ranks(replicated, collectives, self._router.span)
        if not self._placement.exchanges:
            return replicated
        owned = self._sum(weight, [part for _, part in parts if part is not None], distinct=False)
        return SummedRowGradient(
            torch.cat([replicated.rows, owned.rows]), torch.cat([replicated.values, owned.values])
        )

    @torch.no_grad()
    def take_lookup_gradient(self, collectives: Collectives) -> LookupGradient | None:
        """Returns and clears the gradient of the batch that was looked up since the last call.

        A row may have several entries.

        A single rank has an entry for each lookup. If there are several ranks, each rank sums the gradient of
        a row over its own lookups. The row then has an entry for each rank that looked it up. The update
        kernel sums the entries of a row.

        Returns:
            None if there was not exactly one batch. In this case nothing is cleared; use `take_gradient`
            instead.
        """
        if len(self._lookups) != 1:
            return None
        (lookup,) = self._lookups
        if collectives.size == 1 and not self._placement.exchanges:
            self._clear()
            return LookupGradient(lookup.keys, *lookup.gradients(self._pooling))
        part, owned = self._gradient(lookup)
        self._clear()
        rows, values = part.rows, part.values
        if self._placement.replicated_rows:
            rows, values = collectives.allgather(rows, values)
        if owned is not None:
            rows, values = torch.cat([rows, owned[0]]), torch.cat([values, owned[1]])
        return LookupGradient(rows, values)

    def _clear(self) -> None:
        for hook in self._hooks.values():
            # A hook and its lookup refer to each other. Without this call, both would stay in memory.
            hook.remove()
        self._lookups, self._names, self._hooks, self._returns = [], {}, {}, {}

    def _gradient(self, lookup: BatchLookup) -> tuple[SummedRowGradient, tuple[Tensor, Tensor] | None]:
        """Returns the gradient of one lookup.

        Returns:
            First, the gradient of replicated rows, from this rank. Second, for the rows that only this rank
            holds, the row indices (A,), which may repeat, and the gradients (A, E) from all ranks; None if no
            rows are exchanged.
        """
        if lookup.exchanged is None:
            return self._summed(lookup, group(lookup.keys, self._router.span)), None
        if id(lookup) not in self._returns:
            self._start_return(lookup)
        replicated, receive = self._returns.pop(id(lookup))
        return replicated, (lookup.exchanged.requested, receive())

    @torch.no_grad()
    def _start_return(self, lookup: BatchLookup) -> None:
        """Sends the gradients of rows that other ranks hold to these ranks.

        In a training step, the backward pass calls this method.
        """
        assert lookup.groups is not None
        assert lookup.exchanged is not None
        summed = self._summed(lookup, lookup.groups)
        name = self._names.get(id(lookup), "exchange")
        self._returns[id(lookup)] = start_return(
            summed.values, lookup.exchanged, self._collectives, lookup.vectors.dtype, name
        )

    def _summed(self, lookup: BatchLookup, groups: Groups) -> SummedRowGradient:
        """Returns the gradients of one lookup, summed by the keys of `groups`."""
        flat, sources, weights = lookup.gradients(self._pooling)
        return SummedRowGradient(groups.keys, groups.sum(flat.float(), sources, weights))

    def _sum(
        self, weight: Tensor, parts: Sequence[tuple[Tensor, Tensor]], *, distinct: bool
    ) -> SummedRowGradient:
        """Sums the values of the same row over all pairs (rows, values) in `parts`.

        Pass `distinct=True` if no row occurs twice.
        """
        no_rows = torch.zeros(0, dtype=torch.int64, device=weight.device)
        no_values = torch.zeros(0, weight.shape[1], device=weight.device)
        rows = torch.cat([no_rows, *(rows for rows, _ in parts)])
        values = torch.cat([no_values, *(values for _, values in parts)])
        return SummedRowGradient(rows, values) if distinct else sum_rows(rows, values, self._router.span)


# The code below looks up vectors with plain torch operators, for exported models (training/export). No shape
# depends on ids.
#
# Notation: B rows, C features that are ids, of which the last G are lists, W columns of ids, E numbers per
# row.


def plain_vectors(
    weight: Tensor,
    scales: Tensor | None,
    ids: Tensor,
    first_rows: Tensor,
    lengths: Sequence[int],
    *,
    mean: bool,
) -> Tensor:
    """Returns the vectors (B, C, E) float32 of ids (B, W), as `StackedEmbedding.forward` does.

    Args:
        weight: (rows, E), the matrix of the table.
        scales: (rows,), the factor of each row; None if all factors are 1.
        ids: the ids, in [0, cardinality of the feature).
        first_rows: (C,) int64, the row of the id 0 of each feature.
        lengths: number of columns of each list feature.
        mean: whether the vectors of a list are averaged; otherwise they are summed.
    """
    num_single = len(first_rows) - len(lengths)
    vectors = [plain_rows(weight, scales, ids[:, :num_single] + first_rows[:num_single])]
    ends = [num_single]
    for length in lengths:
        ends.append(ends[-1] + length)
    for index, (start, end) in enumerate(pairwise(ends)):
        columns = ids[:, start:end]
        filled = (columns != PAD_ID).unsqueeze(2).float()  # (B, length, 1)
        rows = plain_rows(weight, scales, columns + first_rows[num_single + index])
        pooled = (rows * filled).sum(dim=1, keepdim=True)
        if mean:
            pooled = pooled / filled.sum(dim=1, keepdim=True).clamp(min=1)
        vectors.append(pooled)
    return torch.cat(vectors, dim=1)


def plain_rows(weight: Tensor, scales: Tensor | None, places: Tensor) -> Tensor:
    """Returns the rows of a matrix, (…, E) float32, with the indices `places` (…) int64."""
    rows = functional.embedding(places, weight).float()
    return rows if scales is None else rows * functional.embedding(places, scales.unsqueeze(1))


# The code below counts how many lookups of a training run read rows in the device's memory.
#
# Notation: B rows of a batch, W columns of ids.


class HotShare:
    """Counts lookups since the last call of `take`, and how many of them were hot (read rows on the device).

    No method waits for the device.

    Args:
        num_single: number of columns that have one id. In all other columns, PAD_ID does not count as a
            lookup.
    """

    def __init__(self, num_single: int) -> None:
        self._num_single = num_single
        self._counts: Tensor | None = None

    @torch.no_grad()
    def add(self, ids: Tensor, hot: Tensor) -> None:
        """Counts the lookups of `ids` (B, W).

        Ids of a column are hot if they are smaller than the column's number in `hot` (W,).
        """
        looked_up = ids != PAD_ID
        looked_up[:, : self._num_single] = True
        self._count((looked_up & (ids < hot)).sum(), looked_up.sum())

    @torch.no_grad()
    def add_ids(self, ids: Tensor, hot: Tensor) -> None:
        """Counts the lookups of `ids` (N,). Rows of ids below the scalar `hot` are on the device (hot)."""
        is_hot = ids < hot
        self._count(is_hot.sum(), torch.ones_like(is_hot).sum())

    def _count(self, hot: Tensor, lookups: Tensor) -> None:
        counts = torch.stack([hot, lookups])
        self._counts = counts if self._counts is None else self._counts + counts

    def take(self, device: torch.device) -> Tensor:
        """Returns and clears the counts: (2,) int64, hot lookups and all lookups."""
        counts, self._counts = self._counts, None
        return torch.zeros(2, dtype=torch.int64, device=device) if counts is None else counts


# The code below finds the embedding tables of a model.


def tables_of(model: nn.Module) -> dict[str, StackedEmbedding]:
    """Returns the embedding tables of a model, by the name of their weight in the model's state."""
    return {
        f"{name}.weight": module
        for name, module in model.named_modules()
        if isinstance(module, StackedEmbedding)
    }


def set_kernels(model: nn.Module, use: bool) -> None:
    """Sets whether a model's tables may use Triton kernels. Call this before you create the optimizers."""
    for table in tables_of(model).values():
        table.may_use_kernels = use


def weights_of(model: nn.Module) -> dict[str, RowTensor]:
    """Returns a model's weights and buffers by name. Tables include this rank's rows in host memory."""
    tables = {name: table for name, table in tables_of(model).items() if table.tail is not None}
    return {**model.state_dict(), **{name: table.matrix for name, table in tables.items()}}


def take_hot_share(model: nn.Module, collectives: Collectives) -> float | None:
    """Returns the share of lookups that read rows on a device.

    All lookups of all ranks since the last call are counted. The result is None if all rows of the model are
    on devices, or if no training step has looked up rows. All ranks must call this function.
    """
    counts = [
        table.hot_share.take(table.weight.device)
        for table in tables_of(model).values()
        if table.hot_share is not None
    ]
    if not counts:
        return None
    hot, lookups = collectives.allreduce_sum(sum(counts[1:], start=counts[0])).tolist()
    return round(hot / lookups, 6) if lookups else None
