"""The measures of `partial` over the rows of all ranks, exact, with no rank ever holding all of them.

Each rank counts its distinct scores; ranges of scores are cut so that each rank gets about as many entries, and every entry
goes to the rank of its range, which merges what it receives. So a rank holds its own rows and about its share of the
distinct scores: cuts fall between the upper halves of float32 scores' bits, so a range holds at most 2¹⁶ distinct scores
more than its share, each once from every rank, 24 bytes an entry. Sums alone go to all ranks.
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

_CELLS = 2**16  # of 2¹⁶ neighbouring float32 values each


def summarize_over_ranks(
    labels: torch.Tensor, probabilities: torch.Tensor, collectives: Collectives
) -> dict[str, Any]:
    """As `combine`, of the rows of all ranks; equal on all of them.

    Args:
        labels: (N,) 0 or 1, this rank's.
        probabilities: (N,) float32 of at least 0.

    Raises:
        DataError: a probability of any rank is not finite; on every rank.
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
    whole, real = collectives.allgather(
        torch.tensor([sums[:3]], dtype=torch.int64, device=device),
        torch.tensor([sums[3:]], dtype=torch.float64, device=device),
    )
    ranges = [RangeSums(*w, *r) for w, r in zip(whole.tolist(), real.tolist(), strict=True)]
    sizes = [each.positives + each.negatives for each in ranges]
    own = sum_deciles(counts, sum(sizes[: collectives.rank]), sum(sizes))
    (gathered,) = collectives.allgather(torch.from_numpy(own).to(device))
    return combine(ranges, gathered.view(collectives.size, *own.shape).sum(dim=0).cpu().numpy())


def _exchange(counts: ScoreCounts, collectives: Collectives, device: torch.device) -> ScoreCounts:
    """All ranks' entries of this rank's range of scores."""
    cells = _cells_of(counts.scores)  # (M,) ascending
    filled = torch.from_numpy(np.bincount(cells, minlength=_CELLS)).to(device)
    owners = _owners(collectives.allreduce_sum(filled).cpu().numpy(), collectives.size)
    splits = np.bincount(owners[cells], minlength=collectives.size)
    entries = np.stack(counts, axis=1).astype(np.float64)  # (M, 3); counts are exact up to 2⁵³
    received, lengths = collectives.all_to_all(torch.from_numpy(entries).to(device), splits.tolist())
    parts = received.cpu().split(lengths)
    return merge_counts([_as_counts(part.numpy()) for part in parts])


def _cells_of(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """(M,) the upper 16 bits of float32 values of at least 0: as integers they sort as the values do."""
    single = scores.astype(np.float32) + np.float32(0)  # of the two zeros, the one whose bits are zero
    return (single.view(np.uint32) >> 16).astype(np.int64)


def _owners(filled: NDArray[np.int64], ranks: int) -> NDArray[np.int64]:
    """(65536,) the rank of each cell: neighbouring cells, about equally many entries for each rank."""
    middles = np.cumsum(filled) - filled // 2
    return np.minimum(middles * ranks // max(int(filled.sum()), 1), ranks - 1)


def _as_counts(entries: NDArray[np.float64]) -> ScoreCounts:
    scores, positives, negatives = entries.T
    return ScoreCounts(scores, positives.astype(np.int64), negatives.astype(np.int64))
