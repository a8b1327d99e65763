"""The embedding table: it maps ids to vectors and sums gradients by row.

One matrix holds the rows of all features that are ids, one feature after the other. So one gather looks up a
batch, whatever the number of features. If some features are lists of ids, there is a second gather. If rows
are spread over ranks, the matrix holds the rows of this rank. Only the modules of this folder depend on which
row of the matrix holds which id. Code that saves and loads rows uses `StackedEmbedding.blocks`.

Autograd does not compute a gradient of the table. The vectors that a batch looked up are leaves of autograd,
and their gradients are summed by distinct row in one pass.

Notation: B rows of a batch, C features that are ids, W columns of ids, E numbers per row, N lookups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from training import kernels
from training.distributed.collectives import ALONE, Collectives
from training.embeddings.batch_rows import BatchRows, RowsOfBatch
from training.embeddings.exchange import ExchangedRows
from training.embeddings.held_rows import HeldRows
from training.embeddings.hot_share import HotShare
from training.embeddings.lookup import BatchLookup, ListElements, PaddedLists, Pooling
from training.embeddings.pending_lookups import PendingLookups
from training.embeddings.placed_rows import Placement, replicate_all
from training.embeddings.plain_lookup import plain_rows, plain_vectors
from training.embeddings.row_gradients import LookupGradient, SummedRowGradient
from training.embeddings.tiered_rows import RowTensor, TieredRows


class StackedEmbedding(HeldRows):
    """Embedding rows of C features in one table. All rows are zero at first.

    Args:
        cardinalities: number of rows of each feature, in order.
        dim: E, numbers per row.
        list_lengths: number of id columns of each list feature. List features come last; each other feature
            has one column.
        pooling: how the vectors of a list are combined into one vector.
        storage: dtype of the stored numbers. It does not change the dtype of vectors.
        placement: which rank holds which rows; None means that this process holds all rows.
        collectives: the collectives of the ranks in the placement. `forward` uses them only if rows are
            exchanged. In this case, all ranks must call `forward` equally often.
        pinned: whether host memory of rows is pinned, which kernels on a GPU need.

    Attributes:
        batch_rows: which rows batches read; a training requests them early (early_requests.py).
        reuses_memory: whether the vectors of all training batches have the same memory, if kernels are used.
            A CUDA graph that reads them there needs no copy of them.
        hot_share: counts the lookups of a training; None without a tail.
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
        """Returns a matrix, the position in it of each element's row, and rows as in `BatchLookup`.

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
        """Looks up a batch. If `reused` is true, the vectors take the memory of the last such call."""
        table, positions, exchanged = self._rows_to_read(rows, dtype)
        ids, first_rows = rows.ids, self.router.replicated_places
        weight, tail = (table.hot, table.of_kernels()) if isinstance(table, TieredRows) else (table, None)
        if exchanged is not None or tail is not None:
            # The kernel ignores the id 0 in lists. So ids count from 1, and the row of id 0 is -1.
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
        """Returns the factors (rows,) of the rows of `weight`; None if all factors are 1."""
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
        """Lets the table send gradients in the backward pass. `name` is its name, the same on all ranks."""
        self.batch_rows.name = self._pending.name = name

    def has_only_looked_up(self, ids: Tensor) -> bool:
        """Returns whether `ids` is the only tensor that was looked up since the last gradient was taken."""
        return self._pending.only(ids)

    def start_fetch(self) -> None:
        """Sends the vectors that ranks requested for their next batch, in the dtype of the last lookup."""
        self.batch_rows.start_fetch(self.matrix, self._vector_dtype)

    def take_gradient(self, collectives: Collectives = ALONE) -> SummedRowGradient:
        """Returns and clears the gradient since the last call; see `PendingLookups.take_gradient`."""
        return self._pending.take_gradient(self.weight, collectives)

    def take_lookup_gradient(self, collectives: Collectives = ALONE) -> LookupGradient | None:
        """Returns and clears the gradient of one batch; see `PendingLookups.take_lookup_gradient`."""
        return self._pending.take_lookup_gradient(collectives)
