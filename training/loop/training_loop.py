"""The training of one model on one rank: epochs over the train split, checkpoints, log lines, and when it ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from conf.types import Train
from training.checkpoints import Checkpoints, Position
from training.data.loader import Loader
from training.data.prefetch import Prefetch
from training.distributed.progress import Report
from training.loop.early_stopping import stop_reason
from training.loop.learning_rate import learning_rate_factor
from training.loop.loss_check import LossWatch
from training.loop.meter import Meter, log_entry
from training.loop.profiling import StepProfiler
from training.loop.train_step import Trainer

log = logging.getLogger("nightrank.training")

_FOLLOWED = ("auc", "log_loss", "normalized_entropy")


@dataclass
class Training:
    """How a training went.

    Attributes:
        history: one entry each `log_every_steps`, one where the model was measured, and one for the last step; `loss` and
            `loader_wait_share` are means since the entry before. `validation` holds the measures where there are any.
        steps: global batches.
        seconds: spent in them, over all attempts when it was resumed.
        stopped: why it ended before its last step; None where it did not.
    """

    history: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0
    stopped: str | None = None


def train_model(
    trainer: Trainer,
    loader: Loader,
    train: Train,
    device: torch.device,
    checkpoints: Checkpoints | None,
    *,
    watch: LossWatch,
    reports: bool,
    report: Report | None = None,
    at_checkpoint: Callable[[], None] | None = None,
    validate: Callable[[], Mapping[str, Any]] | None = None,
    profiler: StepProfiler | None = None,
) -> Training:
    """Trains a trainer's model in place for `train.epochs`, from the latest checkpoint on where there is one.

    Args:
        watch: sees every loss, and all of them before a checkpoint is saved.
        reports: whether this rank writes the log lines.
        report: called with every entry of the history, as soon as it is made.
        at_checkpoint: called when a checkpoint is on its way to the disk; what it raises ends the training, and the checkpoint
            still becomes complete.
        validate: measures the model, with the same result on all ranks; called each `train.evaluate_every_steps`. Without
            it the training takes all its steps.
        profiler: sees every step.

    Raises:
        DataError: a file is not what its manifest says, or the loss is no number any more.
    """
    position = (checkpoints.restore(trainer) if checkpoints else None) or Position()
    history = list(position.history)
    steps = loader.plan.steps * train.epochs
    rule = train.stop_at if validate else None
    done, stopped = position.step, stop_reason(history, rule)
    began = time.perf_counter() - position.seconds
    with (
        Prefetch(loader.batches(train.epochs, position.step)) as batches,
        profiler or StepProfiler(None, "", 0) as profiled,
    ):
        meter = Meter(device)
        trainer.model.train()
        for batch in batches:
            if stopped:
                break
            done += 1
            factor = learning_rate_factor(done - 1, steps, train)
            profiled.before(done)
            loss = trainer.step(batch.to(device), factor)
            profiled.after(done)
            meter.add(loss, batch.global_weight)
            watch.add(done, loss, batch)
            measures = validate if _due(done, train.evaluate_every_steps) and done < steps else None
            if _due(done, train.log_every_steps) or measures or done == steps:
                watch.catch_up()
                entry: dict[str, Any] = {
                    "step": done,
                    "epoch": (done - 1) // loader.plan.steps,
                    "learning_rate": train.learning_rate * factor,
                    **meter.take(batches.wait_s),
                    **trainer.facts(),
                }
                if measures:
                    found = measures()
                    entry["validation"] = {name: found[name] for name in _FOLLOWED}
                    meter.restart()
                history.append(entry)
                stopped = stop_reason(history, rule)
                if reports:
                    log_entry(entry, steps)
                if report:
                    report(entry)
            if checkpoints and _due(done, train.checkpoint_every_steps):
                watch.catch_up()
                checkpoints.save(trainer, Position(done, time.perf_counter() - began, history))
                if at_checkpoint:
                    at_checkpoint()
    if stopped and reports:
        log.info("ended after step %d of %d: %s", done, steps, stopped)
    return Training(history, done, round(time.perf_counter() - began, 3), stopped)


def _due(step: int, every: int) -> bool:
    """Whether something done each `every` steps is done after this one; never if `every` is 0."""
    return every > 0 and step % every == 0
