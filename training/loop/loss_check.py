"""Stops a training at the step whose loss is no number, and saves the rows it was made of.

Reading a loss waits for the device that computes it. On a GPU a loss is therefore read some steps later, when it has
long been computed, and all that are left before a checkpoint is saved: no checkpoint holds a step that was not looked
at. The lag is a number of steps, not of seconds, so that all ranks stop at the same one: losses are equal on all.
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
from training.checkpoints.rank_agreement import share
from training.checkpoints.tensor_file import write_tensors
from training.data.batch import Batch
from training.data.loader import Loader
from training.data.sharding import DataFile
from training.distributed.collectives import Collectives
from training.models.inputs import id_columns

# Steps after which a loss is read on a GPU: the host seldom runs so far ahead of it.
_LAG = 8
# Dense features are normalised, or logarithms of counts; a value beyond this is named as a likely cause.
_EXTREME = 1e4


@dataclass(frozen=True)
class _Step:
    """A step that may have to be told of. `loss` is on the host once `ready`, where there is one, has come."""

    number: int
    loss: Tensor
    ready: torch.cuda.Event | None
    batch: Batch


class LossWatch:
    """Looks at the losses of one training.

    Args:
        loader: whose batches these are.
        files: those it reads, in manifest order.
        multi_hot: how many columns a list of ids has in a batch.
        folder: where the rows of a bad step are written.
    """

    def __init__(
        self,
        loader: Loader,
        files: Sequence[DataFile],
        multi_hot: MultiHot,
        collectives: Collectives,
        folder: str,
    ) -> None:
        self._loader = loader
        self._files = files
        self._multi_hot = multi_hot
        self._collectives = collectives
        self._folder = folder
        self._waiting: deque[_Step] = deque()
        self._good: _Step | None = None

    def add(self, number: int, loss: Tensor, batch: Batch) -> None:
        """Takes a step's loss, and looks at it now, or on a GPU at one of earlier steps.

        Args:
            number: of steps done, this one included.
            loss: scalar on any device, equal on all ranks.
            batch: this rank's rows of that step.

        Raises:
            DataError: a loss is no number. Names the step, the columns that stand out and the files with the rows.
        """
        if loss.is_cuda:
            host = torch.empty((), dtype=loss.dtype, pin_memory=True).copy_(loss, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record()
            self._waiting.append(_Step(number, host, ready, batch))
        else:
            self._waiting.append(_Step(number, loss, None, batch))
        self._look(_lag(loss))

    def catch_up(self) -> None:
        """Looks at all losses that it was given; raises as `add` does."""
        self._look(0)

    def _look(self, leave: int) -> None:
        while len(self._waiting) > leave:
            step = self._waiting.popleft()
            if step.ready is not None:
                step.ready.synchronize()
            if not math.isfinite(float(step.loss)):
                self._stop(step)
            self._good = step

    def _stop(self, step: _Step) -> None:
        """Saves the step's rows, and those of the step before: its update may be what went wrong."""
        steps = {"": step} if self._good is None else {"": step, "before.": self._good}
        findings = {name: _extremes(each.batch, self._loader) for name, each in steps.items()}
        name = f"bad-batch-step-{step.number}.rank-{self._collectives.rank:05d}"
        try:
            tensors = {
                f"{prefix}{key}": [value]
                for prefix, each in steps.items()
                for key, value in _tensors(each.batch).items()
            }
            entry = write_tensors(self._folder, f"{name}.safetensors", tensors)
            about = {**self._origin(step), "tensors": entry.name, "columns": findings}
            file_io.replace_json(f"{self._folder}/{name}.json", about)
            saved = f"its rows are in {self._folder}/bad-batch-step-{step.number}.rank-*"
        except NightrankError as error:
            saved = f"its rows could not be saved: {error.problem}"
        columns = _stand_out(share(self._collectives, findings))
        raise DataError(
            f"the loss at step {step.number} is {float(step.loss)}; {columns}; {saved}",
            "clip or correct those columns where values are extreme; otherwise lower train.learning_rate and "
            "train.embedding_learning_rate",
        )

    def _origin(self, step: _Step) -> dict[str, Any]:
        """Where a step's rows come from: of each shard the `shard_rows` after those of the epoch's steps before."""
        loader = self._loader
        epoch, in_epoch = divmod(step.number - 1, max(loader.plan.steps, 1))
        columns = id_columns(loader.spec, self._multi_hot)
        return {
            "step": step.number,
            "loss": str(float(step.loss)),
            "epoch": epoch,
            "step_in_epoch": in_epoch,
            "rank": self._collectives.rank,
            "num_ranks": self._collectives.size,
            "shard_rows": loader.plan.shard_rows,
            "shards": {str(shard): self._rows_of(shard) for shard in loader.shards},
            "dense": [each.name for each in loader.spec.dense],
            "categorical": {each.name: [place.start, place.stop] for each, place in columns},
        }

    def _rows_of(self, shard: int) -> list[dict[str, Any]]:
        """The rows of a shard: shards are cut one after the other from the rows of all files, in manifest order."""
        sizes = self._loader.plan.sizes
        first, last = sum(sizes[:shard]), sum(sizes[: shard + 1])
        found = []
        for file, start in zip(
            self._files, accumulate((each.rows for each in self._files), initial=0), strict=False
        ):
            low, high = max(first - start, 0), min(last - start, file.rows)
            if low < high:
                found.append({"file": file.path, "start": low, "stop": high})
        return found


def _lag(loss: Tensor) -> int:
    """Steps after which a loss is read."""
    return _LAG if loss.is_cuda else 0


def _tensors(batch: Batch) -> dict[str, Tensor]:
    return {
        "dense": batch.dense,
        "categorical": batch.categorical,
        "labels": batch.labels,
        "weights": batch.weights,
    }


def _extremes(batch: Batch, loader: Loader) -> dict[str, list[float]]:
    """Column → how many of its values are no number, and the largest of the others, by its size."""
    rows = batch.weights > 0
    columns = {loader.spec.label: batch.labels[rows]}
    columns |= {each.name: batch.dense[rows, place].float() for place, each in enumerate(loader.spec.dense)}
    found = {}
    for name, values in columns.items():
        finite = values[values.isfinite()]
        largest = float(finite.abs().max()) if len(finite) else 0.0
        found[name] = [float(len(values) - len(finite)), largest]
    return found


def _stand_out(findings: list[Mapping[str, Mapping[str, list[float]]]]) -> str:
    """Says which columns hold values that are no numbers or are extreme, in what any rank found."""
    lost: dict[str, int] = {}
    largest: dict[str, float] = {}
    for columns in (each for of_rank in findings for each in of_rank.values()):
        for name, (no_numbers, most) in columns.items():
            lost[name] = lost.get(name, 0) + int(no_numbers)
            largest[name] = max(largest.get(name, 0.0), most)
    said = [f"{name} holds {count} values that are no numbers" for name, count in lost.items() if count]
    said += [f"{name} reaches {most:.3g}" for name, most in largest.items() if most > _EXTREME]
    return ", ".join(said) or "no column stands out"
