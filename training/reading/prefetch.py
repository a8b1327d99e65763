"""Runs an iterator ahead of its consumer in one background thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Generic, TypeVar

Item = TypeVar("Item")

# How far ahead the thread may be: enough to ride over the opening of a file, little enough to stay small.
_DEPTH = 8


class Prefetch(Generic[Item]):
    """Iterates over `source` while a thread runs a few items ahead. Use it as a context manager.

    An error of the source is raised where the consumer reaches it. `wait_s` counts the seconds the consumer waited.
    """

    def __init__(self, source: Iterator[Item]) -> None:
        self.wait_s = 0.0
        self._source = source
        self._items: queue.Queue[tuple[bool, Item | BaseException | None]] = queue.Queue(maxsize=_DEPTH)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="prefetch", daemon=True)

    def __enter__(self) -> Prefetch[Item]:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopped.set()
        while self._thread.is_alive():  # the thread may be blocked on a full queue
            self._drain()
            self._thread.join(timeout=0.01)

    def __iter__(self) -> Iterator[Item]:
        while True:
            start = time.perf_counter()
            more, item = self._items.get()
            self.wait_s += time.perf_counter() - start
            if more:
                yield item  # type: ignore[misc]
            elif isinstance(item, BaseException):
                raise item
            else:
                return

    def _produce(self) -> None:
        try:
            for item in self._source:
                self._items.put((True, item))
                if self._stopped.is_set():
                    return
        except BaseException as error:
            self._items.put((False, error))
        else:
            self._items.put((False, None))

    def _drain(self) -> None:
        while not self._items.empty():
            self._items.get_nowait()
