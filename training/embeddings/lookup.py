"""The ids of one batch, the table rows that they look up, and the vectors to which these rows contribute.

Notation: B rows of a batch; C features that are ids, of which the last G are lists; E numbers per vector. The
N elements of a batch are all ids that contribute to a vector; padding is not an element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal, assert_never

import torch
from torch import Tensor
from torch.nn import functional

from storage.feature_spec import PAD_ID
from training.collectives import Collectives, ReceivedRows
from training.embeddings.placement import Placement, Router
from training.embeddings.rows import Groups, RowTensor, SummedRowGradient, sum_rows

# The code below exchanges table rows between ranks: the vectors for a batch, and the gradients of these
# vectors.
#
#     forward   a rank requests its distinct rows from their owners    (all_to_all, int32)
#               the owners send back the vectors of these rows         (all_to_all, 16 or 32 bits a number)
#     backward  the rank sends the gradients of the rows to the owners (all_to_all, 16 or 32 bits a number)
#
# Numbers have 16 bits if the table stores 16-bit numbers, or if the model requests 16-bit vectors. If the
# model requests 16-bit vectors, the gradients of a row are summed over the rank's lookups in float32. Then
# the sum is rounded to 16 bits and sent.
#
# The owner of a row is the rank that holds the row. An owner sums the received gradients in the order of the
# ranks, so equal batches give bit-identical results. If a row occurs several times in a batch, its vector is
# sent only once.
#
# Notation: R ranks, U distinct keys, E numbers per vector. A key is an integer that encodes the owner and the
# row (placement.py).


@dataclass(frozen=True)
class ExchangedRows:
    """The rows that ranks requested for one batch.

    Attributes:
        counts: R + 1 counts. Count i < R is the number of distinct rows that this rank requested from rank i.
            The last count is the number of distinct rows that this rank looked up and that all ranks hold.
        requested: (A,) int64, the indices of the rows of this rank's matrix that the ranks requested, ordered
            by requesting rank.
        requested_counts: the number of rows that each rank requested from this rank.
        replicated: (S,) int64, the indices, in this rank's matrix, of the rows that this batch looks up and
            all ranks hold.
    """

    counts: list[int]
    requested: Tensor
    requested_counts: list[int]
    replicated: Tensor


class RowRequest:
    """The request of a rank for the rows of one batch. The rows can arrive while the rank does other work.

    Call the constructor, then `start_fetch`, then `vectors`. All ranks must make these three calls.

    Args:
        keys: (U,) int64, distinct and in ascending order.
        counts_of_owners: the numbers of keys of each owner, as `Router.group` returns them.
        router: the router of the table.
        collectives: the ranks' collectives.
        name: name of the request, the same on all ranks. Requests that wait at the same time must have
            different names.
    """

    def __init__(
        self,
        keys: Tensor,
        counts_of_owners: Sequence[int],
        router: Router,
        collectives: Collectives,
        name: str = "exchange",
    ) -> None:
        self._counts = list(counts_of_owners)
        self._collectives, self._name = collectives, name
        *counts, replicated_count = counts_of_owners
        num_remote = len(keys) - replicated_count
        rows = keys % router.span
        self._replicated = rows[num_remote:]
        self._receive_ids = collectives.start_all_to_all(rows[:num_remote].to(torch.int32), counts, name)
        self._exchanged: ExchangedRows | None = None
        self._receive_vectors: ReceivedRows | None = None

    def start_fetch(self, weight: RowTensor, dtype: torch.dtype = torch.float32) -> None:
        """Sends the vectors that other ranks requested. A second call does nothing.

        Args:
            weight: this rank's matrix (rows, E). Its rows must not change before the step that uses the
                batch.
            dtype: the dtype of the vectors.
        """
        if self._receive_vectors is not None:
            return
        requested, requested_counts = self._receive_ids()
        requested = requested.long()
        self._exchanged = ExchangedRows(self._counts, requested, requested_counts, self._replicated)
        sent = weight.index_select(0, requested)
        if dtype.itemsize < weight.dtype.itemsize:
            sent = sent.to(dtype)
        self._receive_vectors = self._collectives.start_all_to_all(sent, requested_counts, self._name)

    def vectors(self, weight: RowTensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ExchangedRows]:
        """Returns the vectors (U, E) of the keys, in `dtype`, and the rows that ranks requested.

        Pass the second result to `start_return`.
        """
        self.start_fetch(weight, dtype)
        assert self._receive_vectors is not None
        assert self._exchanged is not None
        remote, _ = self._receive_vectors()
        vectors = torch.cat([remote.to(dtype), weight.index_select(0, self._replicated).to(dtype)])
        return vectors, self._exchanged

    def discard(self) -> None:
        """Ends a request that is not used: waits for its exchange, so that the name can be used again.

        All ranks must call this method.
        """
        if self._receive_vectors is not None:
            self._receive_vectors()
        else:
            self._receive_ids()


def start_return(
    values: Tensor,
    exchanged: ExchangedRows,
    collectives: Collectives,
    dtype: torch.dtype = torch.float32,
    name: str = "exchange",
) -> tuple[SummedRowGradient, Callable[[], Tensor]]:
    """Sends the gradient of each vector to the rank that holds the vector's row.

    Args:
        values: (U, E) float32, the gradients of the vectors that a `RowRequest` returned.
        exchanged: the second result of `RowRequest.vectors`.
        collectives: the ranks' collectives.
        dtype: the dtype of the numbers that are sent.
        name: name of the message; see `RowRequest`.

    Returns:
        Two values. The first is this rank's gradient of the rows that all ranks hold. The second is a
        function that waits for the gradients that all ranks send to this rank, and returns them: (A, E), for
        the rows `exchanged.requested`.
    """
    *counts, replicated_count = exchanged.counts
    num_remote = len(values) - replicated_count
    receive = collectives.start_all_to_all(values[:num_remote].to(dtype), counts, name)
    replicated = SummedRowGradient(exchanged.replicated, values[num_remote:])
    return replicated, lambda: receive()[0]


def sum_over_ranks(gradient: SummedRowGradient, collectives: Collectives, end: int) -> SummedRowGradient:
    """Sums a gradient of replicated rows over all ranks, and returns the sum.

    The result has an entry for each row that any rank looked up.

    Args:
        gradient: this rank's gradient.
        collectives: the ranks' collectives.
        end: all row indices are in [0, end).
    """
    if collectives.size == 1:
        return gradient
    rows, values = collectives.allgather(gradient.rows, gradient.values)
    return sum_rows(rows, values, end)


Pooling = Literal["sum", "mean"]


@dataclass(frozen=True)
class ListElements:
    """The ids in list features, one feature after the other, and row by row within a feature.

    An element is one id of a list. Padding is not an element.

    Attributes:
        ids, features: (n,) int64, the id of each element, and the index of the feature that contains the
            element.
        counts: (G, B) int64, the number of ids in each list.
    """

    ids: Tensor
    features: Tensor
    counts: Tensor

    @classmethod
    def of(cls, ids: Tensor, lengths: Sequence[int], first_feature: int) -> ListElements:
        """Returns the ids without padding of `ids` (B, Σ lengths), the columns of all list features."""
        lists = ids.split(list(lengths), dim=1)
        masks = [columns != PAD_ID for columns in lists]
        elements = [columns[mask] for columns, mask in zip(lists, masks, strict=True)]
        features = [torch.full_like(ids, first_feature + index) for index, ids in enumerate(elements)]
        counts = torch.stack([mask.sum(dim=1) for mask in masks])
        return cls(torch.cat(elements), torch.cat(features), counts)

    @property
    def num_lists(self) -> int:
        """Returns G, the number of list features."""
        return len(self.counts)

    @cached_property
    def bags(self) -> Tensor:
        """Returns for each element the index of its list among the G * B lists, (n,) int64."""
        counts = self.counts.flatten()
        return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)

    def pool(self, table: Tensor, positions: Tensor, pooling: Pooling) -> Tensor:
        """Returns the pooled vector of each list, (B, G, E); zeros for an empty list.

        `table` is (rows, E) float32. `positions` (n,) contains the index of each element's row in `table`.
        """
        lists, rows = self.counts.shape
        counts = self.counts.flatten()
        if not len(positions):
            return torch.zeros(rows, lists, table.shape[1], device=table.device)
        starts = counts.cumsum(0) - counts
        summed = functional.embedding_bag(positions, table, starts, mode="sum")  # (G * B, E)
        if pooling == "mean":
            summed /= counts.clamp(min=1).unsqueeze(1)
        elif pooling != "sum":
            assert_never(pooling)
        return summed.view(lists, rows, table.shape[1]).transpose(0, 1)

    def sources(self, num_vectors: int, num_single: int, pooling: Pooling) -> tuple[Tensor, Tensor | None]:
        """Returns for each element the index of a vector, and a factor.

        The gradient of an element is the gradient of this vector times the factor.

        Args:
            num_vectors: B * C.
            num_single: number of features with one id. The elements of these features come first, row by row.
            pooling: how the vectors of a list were pooled.

        Returns:
            First, the indices of the vectors, (N,) int64. Second, the factors, (N,) float32, or None if all
            factors are 1.
        """
        lists, rows = self.counts.shape
        vectors = torch.arange(num_vectors, device=self.ids.device).view(rows, num_single + lists)
        list_vectors = vectors[:, num_single:].t().flatten()[self.bags]  # (n,)
        source = torch.cat([vectors[:, :num_single].flatten(), list_vectors])
        if pooling == "sum":
            return source, None
        if pooling == "mean":
            shares = 1 / self.counts.flatten()[self.bags].float()
            return source, torch.cat([torch.ones(rows * num_single, device=shares.device), shares])
        assert_never(pooling)


@dataclass(frozen=True)
class PaddedLists:
    """The padded columns of list features.

    No tensor's shape depends on ids, so the host need not wait for a GPU. Here every id of a batch is an
    element, padding included. Elements are in the order of rows. Padding belongs to the padding row of its
    feature, and the factor of its gradient is 0.

    Attributes:
        filled: (B, Σ lengths), whether a column has an id.
        lengths: number of columns of each list feature.
    """

    filled: Tensor
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, ids: Tensor, lengths: Sequence[int]) -> PaddedLists:
        """Returns the list columns of `ids` (B, W), which are the last columns."""
        return cls(ids[:, ids.shape[1] - sum(lengths) :] != PAD_ID, tuple(lengths))

    @property
    def num_lists(self) -> int:
        """Returns G, the number of list features."""
        return len(self.lengths)

    def features(self, num_single: int) -> Tensor:
        """Returns the number of the feature to which each column of ids belongs, (W,) int64.

        The first `num_single` features have one column each.
        """
        features = [*range(num_single)]
        for index, length in enumerate(self.lengths):
            features += [num_single + index] * length
        return _constant(tuple(features), self.filled.device)

    def sources(self, num_vectors: int, num_single: int, pooling: Pooling) -> tuple[Tensor, Tensor | None]:
        """Returns for each id, with padding, a vector's index and a factor; see `ListElements.sources`."""
        starts = torch.arange(0, num_vectors, num_single + self.num_lists, device=self.filled.device)
        source = (starts.unsqueeze(1) + self.features(num_single)).flatten()
        factors = self.filled.float()
        if pooling == "mean":
            lists = self.filled.split(self.lengths, dim=1)
            counts = [filled.sum(dim=1, keepdim=True).expand_as(filled) for filled in lists]
            factors /= torch.cat(counts, dim=1).clamp(min=1)
        elif pooling != "sum":
            assert_never(pooling)
        ones = factors.new_ones(len(factors), num_single)
        return source, torch.cat([ones, factors], dim=1).flatten()


