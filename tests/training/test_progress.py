"""What rank 0 tells the driver: that it arrives, and that whatever happens to it no training notices."""

from __future__ import annotations

import json
import pickle
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from tests.processes import wait_for
from training import progress
from training.progress import Channel, Listener, Reporter


class Heard:
    """Keeps what was shown, and lets a test wait for so many entries."""

    def __init__(self, count: int) -> None:
        self.entries: list[Mapping[str, Any]] = []
        self._count = count
        self._enough = threading.Event()

    def show(self, entry: Mapping[str, Any]) -> None:
        self.entries.append(entry)
        if len(self.entries) == self._count:
            self._enough.set()

    def wait(self) -> list[Mapping[str, Any]]:
        assert self._enough.wait(timeout=30)
        return self.entries


def listen(heard: Heard) -> Listener:
    return Listener("127.0.0.1", "127.0.0.1", heard.show)


def speak(channel: Channel, text: str) -> None:
    with socket.create_connection((channel.host, channel.port), timeout=10) as connection:
        connection.sendall(text.encode())


def test_entries_arrive_in_order_also_from_the_rank_0_of_the_next_ring() -> None:
    first_ring, heard = Heard(3), Heard(5)

    def show(entry: Mapping[str, Any]) -> None:
        first_ring.show(entry)
        heard.show(entry)

    with Listener("127.0.0.1", "127.0.0.1", show) as channel:
        channel = pickle.loads(pickle.dumps(channel))  # as it travels to the rank
        with Reporter(channel) as first:
            for step in (1, 2, 3):
                first({"step": step})
        first_ring.wait()  # rings are seconds apart; two connections at once are heard as their threads run
        with Reporter(channel) as second:
            for step in (2, 3):
                second({"step": step, "loss": float("inf")})
        assert [entry["step"] for entry in heard.wait()] == [1, 2, 3, 2, 3]
        assert heard.entries[-1]["loss"] == float("inf")


def test_a_stranger_is_not_heard() -> None:
    heard = Heard(1)
    entry = json.dumps({"step": 666})
    with listen(heard) as channel:
        speak(channel, f"{'0' * 32}\n{entry}\n")
        speak(channel, f"{entry}\n")
        speak(channel, "")
        with Reporter(channel) as report:
            report({"step": 1})
        assert heard.wait() == [{"step": 1}]
    assert channel.token not in repr(channel)


def test_strangers_hold_neither_threads_nor_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent ones and slow ones are closed, more than the limit at once, and entries then arrive."""
    monkeypatch.setattr(progress, "_TIMEOUT_S", 0.5)
    heard, before = Heard(1), threading.active_count()
    with listen(heard) as channel, ExitStack() as stack:
        strangers = [
            stack.enter_context(socket.create_connection((channel.host, channel.port), timeout=10))
            for _ in range(100)
        ]
        wait_for("the threads", lambda: threading.active_count() > before + 1, 10)
        assert threading.active_count() <= before + 1 + progress._MAX_CONNECTIONS
        deadline = time.monotonic() + 10
        while still_open := [one for one in strangers if not is_closed(one, send=b"0")]:
            strangers = still_open  # each sends a byte again and again, which gives it no more time
            assert time.monotonic() < deadline
        wait_for("the end of the threads", lambda: threading.active_count() == before + 1, 10)
        with Reporter(channel) as report:
            report({"step": 1})
        assert heard.wait() == [{"step": 1}]


def is_closed(connection: socket.socket, send: bytes) -> bool:
    connection.settimeout(0.01)
    try:
        connection.sendall(send)
        return not connection.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True


def test_a_sender_without_entries_keeps_its_connection_and_a_lost_one_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "_HEARTBEAT_S", 0.1)
    monkeypatch.setattr(progress, "_SILENCE_S", 0.5)
    heard = Heard(2)
    with listen(heard) as channel:
        with Reporter(channel) as report:
            report({"step": 1})
            time.sleep(1.2)
            report({"step": 2})
            assert heard.wait() == [{"step": 1}, {"step": 2}]
        with socket.create_connection((channel.host, channel.port), timeout=10) as lost:
            lost.sendall(f"{channel.token}\n".encode())
            assert lost.recv(1) == b""


def test_what_cannot_be_shown_ends_the_showing_alone(caplog: pytest.LogCaptureFixture) -> None:
    shown = []
    called = threading.Event()

    def show(entry: Mapping[str, Any]) -> None:
        shown.append(entry)
        called.set()
        raise ValueError("a terminal that went away")

    with Listener("127.0.0.1", "127.0.0.1", show) as channel, Reporter(channel) as report:
        for step in range(3):
            report({"step": step})
        assert called.wait(timeout=30)
    assert shown == [{"step": 0}]
    assert [record.message for record in caplog.records] == ["progress is no longer shown"]


def test_without_a_driver_entries_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """More of them than wait; a thread that blocked would end this test by its time-out."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with caplog.at_level("INFO"), Reporter(Channel("127.0.0.1", port, "x")) as report:
        for step in range(2 * progress._MAX_WAITING_ENTRIES):
            report({"step": step})
    assert "progress is no longer sent to the driver" in caplog.text


def test_a_driver_that_does_not_listen_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver accepts and never reads: the sender gives up after its timeout, and rank 0 never waits."""
    monkeypatch.setattr(progress, "_TIMEOUT_S", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as deaf,
        Reporter(Channel("127.0.0.1", deaf.getsockname()[1], "x")) as report,
    ):
        for step in range(10 * progress._MAX_WAITING_ENTRIES):
            report({"step": step, "text": "x" * 50_000})
        report._thread.join(timeout=30)
        assert not report._thread.is_alive()
