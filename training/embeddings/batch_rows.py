"""Which rows of a table a batch of ids reads, and the request to the ranks that hold them.

Notation: B rows of a batch, W columns of ids, N elements (lookup.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from training.distributed.collectives import Collectives
from training.embeddings.exchange import RowRequest
from training.embeddings.lookup import ListElements, PaddedLists
from training.embeddings.placed_rows import Placement
from training.embeddings.router import Router
from training.embeddings.rows import Groups
from training.embeddings.tiered_rows import RowTensor


@dataclass(frozen=True)
class RowsOfBatch:
    """The elements of a batch, and the request for their rows.

    Attributes:
        ids: (B, W), the ids.
        keys: (N,) int64, the keys of the elements, as in `BatchLookup`.
        lists: the elements of lists, or their columns with padding; None if no feature is a list.
        groups: the elements grouped by key; None if no rows are exchanged.
        request: the request to the other ranks; None if no rows are exchanged.
    """

    ids: Tensor
    keys: Tensor
    lists: ListElements | PaddedLists | None = None
    groups: Groups | None = None
    request: RowRequest | None = None

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keeps the memory of all tensors until the work of `stream` that reads them is done."""
        for part in (self, self.lists, self.groups, self.request):
            for value in vars(part).values() if part is not None else ():
                if isinstance(value, Tensor):
                    value.record_stream(stream)


class BatchRows:
    """Computes the rows of batches. The rows of one batch may be requested before its step.

    Args:
        placement, router: those of the table.
        list_lengths: number of id columns of each list feature.
        collectives: the collectives over which the table exchanges rows.

    Attributes:
        name: name of the table. It is part of the names of messages that are sent early.
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
        """Returns the rows of ids (B, W). If `trains`, they are those that were requested for these ids.

        Args:
            ids: the ids.
            padded: whether the padding of lists is kept, so that no shape depends on ids.
            trains: whether the lookup is part of a training step.
        """
        early = self._early
        if trains and early is not None and early.ids is ids:
            self._early = None
            return early
        return self._of_batch(ids, "exchange", padded=padded)

    def of_feature(self, ids: Tensor, feature: int) -> RowsOfBatch:
        """Returns the rows of N ids of one feature."""
        return self._requested(ids, self._keys(ids.long(), self._router.features[feature]), None, "exchange")

    def request(self, ids: Tensor, *, padded: bool) -> None:
        """Requests the rows of a batch, whose step must be the next one with `ids`."""
        self.discard()
        self._early = self._of_batch(ids, f"{self.name}.request", padded=padded)

    def start_fetch(self, weight: RowTensor, dtype: torch.dtype) -> None:
        """Sends the vectors that were requested early. Call it when no earlier step can change rows."""
        if self._early is not None and self._early.request is not None:
            self._early.request.start_fetch(weight, dtype)

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keeps the memory of an early request until the work of `stream` that reads it is done."""
        if self._early is not None:
            self._early.record_stream(stream)

    def discard(self) -> None:
        """Forgets a request that no step has used. All ranks must call it."""
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
