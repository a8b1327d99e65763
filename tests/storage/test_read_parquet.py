"""Tables of a partition: the rows that the manifest names, and errors that name what is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conf.errors import DataError
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths, Partition
from storage.publish import publish_rows
from storage.read_parquet import concat_parts, read_file, read_table

ROWS = pa.table(
    {
        "user_key": pa.array(["a", "b", "c"]),
        "ids": pa.array([[1], None, []], pa.list_(pa.int32())),
        "score": pa.array([0.5, 1.5, 2.5], pa.float32()),
    }
)


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    partition = LakePaths(str(tmp_path)).recommendations.partition("2026-01-01")
    publish_rows(ROWS, partition, inputs={}, row_group_rows=2)
    return partition


def test_rows_come_back_from_all_files(partition: Partition) -> None:
    manifest = read_manifest(partition)
    assert len(manifest.files) == 2
    assert read_table(partition, manifest).to_pylist() == ROWS.to_pylist()
    some = read_table(partition, manifest, columns=["score", "user_key"])
    assert some.to_pylist() == ROWS.select(["score", "user_key"]).to_pylist()
    nothing = read_table(partition, replace(manifest, files=()))
    assert (len(nothing), nothing.column_names) == (0, ROWS.column_names)


def test_a_column_that_the_manifest_lacks_or_that_has_an_unknown_type_is_named(partition: Partition) -> None:
    manifest = read_manifest(partition)
    with pytest.raises(DataError, match=r"dt=2026-01-01 lacks these columns.*'gone', None"):
        read_table(partition, manifest, columns=["user_key", "gone"])
    odd = replace(manifest, schema=(("user_key", "string"), ("ids", "list<element: time>")))
    with pytest.raises(
        DataError, match=r"types that this release does not know.*'ids', 'list<element: time>'"
    ):
        read_table(partition, odd)


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_missing_or_damaged_file_is_named(partition: Partition, damage: str) -> None:
    manifest = read_manifest(partition)
    path = Path(data_files(partition, manifest)[1])
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-20])
    problem = "does not exist" if damage == "gone" else "is damaged: it has"
    with pytest.raises(DataError, match=rf"{path.name} {problem}"):
        read_table(partition, manifest)


def _marked(table: pa.Table) -> pa.Table:
    """The same rows, as a writer declares them that expects no nulls and adds metadata."""
    fields = []
    for field in table.schema:
        kind = field.type
        if pa.types.is_list(kind):
            kind = pa.list_(pa.field("element", kind.value_type, nullable=False))
        fields.append(pa.field(field.name, kind, nullable=False, metadata={"writer": "other"}))
    arrays = [column.combine_chunks().cast(field.type) for column, field in zip(table, fields, strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata={"writer": "other"}))


def test_parts_of_several_writers_are_one_table(tmp_path: Path) -> None:
    full = pa.table({"key": ["a", "b"], "ids": pa.array([[1], [2, 3]], pa.list_(pa.int32()))})
    parts = [full, _marked(full), _marked(full.slice(0, 0)), full.slice(0, 0)]
    for order in (parts, parts[::-1]):
        assert concat_parts(order).to_pylist() == 2 * full.to_pylist()
        files = []
        for number, part in enumerate(order):
            files.append(str(tmp_path / f"{number}.parquet"))
            pq.write_table(part, files[-1])
        assert concat_parts(pq.read_table(file) for file in files).to_pylist() == 2 * full.to_pylist()
        read = [read_file(file) for file in files]
        assert all(part.schema.equals(read[0].schema, check_metadata=True) for part in read)
    with pytest.raises(pa.ArrowInvalid):
        concat_parts([full, full.select(["key"])])
