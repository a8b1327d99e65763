"""A small file that is created once: by one of many, whole or not at all, whatever the file system can do."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import resource
import signal
import threading
from pathlib import Path

import pytest

from conf.errors import InfrastructureError
from storage import file_io


def test_it_writes_only_where_there_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "below/model.json"
    assert file_io.create_json(str(path), {"of": 1})
    assert not file_io.create_json(str(path), {"of": 2})
    assert file_io.read_json(str(path)) == {"of": 1}
    assert [file.name for file in path.parent.iterdir()] == ["model.json"]
    with pytest.raises(InfrastructureError, match="cannot write"):
        file_io.create_json(f"{path}/below.json", {})


def test_one_of_many_creates_it(tmp_path: Path) -> None:
    barrier, created = threading.Barrier(16), []

    def create(number: int) -> None:
        barrier.wait(60)
        if file_io.create_json(str(tmp_path / "x.json"), {"of": number}):
            created.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [json.loads((tmp_path / "x.json").read_text())["of"]] == created


def _die(path: str, function: str) -> None:
    setattr(os, function, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    file_io.create_json(path, {"of": "the killed one"})


@pytest.mark.parametrize("function", ["fsync", "link"])
def test_killed_before_the_last_step_it_has_created_nothing(tmp_path: Path, function: str) -> None:
    path = tmp_path / "x.json"
    process = multiprocessing.get_context("spawn").Process(target=_die, args=(str(path), function))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert not path.exists()
    assert file_io.create_json(str(path), {"of": "the next one"})


def test_without_hard_links_it_is_written_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What link(2) answers on a file system such as FAT."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    path = str(tmp_path / "x.json")
    assert file_io.create_json(path, {"of": 1})
    assert not file_io.create_json(path, {"of": 2})
    assert file_io.read_json(path) == {"of": 1}
    assert os.listdir(tmp_path) == ["x.json"]


def test_a_repeated_request_of_nfs_is_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server made the link, its answer was lost, and the repeated request finds the link."""
    original = os.link

    def repeated(scratch: str, path: str) -> None:
        original(scratch, path)
        original(scratch, path)

    monkeypatch.setattr(os, "link", repeated)
    assert file_io.create_json(str(tmp_path / "x.json"), {"of": 1})


def _write_too_much(folder: str) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    for write in (file_io.create_json, file_io.replace_json):
        with pytest.raises(InfrastructureError, match="cannot write"):
            write(f"{folder}/x.json", {"long": "x" * 2000})


def test_a_disk_that_is_full_keeps_no_scratch_file(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_write_too_much, args=(str(tmp_path),))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert list(tmp_path.iterdir()) == []
