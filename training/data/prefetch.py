"""Runs iterators ahead of their consumer in background threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from itertools import cycle
from types import TracebackType
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def _weight_one(_: object) -> int:
    return 1


class Prefetch(Generic[Item]):
    """Iterates over `source`, while a thread reads items ahead of the consumer. Use it as a context manager.

    If the source raises an error, the consumer gets the error after all earlier items.

    Args:
        source: the iterator to read. If it is a generator, the thread closes it when the consumer stops.
        capacity: the largest total weight of the items that wait for the consumer. In addition, the thread
            holds one item. An item that is heavier than the capacity waits until no other item is waiting.
        weigh: returns the weight of an item. By default, every item has the weight 1.

    Attributes:
        wait_s: seconds that the consumer has waited for items.
    """

    def __init__(
        self, source: Iterator[Item], capacity: int = 8, weigh: Callable[[Item], int] = _weight_one
    ) -> None:
        self.wait_s = 0.0
        self._source = source
        self._capacity = capacity
        self._weigh = weigh
        self._waiting: deque[tuple[int, Item]] = deque()
        self._weight = 0
        self._changed = threading.Condition()
        self._stopped = False
        self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._produce, name="prefetch", daemon=True)

    def __enter__(self) -> Prefetch[Item]:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._changed:
            self._stopped = True
            self._waiting.clear()
            self._changed.notify_all()
        self._thread.join()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        start = time.perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            self.wait_s += time.perf_counter() - start
            if self._waiting:
                weight, item = self._waiting.popleft()
                self._weight -= weight
                self._changed.notify_all()
                return item
            if self._error is not None:
                raise self._error
            raise StopIteration

    def _produce(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _run(self) -> None:
        try:
            for item in self._source:
                if not self._put(item):
                    return
                del item  # frees its memory before the source creates the next item
        finally:
            if isinstance(self._source, Generator):
                self._source.close()

    def _put(self, item: Item) -> bool:
        """Adds an item for the consumer; returns False if the consumer has stopped."""
        weight = self._weigh(item)
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopped or not self._waiting or self._weight + weight <= self._capacity
            )
            if self._stopped:
                return False
            self._waiting.append((weight, item))
            self._weight += weight
            self._changed.notify_all()
            return True


_END: Any = object()


def in_threads(
    items: Iterator[Item],
    work: Callable[[Iterator[Item]], Iterator[Result]],
    threads: int,
    capacity: int,
    weigh: Callable[[Result], int] = _weight_one,
) -> Generator[Result, None, None]:
    """Yields one result for each item, in the order of the items. Threads work ahead of the consumer.

    Thread t of n works on the items t, t + n, t + 2n, …, one after the other. If an item or a result raises
    an error, the consumer gets the error after all earlier results.

    Args:
        items: the items. Only one thread at a time takes an item.
        work: yields the result of each of its items, in the order of the items.
        threads: number of threads.
        capacity: the largest total weight of the results that wait for the consumer. In addition, each thread
            holds one result.
        weigh: returns the weight of a result.
    """
    dealer = _Dealer(items, threads)
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Prefetch(work(dealer.of(thread)), capacity // threads, weigh))
            for thread in range(threads)
        ]
        for worker in cycle(workers):
            result = [next(worker, _END)]
            if result[0] is _END:
                return
            yield result.pop()  # pop, so that this list does not keep the result in memory


class _Dealer(Generic[Item]):
    """Distributes the items of an iterator to threads in turn."""

    def __init__(self, items: Iterator[Item], threads: int) -> None:
        self._items = items
        self._lock = threading.Lock()
        self._turn = cycle([deque[Item | _Failure]() for _ in range(threads)])
        self._waiting = [next(self._turn) for _ in range(threads)]
        self._ended = False

    def of(self, thread: int) -> Iterator[Item]:
        """Yields the items for one thread. An error of the iterator is raised in the thread that is next."""
        waiting = self._waiting[thread]
        while True:
            with self._lock:
                while not waiting and not self._ended:
                    self._deal()
                item = waiting.popleft() if waiting else _END
            if item is _END:
                return
            if isinstance(item, _Failure):
                raise item.error
            yield item
            del item

    def _deal(self) -> None:
        try:
            item = next(self._items, _END)
        except BaseException as error:
            item = _Failure(error)
        self._ended = item is _END or isinstance(item, _Failure)
        if item is not _END:
            next(self._turn).append(item)


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error
