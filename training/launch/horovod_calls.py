"""What Horovod does to the process that calls it, undone: handlers of signals that stay, and a fork of the driver; and the
interpreter that elastic ranks are started with.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, SimpleNamespace

import horovod.runner.gloo_run
import horovod.runner.launch
import horovod.spark.gloo_run
import horovod.spark.runner

_ASKING = (horovod.runner.launch, horovod.spark.runner)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def no_fork() -> Iterator[None]:
    """Keeps Horovod from forking the driver, only to import torch in the child and ask whether Gloo was built.

    It costs seconds, and the child shares the driver's sockets to the JVM, which it resets when it ends. A build
    without Gloo still ends the ranks at once, in hvd.init().
    """
    asked = [module.gloo_built for module in _ASKING]
    for module in _ASKING:
        module.gloo_built = lambda verbose=False: True
    try:
        yield
    finally:
        for module, each in zip(_ASKING, asked, strict=True):
            module.gloo_built = each


@contextmanager
def elastic_ranks_run(python: str) -> Iterator[None]:
    """Starts elastic ranks with this interpreter. Horovod takes one for others only, and the driver's own for these, which
    executors need not have: a packed environment lies elsewhere there.
    """
    before = horovod.spark.gloo_run.sys
    horovod.spark.gloo_run.sys = SimpleNamespace(executable=python)
    try:
        yield
    finally:
        horovod.spark.gloo_run.sys = before


@contextmanager
def signals_end_ranks() -> Iterator[list[int]]:
    """SIGINT and SIGTERM end the ranks while they run; afterwards they do again what they did before.

    Horovod's own handlers stay for good, and keep to themselves which signal came. In a thread other than the main one
    signals stay as they are, for Python allows handlers nowhere else.

    Returns:
        The signals that arrived.
    """
    received: list[int] = []
    ended = threading.Event()
    main = threading.current_thread() is threading.main_thread()
    before = {each: signal.getsignal(each) for each in _SIGNALS} if main else {}

    def end(number: int, frame: FrameType | None) -> None:
        received.append(number)
        ended.set()

    def register() -> threading.Event:
        for each in before:
            signal.signal(each, end)
        return ended

    registered = horovod.runner.gloo_run.register_shutdown_event
    horovod.runner.gloo_run.register_shutdown_event = register
    try:
        yield received
    finally:
        horovod.runner.gloo_run.register_shutdown_event = registered
        for each, handler in before.items():
            signal.signal(each, handler)
