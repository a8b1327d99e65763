"""The rows of row groups, which are taken from every part of a file split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from etl.operators.fill import FittedFill
from etl.ops.tables import LocalTables
from etl.raw.file_splits import split_files
from etl.text import encode_pass
from etl.text.encode_pass import EncodeTask, Encoding, _dealt, encode_file_split
from etl.text.parse_block import LogRows, file_layout
from etl.workflow.chains import FittedChain
from etl.workflow.feature_plan import plan_of
from storage.feature_spec import Feature, FeatureSpec
from storage.file_digests import split_name
from tests.etl import cases

ROWS = 23


@pytest.mark.parametrize("groups", [1, 2, 7, ROWS])
def test_every_row_is_in_one_group_with_all_its_columns(groups: int) -> None:
    numbers = np.arange(ROWS)
    columns: dict[str, Any] = {
        "int": pa.array(numbers, pa.int32()),
        "float": pa.array(numbers / 8, pa.float32()),
        "nulls": pa.array([None if number % 3 else number for number in range(ROWS)], pa.int64()),
        "text": pa.array([f"t{number % 4}" for number in range(ROWS)]).dictionary_encode(),
        "text_nulls": pa.array([None if number % 2 else "x" for number in range(ROWS)]).dictionary_encode(),
        "list": pa.array([[number] * (number % 3) for number in range(ROWS)]),
        "time": pa.array(numbers, pa.timestamp("us")),
        "sliced": pa.array(np.arange(-5, ROWS), pa.int32()).slice(5),
    }
    table = pa.table(columns)
    dealt = _dealt(table, groups)
    order = [row for group in range(groups) for row in range(group, ROWS, groups)]
    expected = table.take(pa.array(order))
    assert dealt.to_pydict() == expected.to_pydict()
    assert dealt.schema.types == expected.schema.types


def encoded(folder: Path, rows: int, row_group_rows: int) -> str:
    """A file of features with the number I1 of each row, and its path."""
    config = cases.write_config(folder)
    (path, *_) = cases.write_day(folder / "raw", cases.make_lines("2026-01-01", rows, 1))
    (file_split,) = split_files([str(path)])
    chain = FittedChain(("I1",), ("int",), (FittedFill(("I1",), ("I1",), 0.0),), ("I1",))
    spec = FeatureSpec((Feature("I1", "dense", "float32", "pair"),), ("row_id", "user_key", "item_key"), "v")
    source = LogRows(file_layout(plan_of(config), (str(path),)))
    encoding = Encoding(source, (chain,), spec, LocalTables({}), row_group_rows)
    name = encode_file_split(EncodeTask(file_split, 0, f"{folder}/out.parquet", "2026-01-01"), encoding)
    return split_name(name)[0]


@pytest.mark.parametrize(
    "row_group_rows, group_bytes, most",
    [
        (1000, 2**20, 1000),
        (64, 2**20, 64),
        (20, 2**20, 20),
        (1000, 8 * 15, 15),
        (10, 8 * 15, 10),
        (1000, 1, 1),
    ],
)
def test_a_row_group_has_at_most_these_rows_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row_group_rows: int, group_bytes: int, most: int
) -> None:
    """A row has 8 bytes: label and one number. Keys are no inputs of a model."""
    monkeypatch.setattr(encode_pass, "ROW_GROUP_BYTES", group_bytes)
    written = encoded(tmp_path, 250, row_group_rows)
    metadata = pq.read_metadata(written)
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    rows = sum(sizes)
    assert len(sizes) == -(-rows // most)
    assert max(sizes) <= most
    assert min(sizes) >= max(sizes) - 1
    assert rows > 50
    assert len(set(pq.read_table(written)["row_id"].to_pylist())) == rows


def test_a_list_counts_as_long_as_the_longest() -> None:
    lists = pa.array([[1], None, list(range(30))], pa.list_(pa.int32()))
    columns = {"user_key": ["a", "b", "c"], "label": pa.array([0, 1, 0], pa.float32()), "history": lists}
    table = pa.table(columns)
    most = encode_pass._rows_of_group(table.schema, {"history": lists})  # a device may have the other columns
    assert most == encode_pass.ROW_GROUP_BYTES // (4 * 31)


def test_columns_have_small_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page is a frame of zstd of its own, and so is a dictionary."""
    assert encode_pass._PAGE_BYTES == 64 * 2**10
    pages = []
    for page_bytes in (64 * 2**10, 256):
        monkeypatch.setattr(encode_pass, "_PAGE_BYTES", page_bytes)
        folder = tmp_path / str(page_bytes)
        folder.mkdir()
        written = Path(encoded(folder, 6000, 10_000))
        group = pq.read_metadata(written).row_group(0)
        (column,) = (
            group.column(place)
            for place in range(group.num_columns)
            if group.column(place).path_in_schema == "I1"
        )
        start = column.dictionary_page_offset or column.data_page_offset
        chunk = written.read_bytes()[start : start + column.total_compressed_size]
        pages.append(chunk.count(b"\x28\xb5\x2f\xfd"))
    assert pages[0] <= 2 < pages[1]
