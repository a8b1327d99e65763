"""The training of one model on one rank: epochs over the train split, checkpoints, log lines."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from conf.types import Train
from training.checkpoint import Checkpoints, Position
from training.loss_watch import LossWatch
from training.reading.loader import Loader
from training.reading.prefetch import Prefetch
from training.schedule import learning_rate_factor
from training.trainer import Trainer

log = logging.getLogger("nightrank.training")


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
    watch: LossWatch,
    reports: bool,
) -> Training:
    """Trains a trainer's model in place for `train.epochs`, from the latest checkpoint on where there is one.

    Args:
        watch: sees every loss, and all of them before a checkpoint is saved.
        reports: whether this rank writes the log lines.

    Raises:
        DataError: a file is not what its manifest says, or the loss is no number any more.
    """
    position = (checkpoints.restore(trainer) if checkpoints else None) or Position()
    history = list(position.history)
    steps = loader.plan.steps * train.epochs
    began = time.perf_counter() - position.seconds
    with Prefetch(loader.batches(train.epochs, position.step)) as batches:
        meter = _Meter(device)
        trainer.model.train()
        for done, batch in enumerate(batches, start=position.step + 1):
            factor = learning_rate_factor(done - 1, steps, train)
            loss = trainer.step(batch.to(device), factor)
            meter.add(loss, batch.global_weight)
            watch.add(done, loss, batch)
            if done % train.log_every_steps == 0 or done == steps:
                watch.catch_up()
                entry = {
                    "step": done,
                    "epoch": (done - 1) // loader.plan.steps,
                    "learning_rate": train.learning_rate * factor,
                    **meter.take(batches.wait_s),
                }
                history.append(entry)
                if reports:
                    _report(entry, steps)
            if checkpoints and done % train.checkpoint_every_steps == 0:
                watch.catch_up()
                checkpoints.save(trainer, Position(done, time.perf_counter() - began, history))
    return Training(history, steps, round(time.perf_counter() - began, 3))


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


def _report(entry: dict[str, Any], steps: int) -> None:
    log.info(
        "step %d of %d: loss %.5f, %d rows/s, %.0f%% waiting for data",
        entry["step"],
        steps,
        entry["loss"],
        entry["rows_per_s"],
        100 * entry["loader_wait_share"],
    )
