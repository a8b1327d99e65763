"""Running ahead in a thread: order, errors, bounds, and an end that leaves no thread behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from training.data.prefetch import Prefetch, in_threads


def test_items_come_in_order() -> None:
    with Prefetch(iter(range(100)), capacity=3) as ahead:
        assert list(ahead) == list(range(100))
        assert list(ahead) == []
    assert ahead.wait_s > 0


def test_an_error_comes_where_it_was_raised() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise ValueError("here")

    with Prefetch(source()) as ahead:
        assert next(ahead) == 1
        with pytest.raises(ValueError, match="here"):
            next(ahead)


def test_what_waits_is_bounded_by_its_weight() -> None:
    produced: list[int] = []
    stuck = threading.Event()

    def source() -> Iterator[int]:
        for weight in (4, 5, 3, 100, 1):
            produced.append(weight)
            if len(produced) == 3:
                stuck.set()
            yield weight

    with Prefetch(source(), capacity=10, weigh=lambda weight: weight) as ahead:
        assert stuck.wait(60)
        assert produced == [4, 5, 3]  # 4 and 5 wait, the thread holds 3
        assert list(ahead) == [4, 5, 3, 100, 1]


def test_leaving_early_ends_the_thread_and_closes_the_source() -> None:
    closed_in: list[str] = []

    def source() -> Iterator[int]:
        try:
            while True:
                yield 0
        finally:
            closed_in.append(threading.current_thread().name)

    with Prefetch(source(), capacity=1) as ahead:
        next(ahead)
    assert closed_in == ["prefetch"]
    assert not any(thread.name == "prefetch" for thread in threading.enumerate())


def test_an_error_while_closing_does_not_hang() -> None:
    def source() -> Iterator[int]:
        try:
            yield 0
            yield 1
        finally:
            raise RuntimeError("while closing")

    with Prefetch(source(), capacity=1) as ahead:
        next(ahead)


def doubled(items: Iterator[int]) -> Iterator[int]:
    """Thread-dependent waits, so that threads overtake each other."""
    for item in items:
        time.sleep(0.001 * (item % 3))
        yield 2 * item


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("number", [0, 1, 5, 50])
def test_threads_return_results_in_the_order_of_their_items(threads: int, number: int) -> None:
    assert list(in_threads(iter(range(number)), doubled, threads, 4)) == [2 * item for item in range(number)]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_an_error_of_an_item_or_a_result_comes_after_all_earlier_results(threads: int) -> None:
    def items() -> Iterator[int]:
        yield from range(10)
        raise ValueError("items")

    def fails_at_six(items: Iterator[int]) -> Iterator[int]:
        for item in items:
            if item == 6:
                raise ValueError("result")
            yield item

    for work, results, message in ((doubled, 10, "items"), (fails_at_six, 6, "result")):
        seen: list[int] = []
        with pytest.raises(ValueError, match=message):
            seen.extend(in_threads(items(), work, threads, 100))
        assert len(seen) == results


def test_threads_work_at_the_same_time_and_as_far_ahead_as_the_capacity() -> None:
    together = threading.Barrier(3)

    def meet(items: Iterator[int]) -> Iterator[int]:
        for item in items:
            together.wait(10)
            yield item

    assert list(in_threads(iter(range(9)), meet, 3, 9)) == list(range(9))
    taken: list[int] = []
    ahead = threading.Event()

    def note(items: Iterator[int]) -> Iterator[int]:
        for item in items:
            taken.append(item)
            if len(taken) == 10:  # of each thread 2 wait and one is held, and the consumer has one
                ahead.set()
            yield item

    results = in_threads(iter(range(1000)), note, 3, 6)
    next(results)
    assert ahead.wait(10)
    time.sleep(0.05)
    assert len(taken) == 10
    results.close()


def test_threads_end_when_the_consumer_stops() -> None:
    before = threading.active_count()
    results = in_threads(iter(range(1000)), doubled, 4, 8)
    assert [next(results) for _ in range(3)] == [0, 2, 4]
    results.close()
    assert threading.active_count() == before
