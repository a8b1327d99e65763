"""The training of one model on one rank: epochs over the train split, checkpoints, log lines."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from conf.errors import DataError
from conf.types import Train
from training.checkpoint import Checkpoints, Position
from training.progress import Report
from training.reading.loader import Loader
from training.reading.prefetch import Prefetch
from training.schedule import learning_rate_factor
from training.trainer import Trainer

log = logging.getLogger("nightrank.training")
steps_log = logging.getLogger("nightrank.training.steps")  # silenced where the driver shows the steps


@dataclass
class Training:
    """How a training went.

    Attributes:
        history: one entry each `log_every_steps` and one for the last step; `loss` and `loader_wait_share` are means
            since the entry before.
        steps: global batches.
        seconds: spent in them, over all attempts when it was resumed.
    """

    history: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0


def train_model(
    trainer: Trainer,
    loader: Loader,
    train: Train,
    device: torch.device,
    checkpoints: Checkpoints | None,
    *,
    reports: bool,
    report: Report | None = None,
    at_checkpoint: Callable[[], None] | None = None,
) -> Training:
    """Trains a trainer's model in place for `train.epochs`, from the latest checkpoint on where there is one.

    Args:
        reports: whether this rank writes the log lines.
        report: called with every entry of the history, as soon as it is made.
        at_checkpoint: called when a checkpoint has been written; what it raises ends the training.

    Raises:
        DataError: a file is not what its manifest says, or the loss is no number any more.
    """
    position = _resume(trainer, checkpoints, device)
    history = list(position.history)
    steps = loader.plan.steps * train.epochs
    began = time.perf_counter() - position.seconds
    with Prefetch(loader.batches(train.epochs, position.step)) as batches:
        meter = _Meter(device)
        trainer.model.train()
        for done, batch in enumerate(batches, start=position.step + 1):
            factor = learning_rate_factor(done - 1, steps, train)
            meter.add(trainer.step(batch.to(device), factor), batch.global_weight)
            if done % train.log_every_steps == 0 or done == steps:
                entry = {
                    "step": done,
                    "epoch": (done - 1) // loader.plan.steps,
                    "learning_rate": train.learning_rate * factor,
                    **meter.take(batches.wait_s),
                }
                history.append(entry)
                _check(entry)
                if reports:
                    _report(entry, steps)
                if report:
                    report(entry)
            if checkpoints and done % train.checkpoint_every_steps == 0:
                checkpoints.save(trainer.state(), Position(done, time.perf_counter() - began, history))
                if at_checkpoint:
                    at_checkpoint()
    return Training(history, steps, round(time.perf_counter() - began, 3))


def _resume(trainer: Trainer, checkpoints: Checkpoints | None, device: torch.device) -> Position:
    latest = checkpoints.latest(device) if checkpoints else None
    if latest is None:
        return Position()
    state, position = latest
    trainer.load_state(state)
    log.info("resuming after step %d", position.step)
    return position


class _Meter:
    """Loss, speed and waiting since it was last read. Reading is the only moment that waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._waited_s = 0.0
        self._restart()

    def _restart(self) -> None:
        self._loss = torch.zeros((), device=self._device)
        self._rows = 0
        self._since = time.perf_counter()

    def add(self, loss: Tensor, rows: int) -> None:
        self._loss += loss * rows
        self._rows += rows

    def take(self, waited_s: float) -> dict[str, float]:
        loss = float(self._loss) / self._rows
        seconds = time.perf_counter() - self._since
        entry = {
            "loss": loss,
            "rows_per_s": round(self._rows / seconds),
            "loader_wait_share": round((waited_s - self._waited_s) / seconds, 4),
        }
        self._waited_s = waited_s
        self._restart()
        return entry


def _check(entry: dict[str, Any]) -> None:
    if not math.isfinite(entry["loss"]):
        raise DataError(
            f"the loss at step {entry['step']} is {entry['loss']}",
            "lower train.learning_rate and train.embedding_learning_rate, and look for extreme feature values",
        )


def _report(entry: dict[str, Any], steps: int) -> None:
    steps_log.info(
        "step %d of %d: loss %.5f, %d rows/s, %.0f%% waiting for data",
        entry["step"],
        steps,
        entry["loss"],
        entry["rows_per_s"],
        100 * entry["loader_wait_share"],
    )
