"""A lease is held by one process at a time, on local disks and on S3, whatever happens to its holder."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from conf.errors import DataError, InfrastructureError
from storage import file_io, leases
from storage.leases import lease
from storage.paths import LakePaths
from tests.etl.lakes import servers
from tests.processes import wait_for

OWNER = leases.Owner("a machine", 7, 8, "a boot", "2026-01-04T00:00:00Z", holds=True)
DATE, JOB, CONFIG = "2026-01-04", "build_features", "shop"
SPAWN = multiprocessing.get_context("spawn")
pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.bucket(tmp_path_factory.mktemp("s3"), "leased"):
        yield "s3a://leased"


@pytest.fixture(params=["local", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> LakePaths:
    """A lake on each store on which lakes may be."""
    if request.param == "local":
        return LakePaths(str(tmp_path / "lake"))
    return LakePaths(f"{request.getfixturevalue('bucket')}/{tmp_path.name}")


def hold(root: str, held: Event, end: Event) -> None:
    """Holds the lease until `end`."""
    with lease(LakePaths(root), DATE, JOB, CONFIG):
        held.set()
        end.wait(60)


def held_by_another(lake: LakePaths) -> tuple[Any, Event]:
    """A process that holds the lease, and the event that ends it."""
    held, end = SPAWN.Event(), SPAWN.Event()
    process = SPAWN.Process(target=hold, args=(lake.root, held, end))
    process.start()
    assert held.wait(60)
    return process, end


def tickets(lake: LakePaths) -> list[str]:
    return [info.base_name for info in file_io.list_files(lake.leases, recursive=True) if info.is_file]


def test_the_second_is_told_who_holds_it_and_may_wait(lake: LakePaths) -> None:
    process, end = held_by_another(lake)
    with (
        pytest.raises(InfrastructureError, match=f"process {process.pid} on ") as refused,
        lease(lake, DATE, JOB, CONFIG),
    ):
        pass
    assert f"{JOB} of {CONFIG} for {DATE} is being done by" in refused.value.problem
    assert "--wait SECONDS" in refused.value.remedy
    assert refused.value.exit_code == 4
    for other in (
        (lake, "2026-01-05", JOB, CONFIG),
        (lake, DATE, "prune", CONFIG),
        (lake, DATE, JOB, "books"),
    ):
        with lease(*other):
            assert len(tickets(lake)) == 2
    threading.Timer(1.0, end.set).start()
    start = time.monotonic()
    with lease(lake, DATE, JOB, CONFIG, wait_s=60):
        assert 0.5 < time.monotonic() - start < 30
        assert len(tickets(lake)) == 1
    process.join(60)
    assert tickets(lake) == []


def test_the_lease_of_a_killed_process_of_this_machine_is_taken_over_at_once(lake: LakePaths) -> None:
    process, _ = held_by_another(lake)
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    assert len(tickets(lake)) == 1
    start = time.monotonic()
    with lease(lake, DATE, JOB, CONFIG):
        assert time.monotonic() - start < 5
        assert len(tickets(lake)) == 1
    assert tickets(lake) == []


def test_the_lease_of_a_live_process_of_this_machine_does_not_expire(
    lake: LakePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the clock of the machine is set forward, all tickets seem old until they are renewed."""
    process, _ = held_by_another(lake)
    monkeypatch.setattr(leases, "EXPIRES_S", -1.0)
    message = f"is being done by process {process.pid}"
    with pytest.raises(InfrastructureError, match=message), lease(lake, DATE, JOB, CONFIG):
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    with lease(lake, DATE, JOB, CONFIG):
        pass


