"""Rows of published files that are read piece by piece give what a table in memory gives."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from conf.errors import DataError
from spark import rows as stored_rows
from spark.rows import (
    StoredRows,
    map_rows_in_threads,
    query,
    read_in_pieces,
    select,
    union_all,
    whole,
    with_value,
)
from storage.manifest import Manifest, data_files
from storage.paths import LakePaths, Partition
from storage.publish import publish_rows
from storage.read_parquet import read_table
from storage.run_context import RunContext
from tests.etl import cases

COLUMNS = ["label", "user_key", "history"]
ROWS_OF_FILE = 40


def published(folder: Path, dt: str, rows: int) -> tuple[Partition, Manifest, pa.Table]:
    """A partition of several files, with nulls, empty lists, and names that SQL must quote."""
    draw = np.random.default_rng(rows)
    users = [f"u{draw.integers(9)}'\"{{x}}" for _ in range(rows)]
    histories = [None if n % 7 == 0 else draw.integers(0, 5, n % 4).tolist() for n in range(rows)]
    table = pa.table(
        {
            "user_key": pa.array(users, pa.string()),
            "label": pa.array(draw.integers(0, 2, rows), pa.float32()),
            "history": pa.array(histories, pa.list_(pa.int32())),
            "of `a` {column}": pa.array(np.arange(rows), pa.int64()),
        }
    )
    partition = LakePaths(str(folder)).features("v1").partition(dt)
    return partition, publish_rows(table, partition, inputs={}, row_group_rows=ROWS_OF_FILE), table


@pytest.fixture(params=["lake", "odd [lake] * {x} ? 'y'"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder whose name may have characters that are special in SQL, in patterns of files or in formats."""
    return tmp_path / str(request.param)


def test_a_query_of_files_gives_what_a_query_of_a_table_gives(folder: Path) -> None:
    parts, tables = [], []
    for dt, rows in (("2026-01-01", 0), ("2026-01-02", 1), ("2026-01-03", 250)):
        partition, manifest, _ = published(folder, dt, rows)
        parts.append(with_value(StoredRows.of(partition, manifest, columns=COLUMNS), "dt", dt))
        tables.append(with_value(read_table(partition, manifest, columns=COLUMNS), "dt", dt))
    stored, table = union_all([*parts[:1], select(parts[1], ["dt", *COLUMNS]), parts[2]]), union_all(tables)
    assert isinstance(stored, StoredRows)
    assert stored.schema == table.schema
    assert stored.read() == table
    texts = {
        "all": "SELECT * FROM {rows}",
        "sums": "SELECT dt, user_key, count(1) AS n, sum(size(history)) AS s FROM {rows} GROUP BY dt, user_key",
        "joined": "SELECT a.user_key, b.dt FROM {rows} AS a JOIN {rows} AS b USING (user_key) WHERE a.label = 1",
    }
    for text in texts.values():
        actual, expected = query(text, rows=stored), query(text, rows=table)
        assert actual.schema == expected.schema
        assert sorted(map(str, actual.to_pylist())) == sorted(map(str, expected.to_pylist()))
        assert len(actual) > 3


def test_a_column_with_an_odd_name_is_read(folder: Path) -> None:
    partition, manifest, table = published(folder, "2026-01-01", 90)
    name = table.column_names[-1]
    rows = StoredRows.of(partition, manifest, columns=[name])
    total = query("SELECT sum(`of ``a`` {{column}}`) AS total FROM {rows}", rows=rows)
    assert total.to_pylist() == [{"total": sum(range(90))}]
    assert rows.read() == table.select([name])


def test_other_file_systems_are_read_before_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition, manifest, table = published(tmp_path, "2026-01-01", 90)
    monkeypatch.setattr(StoredRows, "is_local", False)
    monkeypatch.setattr(StoredRows, "sql", None)
    rows = StoredRows.of(partition, manifest, columns=COLUMNS)
    assert query("SELECT count(1) AS n FROM {rows}", rows=rows).to_pylist() == [{"n": len(table)}]


def test_no_files_have_no_rows(tmp_path: Path) -> None:
    partition, manifest, _ = published(tmp_path, "2026-01-01", 10)
    rows = StoredRows(StoredRows.of(partition, manifest, columns=COLUMNS).schema)
    assert query("SELECT user_key, label FROM {rows}", rows=rows).num_rows == 0
    assert rows.read() == rows.schema.empty_table()


