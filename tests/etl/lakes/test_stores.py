"""What a lake needs from a store: each store gives what a local folder gives, in order and at the same time."""

from __future__ import annotations

import multiprocessing
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conf.errors import InfrastructureError
from storage import file_io, leases
from storage.file_digests import digest_of_file, new_file
from storage.manifest import read_manifest, withdraw
from storage.other_tools import _load, _paths
from storage.paths import LakePaths
from storage.remove import remove, written_dates
from tests.etl.lakes import lakes, servers
from tests.processes import ROOT, environment
from training.data.sharding import DataFile, row_groups
from training.data.staging import stage, staging_folder

pytestmark = pytest.mark.processes

BUCKET = "contract"
NAMES = ["a.json", "b.json", "folder/a.json", "folder/deep/er/a b%20#.json"]
STEPS = 24
ROUNDS = 6


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bucket on an S3 server, without Spark."""
    with servers.bucket(tmp_path_factory.mktemp("s3"), BUCKET):
        yield f"s3a://{BUCKET}"


@pytest.fixture(params=["s3", "hdfs", pytest.param("google", marks=pytest.mark.large), "azure"])
def store(request: pytest.FixtureRequest) -> str:
    """The URI of a new folder on each store that a lake can be on, besides local folders."""
    fixture = {"s3": "bucket", "google": "google_lake"}.get(request.param, request.param)
    root = request.getfixturevalue(fixture)
    return f"{root if isinstance(root, str) else root.root}/{request.function.__name__}"


def test_a_store_does_what_a_local_folder_does(store: str, tmp_path: Path) -> None:
    """The same random steps on both: each returns the same, and afterwards the same files exist."""
    draw, local = random.Random(7), f"{tmp_path}/local"
    for step in range(STEPS):
        name, action = draw.choice(NAMES), draw.choice(list(ACTIONS))
        results = [_result(ACTIONS[action], root, name, step) for root in (local, store)]
        assert results[0] == results[1], (step, action, name)
        assert _content(local) == _content(store), (step, action, name)


def _create(root: str, name: str, step: int) -> Any:
    return file_io.create_json(f"{root}/{name}", {"step": step})


def _replace(root: str, name: str, step: int) -> Any:
    return file_io.replace_json(f"{root}/{name}", {"step": step, "text": "ä" * 5000})


def _write_data(root: str, name: str, step: int) -> Any:
    with new_file(f"{root}/{name}") as file:
        file.sink.write(b"%d" % step * 1000)
        file.sink.write(pa.py_buffer(b"more"))
    return file.digest, digest_of_file(f"{root}/{name}")


def _move(root: str, name: str, step: int) -> Any:
    files, inner = file_io.filesystem(f"{root}/{name}")
    return files.move(inner, f"{file_io.filesystem(root)[1]}/{NAMES[0]}") if name != NAMES[0] else None


def _prune(root: str, name: str, step: int) -> Any:
    folder = f"{root}/{name}".rpartition("/")[0]
    return [file_io.delete_empty_folder(one) for one in (folder, folder.rpartition("/")[0])]


ACTIONS: dict[str, Callable[[str, str, int], Any]] = {
    "create": _create,
    "replace": _replace,
    "write": _write_data,
    "move": _move,
    "delete": lambda root, name, _: file_io.delete_if_present(f"{root}/{name}"),
    "delete folder if empty": _prune,
    "read": lambda root, name, _: file_io.read_json(f"{root}/{name}"),
    "sizes": lambda root, _, __: file_io.sizes([f"{root}/{name}" for name in NAMES]),
    "exists": lambda root, name, _: file_io.exists(f"{root}/{name}"),
}


def _result(action: Callable[[str, str, int], Any], root: str, name: str, step: int) -> Any:
    try:
        return action(root, name, step)
    except FileNotFoundError:
        return "nothing there"
    except Exception as error:  # what was written as data is no JSON
        return type(error).__name__


def _content(root: str) -> dict[str, int]:
    inner = file_io.filesystem(root)[1]
    return {
        info.path.removeprefix(f"{inner}/"): info.size
        for info in file_io.list_files(root, recursive=True)
        if info.is_file
    }


def test_a_large_file_has_all_its_bytes(store: str) -> None:
    """Larger than two of the blocks in which Azure's client sends a file."""
    data, path = memoryview(random.Random(1).randbytes(36 * 2**20)), f"{store}/large.bin"
    with new_file(path) as file:
        for start in range(0, len(data), 5 * 2**20):
            file.sink.write(bytes(data[start : start + 5 * 2**20]))
    assert file_io.sizes([path]) == [len(data)]
    assert digest_of_file(path) == file.digest