def test_the_lease_of_another_machine_ends_if_it_is_not_renewed(
    lake: LakePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is known about a process of another machine but the time of its ticket."""
    process, _ = held_by_another(lake)
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    (name,) = tickets(lake)
    path = f"{lake.leases}/dt={DATE}/{name}"
    file_io.replace_json(path, {**file_io.read_json(path), "machine": "another"})
    with pytest.raises(InfrastructureError, match="its lease expires in 1"), lease(lake, DATE, JOB, CONFIG):
        pass
    monkeypatch.setattr(leases, "EXPIRES_S", 2.0)
    with lease(lake, DATE, JOB, CONFIG, wait_s=30):
        assert len(tickets(lake)) == 1


def test_a_holder_renews_its_lease_and_notices_a_loss(
    lake: LakePaths, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_S", 0.2)

    def modified() -> float:
        (info,) = [one for one in file_io.list_files(lake.leases, recursive=True) if one.is_file]
        return float(info.mtime_ns)

    with lease(lake, DATE, JOB, CONFIG):
        first = modified()
        wait_for("the renewed ticket", lambda: modified() > first, 20)
        (name,) = tickets(lake)
        file_io.delete_file(f"{lake.leases}/dt={DATE}/{name}")
        wait_for("the loss", lambda: "was not renewed in time" in caplog.text, 20)
        time.sleep(0.5)
        assert tickets(lake) == []  # it is not made again


@pytest.mark.parametrize("moment", ["before the file is opened", "while the folder is created"])
def test_a_lease_is_taken_although_another_process_deletes_its_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Another process ends the last lease of the date between two system calls of this process, twice."""
    lake = LakePaths(str(tmp_path / "lake"))
    folder = tmp_path / f"lake/leases/dt={DATE}"
    deleted = 0

    def delete_folders() -> None:
        nonlocal deleted
        if deleted < 2:
            deleted += 1
            for path in (folder, folder.parent):
                file_io.delete_empty_folder(str(path))

    def open_late(path: Path, *words: Any, **options: Any) -> Any:
        delete_folders()
        return open(path, *words, **options)

    def mkdir_early(path: Any, *words: Any) -> None:
        if os.fspath(path) == str(folder):
            delete_folders()
        mkdir(path, *words)

    mkdir = os.mkdir
    if moment == "before the file is opened":
        monkeypatch.setattr(file_io, "open", open_late, raising=False)
    else:
        folder.parent.mkdir(parents=True)
        monkeypatch.setattr(os, "mkdir", mkdir_early)
    with lease(lake, DATE, JOB, CONFIG):
        assert len(tickets(lake)) == 1
        assert deleted == 2
    assert not folder.parent.exists()


def test_a_file_whose_folder_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InfrastructureError, match=r"cannot write .*/dangling/a\.json"):
        file_io.replace_json(f"{tmp_path}/dangling/a.json", {})


def count(root: str, start: Event, number: int, alone: str) -> None:
    """Notes that this process is alone, 3 times."""
    start.wait(60)
    for _ in range(3):
        with lease(LakePaths(root), DATE, JOB, CONFIG, wait_s=120):
            os.mkdir(alone)  # fails if another process is here
            time.sleep(0.01)
            os.rmdir(alone)


def test_of_many_at_once_one_at_a_time_holds_it(lake: LakePaths, tmp_path: Path) -> None:
    start = SPAWN.Event()
    processes = [
        SPAWN.Process(target=count, args=(lake.root, start, number, str(tmp_path / "alone")))
        for number in range(6)
    ]
    for process in processes:
        process.start()
    start.set()
    for process in processes:
        process.join(180)
    assert [process.exitcode for process in processes] == [0] * 6
    assert tickets(lake) == []


def test_of_two_that_ask_at_once_one_gets_it_without_waiting(tmp_path: Path) -> None:
    """Each of them sees the ticket of the other, and neither may give up for that."""
    lake, barrier, ends = LakePaths(str(tmp_path)), threading.Barrier(2), []

    def ask() -> None:
        barrier.wait(60)
        try:
            with lease(lake, DATE, JOB, CONFIG):
                ends.append("held")
                time.sleep(3)
        except InfrastructureError:
            ends.append("refused")

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ends) == ["held", "refused"]


def test_a_damaged_ticket_expires(tmp_path: Path) -> None:
    lake = LakePaths(str(tmp_path))
    folder = Path(lake.leases) / f"dt={DATE}"
    folder.mkdir(parents=True)
    damaged = folder / f"{JOB}.{CONFIG}.{'0' * 32}.json"
    for content in (b"\xff", b"[]", b'{"pid": 1}', json.dumps({"holds": True}).encode()):
        damaged.write_bytes(content)
        with pytest.raises(InfrastructureError, match="an unknown machine"), lease(lake, DATE, JOB, CONFIG):
            pass
    os.utime(damaged, (time.time() - 300,) * 2)
    with lease(lake, DATE, JOB, CONFIG):
        assert not damaged.exists()


def test_a_lake_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "leases").write_text("a file")
    with (
        pytest.raises(InfrastructureError, match="cannot write"),
        lease(LakePaths(str(tmp_path)), DATE, JOB, CONFIG),
    ):
        pass


@pytest.mark.parametrize("error", [FileNotFoundError, DataError, OSError])
def test_a_ticket_that_changes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: type[Exception]
) -> None:
    """Its process withdraws and asks again: the file is there again, or complete, an instant later."""
    path = str(tmp_path / "ticket.json")
    file_io.replace_text(path, json.dumps(asdict(OWNER)))
    read, calls = file_io.read_json, []

    def once(path: str) -> object:
        calls.append(path)
        if len(calls) == 1:
            raise error("gone", "rerun") if error is DataError else error("gone")
        return read(path)

    monkeypatch.setattr(file_io, "read_json", once)
    assert leases._read(path) == (None if error is FileNotFoundError else OWNER)
    assert not caplog.records
