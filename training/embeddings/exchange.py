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

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from training.distributed.collectives import Collectives
from training.embeddings.router import Router
from training.embeddings.row_gradients import SummedRowGradient
from training.embeddings.row_pools import RowTensor
from training.embeddings.rows import sum_rows


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


def fetch(
    keys: Tensor,
    counts_of_owners: Sequence[int],
    weight: RowTensor,
    router: Router,
    collectives: Collectives,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, ExchangedRows]:
    """Returns the vectors of `keys`, which are distinct and in ascending order.

    `keys` has the shape (U,) and the dtype int64, and `counts_of_owners` are the numbers of keys of each
    owner, as `Router.group` returns them. The vectors have the shape (U, E) and the dtype `dtype`. The second
    result describes the rows that ranks requested. Pass this result to `return_gradient`.
    """
    *counts, replicated_count = counts_of_owners
    num_remote = len(keys) - replicated_count
    rows = keys % router.span
    requested, requested_counts = collectives.all_to_all(rows[:num_remote].to(torch.int32), counts)
    sent = weight.index_select(0, requested)
    if dtype.itemsize < weight.dtype.itemsize:
        sent = sent.to(dtype)
    remote, _ = collectives.all_to_all(sent, requested_counts)
    replicated = rows[num_remote:]
    vectors = torch.cat([remote.to(dtype), weight.index_select(0, replicated).to(dtype)])
    exchanged = ExchangedRows([*counts, replicated_count], requested.long(), requested_counts, replicated)
    return vectors, exchanged


def return_gradient(
    values: Tensor, exchanged: ExchangedRows, collectives: Collectives, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, SummedRowGradient]:
    """Sends the gradients of vectors to the owners of the vectors' rows, in `dtype`.

    `values` (U, E) float32 contains the gradients of the vectors that `fetch` returned.

    Returns:
        First, (A, E), the gradients of the rows `exchanged.requested`, which this rank received from all
        ranks. Second, this rank's gradient of the rows that all ranks hold.
    """
    *counts, replicated_count = exchanged.counts
    num_remote = len(values) - replicated_count
    owned, _ = collectives.all_to_all(values[:num_remote].to(dtype), counts)
    return owned, SummedRowGradient(exchanged.replicated, values[num_remote:])


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