@cache
@torch.inference_mode(False)  # the cached tensors are also used in training, which refuses inference tensors
def _constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    """Returns a tensor with these numbers.

    The results are cached, because a copy to a GPU makes the host wait for the GPU.
    """
    return torch.tensor(values, dtype=torch.int64, device=device)


@dataclass(frozen=True)
class BatchLookup:
    """The lookup of one batch. The table keeps this object until the gradient of the batch is read.

    Attributes:
        vectors: (B, C, E), the looked-up vectors, a leaf of autograd.
        ids: the ids that were looked up.
        keys: (N,), the keys that `Router` computes for the ids. If no rows are exchanged, a key is the index
            of a row of this rank's matrix.
        lists: the list features of the batch, as elements or as padded columns; None if there are no list
            features.
        groups, exchanged: the elements grouped by key, and the rows that the ranks exchanged. Both are None
            if no rows are exchanged.
    """

    vectors: Tensor
    ids: Tensor
    keys: Tensor
    lists: ListElements | PaddedLists | None = None
    groups: Groups | None = None
    exchanged: ExchangedRows | None = None

    def gradients(self, pooling: Pooling) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Returns the gradients of the vectors, and for each element the index of its gradient.

        Returns:
            The gradients (B * C, E), zeros if the loss did not depend on the vectors; and the sources and
            factors of the elements, as in `ListElements.sources`. If no feature is a list, sources are None,
            and element n receives gradient n.
        """
        vectors = self.vectors
        gradient = torch.zeros_like(vectors) if vectors.grad is None else vectors.grad
        flat = gradient.reshape(-1, vectors.shape[2])
        if self.lists is None:
            return flat, None, None
        num_single = vectors.shape[1] - self.lists.num_lists
        return (flat, *self.lists.sources(flat.shape[0], num_single, pooling))


# The code below finds the table rows that a batch of ids reads, and requests them from the ranks that hold
# them.
#
# Notation: B rows of a batch, W columns of ids, N elements.


@dataclass(frozen=True)
class RowsOfBatch:
    """The elements of a batch, and the request for their rows.

    Attributes:
        ids: (B, W), the ids.
        keys: (N,) int64, the keys of the elements, as in `BatchLookup`.
        lists: the list features of the batch, as elements or as padded columns; None if there are no list
            features.
        groups: the elements grouped by key; None if no rows are exchanged.
        request: the request to the other ranks; None if no rows are exchanged.
    """

    ids: Tensor
    keys: Tensor
    lists: ListElements | PaddedLists | None = None
    groups: Groups | None = None
    request: RowRequest | None = None

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keeps the memory of all tensors until `stream` has finished the work that reads them."""
        for part in (self, self.lists, self.groups, self.request):
            for value in vars(part).values() if part is not None else ():
                if isinstance(value, Tensor):
                    value.record_stream(stream)


