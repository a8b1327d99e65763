"""What SIGINT (Ctrl-C) and SIGTERM do during a training: they end the ranks."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import horovod.runner.gloo_run

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
