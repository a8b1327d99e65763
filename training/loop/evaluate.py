"""Evaluates a model on a split, over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from conf.errors import DataError
from metrics.clicks import RangeSums, ScoreCounts, combine, count_scores, merge_counts, sum_deciles, sum_range
from training.collectives import Collectives
from training.data.loader import Loader
from training.data.prefetch import Prefetch
from training.loop.training_loop import Callback, TrainingState, is_due, threads_of_model


@torch.no_grad()  # inference_mode would fail, because Horovod resizes its outputs in another thread
def evaluate(
    model: nn.Module, loader: Loader, collectives: Collectives, device: torch.device
) -> dict[str, Any]:
    """Returns the metrics of a model on a split. All ranks get the same metrics.

    This is a collective: all ranks must call it. The model computes in float32.

    The model is in evaluation mode during the call. Afterwards, its previous mode is restored. A rank needs
    12 bytes of memory for each of its rows.
    """
    was_training = model.training
    model.eval()
    labels = [torch.zeros(0, device=device)]
    # float32 would round high probabilities to 1, and rows of equal probability count as ties.
    probabilities = [torch.zeros(0, dtype=torch.float64, device=device)]
    with threads_of_model(model), Prefetch(loader.batches()) as batches:
        for batch in batches:
            local = batch.to(device)
            real = local.weights > 0
            labels.append(local.labels[real])
            probabilities.append(torch.sigmoid(model(local.dense, local.categorical).double())[real])
    model.train(was_training)
    return summarize_over_ranks(torch.cat(labels), torch.cat(probabilities), collectives)


# The code below computes exact metrics over the rows of all ranks, although no rank holds all rows.
#
# Each rank counts its rows by distinct score, with one entry per score. The scores are divided into one range
# per rank, so that all ranges have about the same number of entries. Every entry is sent to the rank of its
# range, which merges the entries that it receives. After that, ranks exchange only sums.
#
# So each of R ranks holds only its own rows and about 1/R of the distinct scores. A range consists of cells,
# which are small intervals of scores. The cell of a score is the upper 16 bits of the float32 value of the
# score or, above 0.5, of its distance from 1. So the logits of a cell differ by less than 0.02. An entry
# takes 24 bytes, and each rank may send one entry per distinct score.

_CELLS = 2**16
_CELL_OF_HALF = 0x3F00  # the upper 16 bits of 0.5


def summarize_over_ranks(
    labels: torch.Tensor, probabilities: torch.Tensor, collectives: Collectives
) -> dict[str, Any]:
    """Returns the metrics of `metrics.clicks.combine` over the rows of all ranks; equal on all ranks.

    Args:
        labels: (N,), the labels of this rank's rows, 0 or 1.
        probabilities: (N,) floats, the predicted probabilities of this rank's rows, from 0 to 1.
        collectives: the ranks' collectives. Every rank must call this function.

    Raises:
        DataError: on any rank, a probability is not finite. Raised on all ranks.
    """
    device = labels.device
    invalid = int(collectives.allreduce_sum((~torch.isfinite(probabilities)).sum().view(1)))
    if invalid:
        raise DataError(
            f"{invalid} predicted probabilities are not finite",
            "look for infinite feature values; if there are none, lower the learning rates",
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
    """Sends each entry to the rank that merges its range of scores; returns this rank's merged entries.

    An entry is a distinct score with the numbers of positive and negative rows that have this score.
    """
    cells = _cells_of(counts.scores)  # (M,) ascending
    entries_per_cell = torch.from_numpy(np.bincount(cells, minlength=_CELLS)).to(device)
    owners = _owners(collectives.allreduce_sum(entries_per_cell).cpu().numpy(), collectives.size)
    send_counts = np.bincount(owners[cells], minlength=collectives.size)
    entries = np.stack(counts, axis=1).astype(np.float64)  # (M, 3), exact up to 2⁵³
    received, lengths = collectives.all_to_all(torch.from_numpy(entries).to(device), send_counts.tolist())
    parts = received.cpu().split(lengths)
    return merge_counts([_as_counts(part.numpy()) for part in parts])


def _cells_of(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns the number of the cell (small interval) that contains each score, (M,).

    The scores must be from 0 to 1. The cells sort in the same order as the scores.
    """
    smaller = np.minimum(scores, 1 - scores).astype(np.float32)
    smaller += np.float32(0)  # turns -0.0 into 0.0
    cells = (smaller.view(np.uint32) >> 16).astype(np.int64)
    return np.where(scores < 0.5, cells, 2 * _CELL_OF_HALF - cells)


def _owners(entries_per_cell: NDArray[np.int64], ranks: int) -> NDArray[np.int64]:
    """Assigns each cell (small interval of scores) to a rank; returns the ranks, (65536,).

    Each rank gets neighbouring cells, so that all ranks have about the same number of entries.
    """
    middles = np.cumsum(entries_per_cell) - entries_per_cell // 2
    return np.minimum(middles * ranks // max(int(entries_per_cell.sum()), 1), ranks - 1)


def _as_counts(entries: NDArray[np.float64]) -> ScoreCounts:
    scores, positives, negatives = entries.T
    return ScoreCounts(scores, positives.astype(np.int64), negatives.astype(np.int64))


# The code below validates the model during a training run.

_METRICS = ("auc", "log_loss", "normalized_entropy")


class Validation(Callback):
    """Adds the metrics of the validation split to history entries.

    It adds metrics every `every_steps` steps and, if `at_epoch_ends` is true, at the end of each epoch. It
    adds none after the last step.

    Args:
        evaluate: a function that returns the metrics of the model on the validation split. All ranks must
            call it, and it returns the same result on all ranks.
        every_steps: steps between two validations; 0 for none.
        at_epoch_ends: whether the model is also validated at the end of each epoch.
    """

    def __init__(
        self, evaluate: Callable[[], Mapping[str, Any]], every_steps: int, *, at_epoch_ends: bool = False
    ) -> None:
        self._evaluate = evaluate
        self._every_steps = every_steps
        self._at_epoch_ends = at_epoch_ends

    def is_entry_due(self, state: TrainingState) -> bool:
        """Returns True every `every_steps` steps and at the end of an epoch, but not after the last step.

        After the last step, `run_plan` measures the model on all splits.
        """
        epoch_ends = self._at_epoch_ends and is_due(state.step, state.steps_per_epoch)
        return (epoch_ends or is_due(state.step, self._every_steps)) and state.step < state.total_steps

    def fill_entry(self, state: TrainingState, entry: dict[str, Any]) -> None:
        """Evaluates the model if a validation is due.

        If no validation is due, another callback requested the entry, and this method does nothing.
        """
        if self.is_entry_due(state):
            entry["validation"] = chosen_metrics(self._evaluate())


def chosen_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metrics of an evaluation that are stored in a history entry."""
    return {name: metrics[name] for name in _METRICS}
