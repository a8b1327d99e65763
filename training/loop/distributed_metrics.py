"""Exact metrics over the rows of all ranks, although no rank holds all rows.

Each rank counts its rows by distinct score, with one entry per score. The scores are divided into one range
per rank, so that all ranges have about the same number of entries. Every entry is sent to the rank of its
range, which merges the entries that it receives. After that, only sums are exchanged.

So each of R ranks holds only its own rows and about 1/R of the distinct scores. All scores with the same
upper 16 bits in float32 are in the same range, so a range may have up to 2¹⁶ more distinct scores. An entry
takes 24 bytes, and each rank may send one entry per distinct score.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from conf.errors import DataError
from metrics.partial_sums import (
    RangeSums,
    ScoreCounts,
    combine,
    count_scores,
    merge_counts,
    sum_deciles,
    sum_range,
)
from training.distributed.collectives import Collectives

_CELLS = 2**16  # each cell has 2¹⁶ neighbouring float32 values


def summarize_over_ranks(
    labels: torch.Tensor, probabilities: torch.Tensor, collectives: Collectives
) -> dict[str, Any]:
    """Returns the metrics of `metrics.partial_sums.combine` over the rows of all ranks; equal on all ranks.

    Args:
        labels: (N,), the labels of this rank's rows, 0 or 1.
        probabilities: (N,) float32, the predicted probabilities of this rank's rows, at least 0.
        collectives: the ranks' collectives. Every rank must call this function.

    Raises:
        DataError: on any rank, a probability is not finite. Raised on all ranks.
    """
    device = labels.device
    invalid = int(collectives.allreduce_sum((~torch.isfinite(probabilities)).sum().view(1)))
    if invalid:
        raise DataError(
            f"{invalid} predicted probabilities are not finite",
            "look for infinite features or a diverged model",
        )
    counts = count_scores(labels.cpu().numpy(), probabilities.cpu().numpy())
    if collectives.size > 1:
        counts = _exchange(counts, collectives, device)
    sums = sum_range(counts)
    integer_sums, real_sums = collectives.allgather(
        torch.tensor([sums[:3]], dtype=torch.int64, device=device),
        torch.tensor([sums[3:]], dtype=torch.float64, device=device),
    )
    pairs = zip(integer_sums.tolist(), real_sums.tolist(), strict=True)
    ranges = [RangeSums(*integers, *reals) for integers, reals in pairs]
    sizes = [range_sums.positives + range_sums.negatives for range_sums in ranges]
    deciles = sum_deciles(counts, sum(sizes[: collectives.rank]), sum(sizes))
    (gathered,) = collectives.allgather(torch.from_numpy(deciles).to(device))
    return combine(ranges, gathered.view(collectives.size, *deciles.shape).sum(dim=0).cpu().numpy())


def _exchange(counts: ScoreCounts, collectives: Collectives, device: torch.device) -> ScoreCounts:
    """Sends each entry to the rank of its range, and returns the merged entries of this rank's range.

    An entry is a distinct score with the numbers of positive and negative rows that have this score.
    """
    cells = _cells_of(counts.scores)  # (M,) ascending
    entries_per_cell = torch.from_numpy(np.bincount(cells, minlength=_CELLS)).to(device)
    owners = _owners(collectives.allreduce_sum(entries_per_cell).cpu().numpy(), collectives.size)
    send_counts = np.bincount(owners[cells], minlength=collectives.size)
    entries = np.stack(counts, axis=1).astype(np.float64)  # (M, 3); counts are exact up to 2⁵³
    received, lengths = collectives.all_to_all(torch.from_numpy(entries).to(device), send_counts.tolist())
    parts = received.cpu().split(lengths)
    return merge_counts([_as_counts(part.numpy()) for part in parts])


def _cells_of(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns the cell of each score, (M,): the upper 16 bits of its float32 value.

    The scores must be at least 0. The cells sort in the same order as the scores.
    """
    scores32 = scores.astype(np.float32) + np.float32(0)  # turns -0.0 into 0.0, whose bits are zero
    return (scores32.view(np.uint32) >> 16).astype(np.int64)


def _owners(entries_per_cell: NDArray[np.int64], ranks: int) -> NDArray[np.int64]:
    """Assigns each cell (the upper 16 bits of a score) to a rank; returns the ranks, (65536,).

    Each rank gets neighbouring cells, so that all ranks have about the same number of entries.
    """
    middles = np.cumsum(entries_per_cell) - entries_per_cell // 2
    return np.minimum(middles * ranks // max(int(entries_per_cell.sum()), 1), ranks - 1)


def _as_counts(entries: NDArray[np.float64]) -> ScoreCounts:
    scores, positives, negatives = entries.T
    return ScoreCounts(scores, positives.astype(np.int64), negatives.astype(np.int64))
