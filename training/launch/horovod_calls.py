"""Corrects what Horovod does in the driver: it forks, keeps signal handlers and uses a wrong interpreter."""

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
    """Prevents Horovod from forking the driver. It forks to import torch and check for Gloo in the child.

    The fork takes seconds. The child also shares the driver's sockets to the JVM, and resets them when it
    ends. Without Gloo the ranks still end at once, in hvd.init().
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
    """Starts elastic ranks with this interpreter.

    Horovod accepts an interpreter only for ranks that are not elastic. For elastic ones it uses the path of
    the driver's, which executors need not have: they may have unpacked the environment to another folder.
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

    Horovod's handlers would stay installed, and do not report which signal arrived. In another thread than
    the main thread signals are left alone, because Python allows handlers only there.

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
