"""Stops a training run at the first step whose loss is not finite, and saves the rows of that step.

When the host reads a loss, it waits until the device has computed the loss. On a GPU, a loss is therefore
read a fixed number of steps later, when the GPU has already computed it. All pending losses are read before a
checkpoint is saved, so no checkpoint contains an unchecked step. Losses are equal on all ranks, so all ranks
stop at the same step.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from conf.errors import DataError, NightrankError
from conf.types import MultiHot
from storage import file_io
from training.checkpoints.tensor_file import write_tensors
from training.collectives import Collectives, gather_json
from training.data.batch import Batch
from training.data.loader import Loader
from training.data.sharding import DataFile
from training.loop.training_loop import Callback, StepResult, TrainingState
from training.models.inputs import id_columns

# On a GPU, the loss of a step is read this number of steps later, because the host is rarely so many steps
# ahead of the GPU. The GPU holds copies of the rows of these steps and of the last step that was checked.
_LAG_STEPS = 8
# Dense features are normalized, or logarithms of counts. So a larger absolute value is reported as a likely
# cause of a loss that is not finite.
_EXTREME_VALUE = 1e4


@dataclass(frozen=True)
class _Step:
    """A step whose rows are saved if its loss is not finite.

    Attributes:
        number: number of steps done, including this step.
        loss: a scalar. It is in host memory once the event `ready` has occurred.
        ready: the event; None if the loss is already there.
        rows: the tensors `dense`, `categorical`, `labels` and `weights` of this rank's batch.
    """

    number: int
    loss: Tensor
    ready: torch.cuda.Event | None
    rows: Mapping[str, Tensor]


class LossCheck(Callback):
    """Checks that all losses of a training run are finite.

    Args:
        loader: the source of the batches.
        files: the loader's files, in manifest order.
        multi_hot: defines how many columns each list of ids has in a batch.
        collectives: the collectives of this training run's ranks.
        folder: the folder for the rows of a step with a bad loss; None if they are not saved.
    """

    def __init__(
        self,
        loader: Loader,
        files: Sequence[DataFile],
        multi_hot: MultiHot,
        collectives: Collectives,
        folder: str | None,
    ) -> None:
        self._loader = loader
        self._files = files
        self._multi_hot = multi_hot
        self._collectives = collectives
        self._folder = folder
        self._pending: deque[_Step] = deque()
        self._last_good: _Step | None = None

    def on_step_end(self, state: TrainingState, result: StepResult) -> None:
        """Checks that the step's loss is finite; see `add`."""
        self.add(state.step, result.loss, result.batch)

    def fill_entry(self, state: TrainingState, entry: dict[str, Any]) -> None:
        """Checks all pending losses.

        This causes no additional wait: the entry contains the mean of these losses, so the host waits for
        them in any case.
        """
        self.check_pending()

    def add(self, number: int, loss: Tensor, batch: Batch) -> None:
        """Checks this step's loss. On a GPU, it checks the loss of an earlier step instead.

        Args:
            number: number of steps done, including this step.
            loss: a scalar on any device, equal on all ranks.
            batch: this rank's rows of the step. If the loss is checked later, the rows are copied: a batch
                would keep all batches of its pool in memory until then.

        Raises:
            DataError: a loss is not finite. The error names the step, the columns with extreme values, and
                the files that contain the step's rows.
        """
        lag, rows, ready = _lag_steps(loss), _tensors(batch), None
        if lag:
            rows = {name: value.clone() for name, value in rows.items()}
        if loss.is_cuda:
            stream = torch.cuda.current_stream(loss.device)
            loss = torch.empty((), dtype=loss.dtype, pin_memory=True).copy_(loss, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record(stream)
        self._pending.append(_Step(number, loss, ready, rows))
        self._check_all_but(lag)

    def check_pending(self) -> None:
        """Checks all losses that were added but not yet checked. Raises the same error as `add`."""
        self._check_all_but(0)

    def _check_all_but(self, newest: int) -> None:
        """Checks the pending losses, except the `newest` most recent ones."""
        while len(self._pending) > newest:
            step = self._pending.popleft()
            if step.ready is not None:
                step.ready.synchronize()
            if not math.isfinite(float(step.loss)):
                self._stop(step)
            self._last_good = step

    def _stop(self, step: _Step) -> None:
        """Saves the rows of this step and of the previous step, if there is a folder, and raises DataError.

        The update of the previous step may be the cause of the bad loss.
        """
        steps = {"": step} if self._last_good is None else {"": step, "before.": self._last_good}
        extremes = {
            prefix: _extreme_values(read_step.rows, self._loader) for prefix, read_step in steps.items()
        }
        where = "" if self._folder is None else f"; {self._save(self._folder, step, steps, extremes)}"
        columns = _describe_extremes(gather_json(self._collectives, extremes))
        raise DataError(
            f"the loss at step {step.number} is {float(step.loss)}; {columns}{where}",
            "clip or correct the columns with extreme values, if there are any; otherwise lower "
            "train.learning_rate and train.embedding_learning_rate",
        )

    def _save(self, folder: str, step: _Step, steps: Mapping[str, _Step], extremes: Mapping[str, Any]) -> str:
        """Saves the rows of some steps.

        Returns a phrase that says where the rows are, or why they were not saved.
        """
        name = f"bad-batch-step-{step.number}.rank-{self._collectives.rank:05d}"
        try:
            tensors = {
                f"{prefix}{key}": [value]
                for prefix, saved_step in steps.items()
                for key, value in saved_step.rows.items()
            }
            entry = write_tensors(folder, f"{name}.safetensors", tensors)
            origin = {**self._origin(step), "tensors": entry.name, "columns": extremes}
            file_io.replace_json(f"{folder}/{name}.json", origin)
        except NightrankError as error:
            return f"the rows of this step could not be saved: {error.problem}"
        return f"the rows of this step are in {folder}/bad-batch-step-{step.number}.rank-*"

    def _origin(self, step: _Step) -> dict[str, Any]:
        """Returns a description of a step and of the files that contain its rows, as JSON values."""
        loader = self._loader
        epoch, step_in_epoch = divmod(step.number - 1, max(loader.plan.steps, 1))
        columns = id_columns(loader.spec, self._multi_hot)
        return {
            "step": step.number,
            "loss": str(float(step.loss)),
            "epoch": epoch,
            "step_in_epoch": step_in_epoch,
            "rank": self._collectives.rank,
            "num_ranks": self._collectives.size,
            "shard_rows": loader.plan.shard_rows,
            "by_user": loader.by_user,
            "shards": {str(shard): self._rows_of(shard) for shard in loader.shards},
            "dense": [feature.name for feature in loader.spec.dense],
            "categorical": {feature.name: [place.start, place.stop] for feature, place in columns},
        }

    def _rows_of(self, shard: int) -> list[dict[str, Any]]:
        """Returns the rows of a shard, as a range of rows of each file that contains some of them.

        Shards are consecutive ranges of the rows of all files, in manifest order. If the loader orders the
        rows of a row group by user, rows are counted in that order.
        """
        sizes = self._loader.plan.sizes
        first, last = sum(sizes[:shard]), sum(sizes[: shard + 1])
        file_starts = accumulate((file.rows for file in self._files), initial=0)
        ranges = []
        for file, file_start in zip(self._files, file_starts, strict=False):
            start, stop = max(first - file_start, 0), min(last - file_start, file.rows)
            if start < stop:
                ranges.append({"file": file.path, "start": start, "stop": stop})
        return ranges


def _lag_steps(loss: Tensor) -> int:
    """Returns how many steps later the host reads a step's loss: 0 if the loss is on a CPU."""
    return _LAG_STEPS if loss.is_cuda else 0


def _tensors(batch: Batch) -> dict[str, Tensor]:
    return {
        "dense": batch.dense,
        "categorical": batch.categorical,
        "labels": batch.labels,
        "weights": batch.weights,
    }


def _extreme_values(rows: Mapping[str, Tensor], loader: Loader) -> dict[str, list[float]]:
    """Returns for each column how many values are not finite, and the largest finite absolute value."""
    filled = rows["weights"] > 0
    columns = {loader.spec.label: rows["labels"][filled]}
    columns |= {
        feature.name: rows["dense"][filled, column].float()
        for column, feature in enumerate(loader.spec.dense)
    }
    extremes = {}
    for name, values in columns.items():
        finite = values[values.isfinite()]
        largest = float(finite.abs().max()) if len(finite) else 0.0
        extremes[name] = [float(len(values) - len(finite)), largest]
    return extremes


def _describe_extremes(extremes_of_ranks: list[Mapping[str, Mapping[str, list[float]]]]) -> str:
    """Returns a phrase that lists the columns with extreme or non-finite values on any rank."""
    not_finite: dict[str, int] = {}
    largest: dict[str, float] = {}
    for columns in (columns for of_rank in extremes_of_ranks for columns in of_rank.values()):
        for name, (count, largest_value) in columns.items():
            not_finite[name] = not_finite.get(name, 0) + int(count)
            largest[name] = max(largest.get(name, 0.0), largest_value)
    problems = [
        f"{name} has {count} values that are not finite" for name, count in not_finite.items() if count
    ]
    problems += [f"{name} reaches {value:.3g}" for name, value in largest.items() if value > _EXTREME_VALUE]
    return ", ".join(problems) or "no column has extreme values"
