"""Rows that live on other ranks: their vectors come for a batch, and its gradients go back to them.

    forward   a rank's distinct rows, sorted by owner → owners   (all_to_all, int32)
              the owners' vectors → back, as they are stored     (all_to_all, 16 or 32 bits a number)
    backward  the gradients of these distinct rows → owners      (all_to_all, float32)

An owner adds up what it gets in the order of ranks, so equal batches give equal bits. A row that occurs often in a
batch travels once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from training.distributed.collectives import Collectives
from training.embeddings.router import Router
from training.embeddings.rows import RowGradient, sum_rows


@dataclass(frozen=True)
class Fetched:
    """The rows that one batch asked for.

    Attributes:
        counts: R + 1 numbers: distinct rows asked of each rank, and last those that every rank holds.
        asked: (A,) int64 rows of this rank's matrix that the ranks asked for, one rank after the other.
        asked_counts: how many each rank asked for.
        shared: (S,) int64 rows of this rank's matrix that every rank holds and this batch has.
    """

    counts: list[int]
    asked: Tensor
    asked_counts: list[int]
    shared: Tensor


def fetch(keys: Tensor, weight: Tensor, router: Router, collectives: Collectives) -> tuple[Tensor, Fetched]:
    """The vectors (U, E) float32 of distinct keys (U,) int64, ascending."""
    *counts, shared_count = router.counts(keys)
    away = len(keys) - shared_count
    rows = keys % router.span
    asked, asked_counts = collectives.all_to_all(rows[:away].to(torch.int32), counts)
    vectors, _ = collectives.all_to_all(weight.index_select(0, asked), asked_counts)
    shared = rows[away:]
    found = torch.cat([vectors.float(), weight.index_select(0, shared).float()])
    return found, Fetched([*counts, shared_count], asked.long(), asked_counts, shared)


def return_gradient(
    values: Tensor, fetched: Fetched, collectives: Collectives
) -> tuple[RowGradient, RowGradient]:
    """Sends the gradients (U, E) of the rows that `fetch` brought to their owners.

    Returns:
        Of this rank's matrix: the gradients of rows that it alone holds, from all ranks and not yet added up; and those of
        rows that every rank holds, from this rank alone.
    """
    *counts, shared_count = fetched.counts
    away = len(values) - shared_count
    owned, _ = collectives.all_to_all(values[:away], counts)
    return RowGradient(fetched.asked, owned), RowGradient(fetched.shared, values[away:])


def sum_over_ranks(gradient: RowGradient, collectives: Collectives, end: int) -> RowGradient:
    """The rows that any rank touched, of those that every rank holds, and the sum of their gradients: never a gradient
    of the whole table.

    Args:
        end: rows lie in [0, end).
    """
    if collectives.size == 1:
        return gradient
    rows, values = collectives.allgather(gradient.rows, gradient.values)
    return sum_rows(rows, values, end)