class BatchRows:
    """Finds the table rows that a batch reads, and requests them from other ranks.

    The rows of the next batch can be requested before its step.

    Args:
        placement, router: the placement and the router of the table.
        list_lengths: number of id columns of each list feature.
        collectives: the collectives over which the table exchanges rows.

    Attributes:
        name: name of the table. It is part of the names of the messages that are sent before a step.
    """

    def __init__(
        self, placement: Placement, router: Router, list_lengths: Sequence[int], collectives: Collectives
    ) -> None:
        self.name = ""
        self._placement, self._router, self._collectives = placement, router, collectives
        self._list_lengths = tuple(list_lengths)
        self._num_single = len(placement.cardinalities) - len(self._list_lengths)
        self._early: RowsOfBatch | None = None

    def of_batch(self, ids: Tensor, *, padded: bool, trains: bool) -> RowsOfBatch:
        """Returns the rows to which ids (B, W) refer.

        A training step uses the rows that `request` has requested before the step.

        Args:
            ids: the ids.
            padded: whether the padding of lists is kept, so that no tensor's shape depends on ids.
            trains: whether the lookup is part of a training step.
        """
        early = self._early
        if trains and early is not None and early.ids is ids:
            self._early = None
            return early
        return self._of_batch(ids, "exchange", padded=padded)

    def of_feature(self, ids: Tensor, feature: int) -> RowsOfBatch:
        """Returns the rows to which N ids of one feature refer."""
        return self._requested(ids, self._keys(ids.long(), self._router.features[feature]), None, "exchange")

    def request(self, ids: Tensor, *, padded: bool) -> None:
        """Requests a batch's table rows from other ranks before its step, which must look up this tensor."""
        self.discard()
        self._early = self._of_batch(ids, f"{self.name}.request", padded=padded)

    def start_fetch(self, weight: RowTensor, dtype: torch.dtype) -> None:
        """Sends the vectors that other ranks have requested for their next step.

        Call this method when no earlier step can change these rows any more.
        """
        if self._early is not None and self._early.request is not None:
            self._early.request.start_fetch(weight, dtype)

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keeps the memory of the current request until `stream` has finished the work that reads it."""
        if self._early is not None:
            self._early.record_stream(stream)

    def discard(self) -> None:
        """Discards a request for table rows that no step has used. All ranks must call this method."""
        if self._early is not None and self._early.request is not None:
            self._early.request.discard()
        self._early = None

    def _of_batch(self, ids: Tensor, name: str, *, padded: bool) -> RowsOfBatch:
        single = ids[:, : self._num_single]
        listed = ids[:, self._num_single :]
        if not self._list_lengths:
            return self._requested(ids, self._keys(ids.long(), self._router.features).flatten(), None, name)
        if padded:
            columns = PaddedLists.of(ids, self._list_lengths)
            keys = self._keys(ids.long(), columns.features(self._num_single)).flatten()
            return self._requested(ids, keys, columns, name)
        elements = ListElements.of(listed.long(), self._list_lengths, self._num_single)
        keys = self._keys(single, self._router.features[: self._num_single]).flatten()
        keys = torch.cat([keys, self._keys(elements.ids, elements.features)])
        return self._requested(ids, keys, elements, name)

    def _keys(self, ids: Tensor, features: Tensor) -> Tensor:
        if self._placement.exchanges:
            return self._router.keys(ids, features)
        return self._router.replicated_rows(ids, features)

    def _requested(
        self, ids: Tensor, keys: Tensor, lists: ListElements | PaddedLists | None, name: str
    ) -> RowsOfBatch:
        if not self._placement.exchanges:
            return RowsOfBatch(ids, keys, lists)
        groups, counts = self._router.group(keys)
        request = RowRequest(groups.keys, counts, self._router, self._collectives, name)
        return RowsOfBatch(ids, keys, lists, groups, request)
