"""Attempts at one task: a killed attempt never damages the file that another one returned."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from etl.operators.fill import FittedFill
from etl.ops.tables import LocalTables
from etl.raw.file_splits import split_files
from etl.statistics import count_statistics
from etl.statistics.id_rule import IdRule
from etl.statistics.value_counts import CountRequest
from etl.text import encode_pass, scan_pass
from etl.text.parse_block import LogRows, file_layout
from etl.workflow.chains import FittedChain
from etl.workflow.feature_plan import plan_of
from storage.feature_spec import Feature, FeatureSpec
from storage.file_digests import split_name
from tests.etl import cases
from tests.processes import fork_server

Attempt = Callable[[], list[str]]  # returns the paths of its files


def path_of(name: str) -> str:
    return split_name(name)[0]


def _encode(task: encode_pass.EncodeTask, encoding: encode_pass.Encoding) -> list[str]:
    return [path_of(encode_pass.encode_file_split(task, encoding))]


def _scan(task: scan_pass.ScanTask, layout: Any) -> list[str]:
    *_, last = scan_pass.scan_file_split(0, task, layout, ["I1", "C1"])
    return [path_of(block["file"]) for block in json.loads(last.column(1)[0].as_py())["blocks"]]


def _complete(
    request: CountRequest, entries: pa.Table, folders: count_statistics.VocabularyFolders
) -> list[str]:
    files = count_statistics.write_vocabulary(0, request, entries, [], folders)["files"]
    return [f"{folders.known}/{path_of(name)}" for name in files["known"]] + [
        f"{folders.rare}/{path_of(name)}" for name in files["rare"]
    ]


@pytest.fixture(params=["encode", "scan", "vocabulary"])
def attempt(request: pytest.FixtureRequest, tmp_path: Path) -> Attempt:
    """Attempts at one task of each kind: every call is a new attempt."""
    config = cases.write_config(tmp_path)
    (path, *_) = cases.write_day(tmp_path / "raw", cases.make_lines("2026-01-01", 60, 1))
    layout = file_layout(plan_of(config), (str(path),))
    (file_split,) = split_files([str(path)])
    out = tmp_path / "out"
    if request.param == "encode":
        chain = FittedChain(("I1",), ("int",), (FittedFill(("I1",), ("I1",), 0.0),), ("I1",))
        spec = FeatureSpec(
            (Feature("I1", "dense", "float32", "pair"),), ("row_id", "user_key", "item_key"), "v"
        )
        task = encode_pass.EncodeTask(file_split, 0, f"{out}/part-00000.parquet", "2026-01-01")
        return partial(
            _encode, task, encode_pass.Encoding(LogRows(layout), (chain,), spec, LocalTables({}), 64)
        )
    if request.param == "scan":
        return partial(_scan, scan_pass.ScanTask(file_split, f"{out}/part-00000.parquet"), layout)
    entries = {"value": ["a", "b", "c"], "id": [3, 4, None], "count": [5, 5, 1], "last_seen": [1, 1, 1]}
    types = [pa.string(), pa.int32(), pa.int64(), pa.int32()]
    table = pa.table([pa.array(v, t) for v, t in zip(entries.values(), types, strict=True)], [*entries])
    request_for_ids = CountRequest("C1", "vocabulary", (), rule=IdRule(2, 3, None))
    return partial(
        _complete,
        request_for_ids,
        table,
        count_statistics.VocabularyFolders(f"{out}/known", f"{out}/rare", 64),
    )


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with fork_server(__name__) as context:
        yield context


def _die_in(attempt: Attempt) -> None:
    """Runs the attempt and kills this process when the first rows of a file are written."""
    write = pq.ParquetWriter.write_table

    def write_and_die(self: pq.ParquetWriter, *arguments: Any, **options: Any) -> None:
        write(self, *arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    pq.ParquetWriter.write_table = write_and_die
    attempt()


def test_a_killed_late_attempt_leaves_the_returned_file(attempt: Attempt, server: Any) -> None:
    """Spark kills the slower of two speculative attempts."""
    returned = {path: Path(path).read_bytes() for path in attempt()}
    process = server.Process(target=_die_in, args=(attempt,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert {path: Path(path).read_bytes() for path in returned} == returned


def test_the_files_of_a_killed_first_attempt_are_not_returned_by_the_next(
    attempt: Attempt, server: Any
) -> None:
    process = server.Process(target=_die_in, args=(attempt,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    for path in attempt():
        assert pq.read_table(path, partitioning=None).num_rows == pq.read_metadata(path).num_rows


def test_two_simultaneous_attempts_write_different_files(attempt: Attempt) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = (future.result() for future in [pool.submit(attempt) for _ in range(2)])
    assert not set(first) & set(second)
    for path, other in zip(first, second, strict=True):
        assert pq.read_table(path, partitioning=None).equals(pq.read_table(other, partitioning=None))
