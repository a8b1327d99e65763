"""Columns of Parquet that are read by their pages have the values that Arrow reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from etl.native.scan import DamagedPageError, PagedColumn
from etl.readers import parquet
from etl.readers.parquet import WrongPageError, read_paged

ROWS = 3_000


def _table(seed: int) -> pa.Table:
    random = np.random.default_rng(seed)

    def column(values: pa.Array, nulls: float) -> pa.Array:
        # Runs of equal values and of nulls, and values in random order.
        places = np.concatenate(
            [np.sort(random.integers(0, len(values), ROWS // 2)), random.integers(0, len(values), ROWS // 2)]
        )
        missing = np.concatenate([np.arange(ROWS // 2) < nulls * ROWS // 2, random.random(ROWS // 2) < nulls])
        return values.take(pa.array(places, mask=missing))

    texts = pa.array([f"value {number:x}" * (number % 4) for number in range(1, 700)])
    numbers = pa.array(random.integers(-(2**31), 2**31, 300), pa.int64())
    columns = {
        "texts": column(texts, 0.3),
        "empty": column(pa.array(["", "ä", "b"]), 0.1),
        "one": column(pa.array(["only"]), 0.0),
        "nothing": pa.nulls(ROWS, pa.string()),
        "int": column(numbers.cast(pa.int32()), 0.0),
        "long": column(numbers, 0.9),
        "never_null": column(numbers, 0.0),
        "float": column(pa.array([0.5, -0.0]), 0.1),
        "list": pa.array([["a"]] * ROWS),
        "day": column(numbers.cast(pa.int32()).cast(pa.date32()), 0.1),
    }
    schema = pa.schema([pa.field(name, one.type, name != "never_null") for name, one in columns.items()])
    return pa.Table.from_arrays([*columns.values()], schema=schema)


READ = ["texts", "empty", "one", "nothing", "int", "long", "never_null"]


def _read(path: Path, groups: list[int], names: list[str]) -> dict[str, Any]:
    with pa.OSFile(str(path)) as source:
        return read_paged(source, pq.read_metadata(path), groups, names)


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_values_and_counts_are_those_of_arrow(compression: str, version: str, tmp_path: Path) -> None:
    table, path = _table(len(compression)), tmp_path / "log.parquet"
    pq.write_table(
        table, path, row_group_size=1_100, data_page_size=300, write_batch_size=64,
        compression=compression, data_page_version=version,
    )  # fmt: skip
    for groups in ([0, 1, 2], [1], [2, 0]):
        read = _read(path, groups, table.schema.names)
        assert [*read] == READ
        expected = pq.ParquetFile(path).read_row_groups(groups)
        for name, (values, counts) in read.items():
            plain = expected[name].combine_chunks()
            if plain.type == pa.string():
                plain = pa.array([value or None for value in plain.to_pylist()], pa.string())
            assert values.dictionary.take(values.indices).equals(plain), name
            assert values.null_count == plain.null_count
            assert len(values.dictionary.unique()) == len(values.dictionary)
            codes = values.indices.drop_null().to_numpy()
            assert counts.tolist() == np.bincount(codes, minlength=len(values.dictionary)).tolist()


def test_columns_with_other_pages_are_left_to_arrow(tmp_path: Path) -> None:
    table = _table(0).select(READ)
    pq.write_table(table, tmp_path / "plain.parquet", use_dictionary=["int"])
    assert [*_read(tmp_path / "plain.parquet", [0], READ)] == ["int"]
    # The values of `texts` do not fit into a page of values, so its later pages have the values themselves.
    pq.write_table(
        table,
        tmp_path / "both.parquet",
        dictionary_pagesize_limit=3_000,
        data_page_size=300,
        write_batch_size=200,
    )
    assert set(READ) - {*_read(tmp_path / "both.parquet", [0], READ)} == {"texts"}
    pq.write_table(table, tmp_path / "lz4.parquet", compression="lz4")
    assert not _read(tmp_path / "lz4.parquet", [0], READ)


def test_without_the_compiled_library_all_columns_are_left_to_arrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(_table(0), tmp_path / "log.parquet")
    monkeypatch.setattr(parquet, "is_built", lambda: False)
    assert not _read(tmp_path / "log.parquet", [0], READ)


def test_damaged_files_are_errors_or_other_values(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(_table(1).select(READ), path, compression="none", row_group_size=1_100)
    footer, whole = pq.read_metadata(path), path.read_bytes()
    size = sum(footer.row_group(group).total_byte_size for group in range(3))
    random, errors = np.random.default_rng(0), 0
    for _ in range(300):
        damaged = bytearray(whole)
        for place in random.integers(4, size, 3):
            damaged[place] = random.integers(256)
        try:
            read_paged(pa.BufferReader(bytes(damaged)), footer, [0, 1, 2], READ)
        except (WrongPageError, pa.ArrowException, OSError):
            errors += 1
    assert errors > 30


def _column() -> PagedColumn:
    column = PagedColumn(pa.int32(), 3, 12, 8)
    column.begin_chunk(3, pa.py_buffer(np.array([7, 8, 9], np.int32)))
    return column


def _bytes(*numbers: int) -> pa.Buffer:
    return pa.py_buffer(bytes(numbers))


def test_rows_of_a_page() -> None:
    column = _column()
    column.add_page(3, None, _bytes(2, 3 << 1, 2))  # 2 bits; a run of three times 2
    column.add_page(4, _bytes(3, 0b1101), _bytes(2, 3, 0b010100, 0))  # packed levels 1 0 1 1; indices 0 1 1
    values, counts = column.result()
    assert values.dictionary.take(values.indices).to_pylist() == [9, 9, 9, 7, None, 8, 8]
    assert counts.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "levels, indices",
    [
        (None, _bytes()),
        (None, _bytes(2)),
        (None, _bytes(33, 4 << 1, 0, 0, 0, 0, 0)),
        (None, _bytes(2, 3 << 1, 2)),  # three rows
        (None, _bytes(2, 4 << 1)),
        (None, _bytes(2, 4 << 1, 3)),  # there is no value 3
        (None, _bytes(8, 3, 0, 1)),  # packed, and too short
        (None, _bytes(2, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0)),
        (_bytes(), _bytes(2, 4 << 1, 0)),
        (_bytes(4 << 1, 255), _bytes(2, 4 << 1, 0)),
        (_bytes(2 << 1, 1), _bytes(2, 4 << 1, 0)),
    ],
)
def test_damaged_pages_are_refused(levels: pa.Buffer | None, indices: pa.Buffer) -> None:
    with pytest.raises(DamagedPageError):
        _column().add_page(4, levels, indices)


@pytest.mark.parametrize(
    "kind, page", [(pa.int64(), _bytes(*range(15))), (pa.string(), _bytes(1, 0, 0, 0, 65, 200, 0, 0, 0, 66))]
)
def test_damaged_pages_of_values_are_refused(kind: pa.DataType, page: pa.Buffer) -> None:
    with pytest.raises(DamagedPageError):
        PagedColumn(kind, 2, 16, 1).begin_chunk(2, page)
