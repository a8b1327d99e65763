"""Changes Horovod's behaviour in the driver.

Without these changes, Horovod would fork the driver, keep its own signal handlers installed, and start ranks
with the wrong Python interpreter.
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

_CHECK_GLOO = (horovod.runner.launch, horovod.spark.runner)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def no_fork() -> Iterator[None]:
    """Prevents Horovod from forking the driver.

    Horovod would fork to import torch and to check for Gloo in the child process. This takes seconds. The
    child process would also share the driver's sockets to the JVM, and reset them when it ends. The check is
    not needed: if Gloo is missing, the ranks end at once in hvd.init().
    """
    originals = [module.gloo_built for module in _CHECK_GLOO]
    for module in _CHECK_GLOO:
        module.gloo_built = lambda verbose=False: True
    try:
        yield
    finally:
        for module, original in zip(_CHECK_GLOO, originals, strict=True):
            module.gloo_built = original


@contextmanager
def elastic_interpreter(python: str) -> Iterator[None]:
    """Makes Horovod start elastic ranks with the interpreter `python`.

    Horovod accepts an interpreter only for ranks that are not elastic. For elastic ranks, Horovod uses the
    driver's path of the interpreter. This path may not exist on executors, which may have unpacked the
    environment to another folder.
    """
    original = horovod.spark.gloo_run.sys
    horovod.spark.gloo_run.sys = SimpleNamespace(executable=python)
    try:
        yield
    finally:
        horovod.spark.gloo_run.sys = original


@contextmanager
def signals_end_ranks() -> Iterator[list[int]]:
    """Lets SIGINT and SIGTERM end the ranks, and restores the former handlers afterwards.

    Horovod's own handlers would stay installed, and would not report which signal arrived. Outside the main
    thread this function does nothing, because Python allows signal handlers only in the main thread.

    Yields:
        The signals that have arrived.
    """
    received: list[int] = []
    ended = threading.Event()
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS} if main else {}

    def end(number: int, frame: FrameType | None) -> None:
        received.append(number)
        ended.set()

    def register() -> threading.Event:
        for number in handlers:
            signal.signal(number, end)
        return ended

    original = horovod.runner.gloo_run.register_shutdown_event
    horovod.runner.gloo_run.register_shutdown_event = register
    try:
        yield received
    finally:
        horovod.runner.gloo_run.register_shutdown_event = original
        for number, handler in handlers.items():
            signal.signal(number, handler)
