"""Running ahead in a thread: order, errors, bounds, and an end that leaves no thread behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from training.data.prefetch import Prefetch


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
