"""Trains on one rank in the driver's process. So no process is started, and this process uses all cores."""

from __future__ import annotations

import logging
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from conf.errors import InfrastructureError, NightrankError
from training.collectives import LocalCollectives
from training.device import choose_device, torch_threads
from training.loop.run import run_plan
from training.loop.training_plan import TrainPlan
from training.progress import Report

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STEPS = logging.getLogger("nightrank.training.steps")


def train_in_driver(plan: TrainPlan, threads: int, show: Report | None) -> dict[str, Any]:
    """Trains a model on one rank, which is this process. SIGINT and SIGTERM end the training.

    Args:
        plan: the plan of the training.
        threads: number of threads of torch during the training.
        show: called with the history entries. If it is None, the steps are logged.

    Returns:
        The model's description (model.json).

    Raises:
        InfrastructureError: a signal ended the training, or the training failed for a reason other than the
            configuration or the data.
        ConfigError, DataError: see `run_plan`.
    """
    with torch_threads(threads), _steps_logged(show is None), _ended_by_signals():
        device = choose_device(plan.train.device, 0, "train.device")
        try:
            return run_plan(plan, LocalCollectives(), device, report=show)
        except NightrankError:
            raise
        except Exception as error:
            problem = "".join(traceback.format_exception(error))
            raise InfrastructureError(
                f"the training failed:\n{problem}",
                "correct the cause if the traceback shows it; otherwise rerun to resume from the last "
                "checkpoint",
            ) from error


@contextmanager
def _steps_logged(logged: bool) -> Iterator[None]:
    before = _STEPS.level
    if not logged:
        _STEPS.setLevel(logging.WARNING)
    try:
        yield
    finally:
        _STEPS.setLevel(before)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Makes SIGINT and SIGTERM raise InfrastructureError, as in a training on several ranks.

    Outside the main thread this function does nothing, because Python allows signal handlers only there.
    """

    def end(number: int, _: FrameType | None) -> None:
        raise InfrastructureError(
            f"{signal.Signals(number).name} ended the training", "rerun to resume from the last checkpoint"
        )

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
