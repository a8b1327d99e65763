"""Exchanges table rows between ranks: the vectors for a batch, and the gradients of these vectors.

    forward   a rank requests its distinct rows from their owners    (all_to_all, int32)
              the owners send back the vectors of these rows         (all_to_all, 16 or 32 bits a number)
    backward  the rank sends the gradients of the rows to the owners (all_to_all, 16 or 32 bits a number)

Numbers have 16 bits if the table stores 16 bits, or if the model asks for vectors of 16 bits. In the latter
case, the gradients of a row are summed over the rank's lookups in float32, and then rounded and sent.

The owner of a row is the rank that holds the row. An owner sums the received gradients in the order of the
ranks, so equal batches give bit-identical results. If a row occurs several times in a batch, its vector is
sent only once.

Notation: R ranks, U distinct keys, E numbers per vector. A key is an integer that encodes the owner and the
row (router.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from training.distributed.collectives import Collectives, ReceivedRows
from training.embeddings.router import Router
from training.embeddings.row_gradients import SummedRowGradient
from training.embeddings.rows import sum_rows
from training.embeddings.tiered_rows import RowTensor


@dataclass(frozen=True)
class ExchangedRows:
    """The rows that ranks requested for one batch.

    Attributes:
        counts: R + 1 counts. Count i < R is the number of distinct rows that this rank requested from rank i.
            The last count is the number of distinct rows that this rank looked up and that all ranks hold.
        requested: (A,) int64, the indices of the rows of this rank's matrix that the ranks requested, ordered
            by requesting rank.
        requested_counts: the number of rows that each rank requested from this rank.
        replicated: (S,) int64, the indices of the rows of this rank's matrix that this batch looks up and
            that all ranks hold.
    """

    counts: list[int]
    requested: Tensor
    requested_counts: list[int]
    replicated: Tensor


class RowRequest:
    """The request of a rank for the rows of one batch. The rows can arrive while the rank does other work.

    Three calls follow each other: the constructor, `start_fetch` and `vectors`. All ranks must make them.

    Args:
        keys: (U,) int64, distinct and in ascending order.
        counts_of_owners: the numbers of keys of each owner, as `Router.group` returns them.
        router: that of the table.
        collectives: the ranks' collectives.
        name: name of the request, the same on all ranks. Requests in flight have different names.
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
        """Sends the vectors that other ranks requested, if they were not sent before.

        Args:
            weight: this rank's matrix (rows, E). Its rows must not change until the step of the batch.
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
        """Waits for what was started, so that its name can be used again. All ranks must call it."""
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
    """Sends the gradients of vectors to the owners of the vectors' rows, in `dtype`.

    Args:
        values: (U, E) float32, the gradients of the vectors that a `RowRequest` returned.
        exchanged: its second result.
        collectives: the ranks' collectives.
        dtype: the dtype of the numbers that are sent.
        name: name of the message, as for `RowRequest`.

    Returns:
        First, this rank's gradient of the rows that all ranks hold. Second, a function that waits for the
        gradients (A, E) of the rows `exchanged.requested`, which this rank receives from all ranks.
    """
    *counts, replicated_count = exchanged.counts
    num_remote = len(values) - replicated_count
    receive = collectives.start_all_to_all(values[:num_remote].to(dtype), counts, name)
    replicated = SummedRowGradient(exchanged.replicated, values[num_remote:])
    return replicated, lambda: receive()[0]


def sum_over_ranks(gradient: SummedRowGradient, collectives: Collectives, end: int) -> SummedRowGradient:
    """Returns the sum over ranks of a gradient of replicated rows.

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