def test_row_groups_are_staged_for_a_training(store: str, tmp_path: Path) -> None:
    table = pa.table({"x": list(range(3000))})
    with new_file(f"{store}/rows.parquet") as file:
        pq.write_table(table, file.sink, row_group_size=1000)
    (size,) = file_io.sizes([f"{store}/rows.parquet"])
    groups = row_groups([DataFile(f"{store}/rows.parquet", 3000, (1000, 1000, 1000), size)])
    with staging_folder(str(tmp_path)) as folder:
        staged = [one.group for one in stage(iter(groups), folder)]
        rows = [
            pq.ParquetFile(group.file.staged).read_row_group(group.index)["x"].to_pylist() for group in staged
        ]
    assert list(chain.from_iterable(rows)) == table["x"].to_pylist()


def test_a_file_that_nobody_closes_does_not_appear(store: str) -> None:
    files, inner = file_io.filesystem(f"{store}/a.json")
    file_io.replace_text(f"{store}/a.json", "old")
    stream = files.open_output_stream(inner, compression=None)
    stream.write(b"new")
    assert file_io.read_text(f"{store}/a.json") == "old"
    stream.close()
    assert file_io.read_text(f"{store}/a.json") == "new"


def _create_together(root: str, barrier: Barrier, created: Any, index: int) -> None:
    for number in range(ROUNDS):
        barrier.wait(60)
        if file_io.create_json(f"{root}/{number}.json", {"writer": index}):
            created.put((number, index))


def test_of_two_processes_exactly_one_creates_a_file(store: str) -> None:
    if store.startswith("s3a://"):
        pytest.skip("pyarrow's client for S3 has no conditional write")
    created = _in_two_processes(_create_together, store)
    assert sorted(number for number, _ in created) == list(range(ROUNDS))
    for number, index in created:
        assert file_io.read_json(f"{store}/{number}.json") == {"writer": index}


def _hold_together(root: str, barrier: Barrier, held: Any, index: int) -> None:
    for number in range(2):
        barrier.wait(60)
        try:
            with leases.lease(LakePaths(root), "2026-01-01", f"job{number}", "c"):
                held.put((number, time.time(), "begin"))
                barrier.wait(60)  # the other process was refused
                held.put((number, time.time(), "end"))
        except InfrastructureError:  # the other process holds it
            barrier.wait(60)


def test_of_two_processes_exactly_one_holds_a_lease(store: str) -> None:
    held = _in_two_processes(_hold_together, store)
    assert sorted((number, what) for number, _, what in held) == [
        (number, what) for number in range(2) for what in ("begin", "end")
    ]
    assert _content(store) == {}  # the tickets are gone


def _in_two_processes(work: Callable[..., None], root: str) -> list[Any]:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    started = [context.Process(target=work, args=(root, barrier, results, index)) for index in range(2)]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
        assert process.exitcode == 0
    return [results.get(timeout=10) for _ in range(results.qsize())]


@pytest.mark.parametrize("at", ["before the manifest", "within its upload", "after it"])
def test_a_killed_writer_leaves_one_whole_partition(store: str, at: str) -> None:
    root = f"{store}/{at.replace(' ', '_')}"
    lakes.publish(root, 1)
    assert lakes.publish_in_a_process(root, 2, at) == -signal.SIGKILL
    assert lakes.read_generation(root) == (2 if at == "after it" else 1)
    lakes.publish(root, 3)
    assert lakes.read_generation(root) == 3


def test_other_tools_find_the_published_files(store: str) -> None:
    """The Delta table of a date has the files of the manifest, until the date is removed."""
    for generation in (1, 2):
        lakes.publish_day(store, "2026-01-01", generation)
    partition = LakePaths(store).features("w1").partition("2026-01-01")
    table = partition.file(partition.data).rpartition("/")[0]
    names = {entry.path.rpartition("/_data/features/w1/")[2] for entry in read_manifest(partition).files}
    loaded = _load(table)
    assert loaded is not None
    assert _paths(loaded, "2026-01-01") == names
    withdraw(partition)
    assert _paths(_load(table), "2026-01-01") == set()


def test_a_removed_date_leaves_nothing(store: str) -> None:
    lake = LakePaths(store)
    for day in ("2026-01-01", "2026-01-02"):
        lakes.publish_day(store, day, 1)
    table = lake.features("w1")
    remove(table.partition("2026-01-01"), grace_hours=-1.0)
    assert written_dates(table) == ["2026-01-02"]
    assert not file_io.exists(table.partition("2026-01-01").path)


READ = """
import sys
import pyarrow.compute as pc
from storage.read_parquet import read_where
print(read_where([sys.argv[1]], ["x"], pc.field("x") < 5).num_rows)
"""


def test_a_program_that_has_read_rows_ends_without_an_error(store: str) -> None:
    """pyarrow's threads may still release the file when Python ends."""
    with new_file(f"{store}/rows.parquet") as file:
        pq.write_table(pa.table({"x": list(range(3000))}), file.sink)
    for _ in range(4):
        command = [sys.executable, "-c", READ, f"{store}/rows.parquet"]
        ended = subprocess.run(
            command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert (ended.returncode, ended.stdout) == (0, "5\n"), ended.stderr[-2000:]
