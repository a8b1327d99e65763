"""Files on HDFS, with a name node in memory. tests/etl/lakes uses a real one."""

from __future__ import annotations

import inspect
import io
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import hdfs_native
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage import file_io
from storage.remote import hdfs

PATH = "hdfs://node:8020/lake/part.parquet"


class Reader:
    """A file as hdfs_native.FileReader: `read_range` refuses ranges that are not within the file."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def read_range(self, offset: int, len: int) -> bytes:
        end = offset + len
        if end > self._data.__len__():
            raise OSError(f"the range ends at {end}, after the end of the file")
        return self._data[offset:end]


@dataclass
class Client:
    """The methods of hdfs_native.Client that these tests need. `files` maps paths to bytes."""

    files: dict[str, bytes] = field(default_factory=dict)

    def get_file_info(self, path: str) -> Any:
        return SimpleNamespace(isdir=False, length=len(self._data(path)), modification_time=1_000)

    def read(self, path: str) -> Reader:
        return Reader(self._data(path))

    def create(self, path: str, write_options: object) -> Any:
        buffer = io.BytesIO()
        self.files[path] = b""

        def close() -> None:
            self.files[path] = buffer.getvalue()

        return SimpleNamespace(write=buffer.write, close=close)

    def rename(self, src: str, dst: str, overwrite: bool = False) -> None:
        if dst in self.files and not overwrite:
            raise FileExistsError(dst)
        self.files[dst] = self.files.pop(src)

    def delete(self, path: str, recursive: bool = False) -> bool:
        return self.files.pop(path, None) is not None

    def _data(self, path: str) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    client = Client()
    monkeypatch.setattr(hdfs, "_connected", lambda *_: client)
    return client


@pytest.mark.parametrize("ours, theirs", [(Client, hdfs_native.Client), (Reader, hdfs_native.FileReader)])
def test_the_client_in_memory_has_the_parameters_of_the_real_one(ours: type, theirs: type) -> None:
    for name, function in inspect.getmembers(ours, inspect.isfunction):
        if not name.startswith("_"):
            real = inspect.signature(getattr(theirs, name)).parameters
            assert list(inspect.signature(function).parameters) == list(real), name


def test_any_range_of_a_file_is_read(client: Client) -> None:
    data = np.random.default_rng(1).bytes(1_000)
    client.files["/lake/part.parquet"] = data
    system, path = file_io.filesystem(PATH)
    with system.open_input_file(path) as file:
        for start, length in ((0, 10), (300, 500), (999, 1), (0, 1_000), (1_000, 5)):
            assert file.read_at(length, start) == data[start : start + length]
    with system.open_input_stream(path) as stream:
        assert [stream.read(400), stream.read(400), stream.read(400)] == [
            data[:400],
            data[400:800],
            data[800:],
        ]


def test_a_row_group_that_is_not_the_first_is_read(client: Client) -> None:
    table = pa.table({"x": range(100)})
    system, path = file_io.filesystem(PATH)
    with system.open_output_stream(path) as stream:
        pq.write_table(table, stream, row_group_size=30)
    assert [*client.files] == ["/lake/part.parquet"]
    assert pq.ParquetFile(path, filesystem=system).read_row_group(2).equals(table.slice(60, 30))


def test_a_file_gets_its_name_when_it_is_complete(client: Client) -> None:
    path = "hdfs://node:8020/lake/manifest.json"
    file_io.replace_text(path, "first")
    assert client.files == {"/lake/manifest.json": b"first"}
    system, inner = file_io.filesystem(path)
    stream = system.open_output_stream(inner)
    stream.write(b"second")
    assert file_io.read_text(path) == "first"
    stream.close()
    assert client.files == {"/lake/manifest.json": b"second"}
    assert not file_io.create_json(path, {}), "there is a file of this name"
    assert client.files == {"/lake/manifest.json": b"second"}
    assert file_io.create_json("hdfs://node:8020/lake/new.json", {})