@pytest.mark.parametrize("most_rows", [1, 7, 40, 1000])
def test_batches_have_all_rows_in_order(tmp_path: Path, most_rows: int) -> None:
    partition, manifest, table = published(tmp_path, "2026-01-01", 93)
    rows = StoredRows.of(partition, manifest, columns=COLUMNS).with_value("dt", "x")
    batches = list(rows.batches(most_rows))
    expected = table.select(COLUMNS).append_column("dt", pa.array(["x"] * 93))
    assert pa.Table.from_batches(batches, rows.schema) == expected
    assert max(batch.num_rows for batch in batches) == min(most_rows, 31)  # three files of 31 rows


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    partition, manifest, _ = published(tmp_path, "2026-01-01", 93)
    path = Path(data_files(partition, manifest)[1])
    path.unlink()
    rows = StoredRows.of(partition, manifest, columns=COLUMNS)
    with pytest.raises(DataError, match=path.name):
        query("SELECT count(1) AS n FROM {rows}", rows=rows)
    with pytest.raises(DataError, match=path.name):
        rows.read()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    partition, manifest, _ = published(tmp_path, "2026-01-01", 93)
    path = Path(data_files(partition, manifest)[1])
    path.write_bytes(path.read_bytes()[:-20])
    rows = StoredRows.of(partition, manifest, columns=COLUMNS)
    with pytest.raises(DataError, match=path.name):
        query("SELECT sum(size(history)) AS n FROM {rows}", rows=rows)


def test_a_wrong_query_is_not_an_error_of_a_file(tmp_path: Path) -> None:
    partition, manifest, _ = published(tmp_path, "2026-01-01", 93)
    rows = StoredRows.of(partition, manifest, columns=COLUMNS)
    with pytest.raises(Exception, match="nowhere") as raised:
        query("SELECT nowhere FROM {rows}", rows=rows)
    assert not isinstance(raised.value, DataError)


def test_parts_with_other_columns_are_no_union(tmp_path: Path) -> None:
    partition, manifest, _ = published(tmp_path, "2026-01-01", 10)
    rows = StoredRows.of(partition, manifest, columns=COLUMNS)
    with pytest.raises(ValueError, match="internal error"):
        stored_rows.union_stored([rows, rows.with_value("dt", "x")])


def test_only_a_job_without_spark_reads_in_pieces(tmp_path: Path) -> None:
    partition, manifest, table = published(tmp_path, "2026-01-01", 10)
    context = RunContext("test", cases.write_config(tmp_path, {}), "2026-01-01", in_process=True)
    rows = read_in_pieces(context, partition, manifest)
    assert isinstance(rows, StoredRows)
    assert whole(rows) == table
    assert whole(table) is table


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_get_few_batches_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    partition, manifest, table = published(tmp_path, "2026-01-01", 400)
    read, held, most = [0], [0], [0]
    lock = threading.Lock()
    batches_of = StoredRows.batches

    def counted(self: StoredRows, most_rows: int) -> Iterator[pa.RecordBatch]:
        for batch in batches_of(self, most_rows):
            with lock:
                read[0] += 1
                held[0] += 1
                most[0] = max(most[0], held[0])
            yield batch

    def doubled(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(0.002)
            values = pa.array(batch.column(0).to_numpy() * 2)
            with lock:
                held[0] -= 1
            yield pa.RecordBatch.from_arrays([values, batch.column(1)], ["label", "user_key"])

    monkeypatch.setattr(StoredRows, "batches", counted)
    rows = StoredRows.of(partition, manifest, columns=["label", "user_key"])
    schema = pa.schema([("label", pa.float32()), ("user_key", pa.string())])
    result = map_rows_in_threads(rows, doubled, schema, (), threads, 8)
    assert result.column("user_key").to_pylist() == table.column("user_key").to_pylist()
    assert result.column("label").to_pylist() == [2 * value for value in table.column("label").to_pylist()]
    assert read[0] == 50
    assert most[0] <= 2 * threads + 2


def test_an_error_in_a_thread_ends_the_reading(tmp_path: Path) -> None:
    partition, manifest, _ = published(tmp_path, "2026-01-01", 400)
    calls = []

    def fail(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        calls.append(1)
        raise ZeroDivisionError

    rows = StoredRows.of(partition, manifest, columns=["label"])
    with pytest.raises(ZeroDivisionError):
        map_rows_in_threads(rows, fail, rows.schema, (), 2, 8)
    assert len(calls) < 12
