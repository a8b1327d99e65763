"""Exchange of rows between ranks: owners send vectors for a batch and receive the gradients of these vectors.

    forward   a rank's distinct rows, sorted by owner → owners   (all_to_all, int32)
              the owners' vectors → back, as they are stored     (all_to_all, 16 or 32 bits a number)
    backward  the gradients of these distinct rows → owners      (all_to_all, float32)

An owner sums the gradients that it receives in the order of ranks, so equal batches give equal bits. A row
that occurs several times in a batch is sent once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from training.distributed.collectives import Collectives
from training.embeddings.router import Router
from training.embeddings.row_gradients import SummedRowGradient
from training.embeddings.rows import sum_rows


@dataclass(frozen=True)
class ExchangedRows:
    """The rows that ranks requested for one batch.

    Attributes:
        counts: R + 1 numbers: distinct rows that this rank requested from each rank, then those that all
            ranks hold.
        requested: (A,) int64 rows of this rank's matrix that the ranks requested, ordered by rank.
        requested_counts: the number of rows that each rank requested.
        replicated: (S,) int64 rows of this rank's matrix that all ranks hold and this batch looks up.
    """

    counts: list[int]
    requested: Tensor
    requested_counts: list[int]
    replicated: Tensor


def fetch(
    keys: Tensor, weight: Tensor, router: Router, collectives: Collectives
) -> tuple[Tensor, ExchangedRows]:
    """The vectors (U, E) float32 of distinct keys (U,) int64, ascending."""
    *counts, replicated_count = router.counts(keys)
    num_remote = len(keys) - replicated_count
    rows = keys % router.span
    requested, requested_counts = collectives.all_to_all(rows[:num_remote].to(torch.int32), counts)
    remote, _ = collectives.all_to_all(weight.index_select(0, requested), requested_counts)
    replicated = rows[num_remote:]
    vectors = torch.cat([remote.float(), weight.index_select(0, replicated).float()])
    exchanged = ExchangedRows([*counts, replicated_count], requested.long(), requested_counts, replicated)
    return vectors, exchanged


def return_gradient(
    values: Tensor, exchanged: ExchangedRows, collectives: Collectives
) -> tuple[Tensor, SummedRowGradient]:
    """Sends the gradients (U, E) of the rows that `fetch` brought to their owners.

    Returns:
        (A, E) the gradients of the rows `exchanged.requested`, from all ranks; and the gradient of the rows
        that all ranks hold, from this rank alone.
    """
    *counts, replicated_count = exchanged.counts
    num_remote = len(values) - replicated_count
    owned, _ = collectives.all_to_all(values[:num_remote], counts)
    return owned, SummedRowGradient(exchanged.replicated, values[num_remote:])


def sum_over_ranks(gradient: SummedRowGradient, collectives: Collectives, end: int) -> SummedRowGradient:
    """The sum over ranks of a gradient of replicated rows. It has rows that any rank looked up.

    Args:
        gradient: of this rank.
        collectives: of the ranks.
        end: rows are in [0, end).
    """
    if collectives.size == 1:
        return gradient
    rows, values = collectives.allgather(gradient.rows, gradient.values)
    return sum_rows(rows, values, end)
