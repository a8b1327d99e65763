"""The digest of a table depends on its names, types and values, and on nothing else."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from storage.file_digests import table_digest

COLUMNS: dict[str, Any] = {
    "number": pa.array([1.5, None, -0.0, 4.0], pa.float32()),
    "id": pa.array([7, 2, None, 2**60], pa.int64()),
    "text": pa.array(["é", "", None, "xy"]),
    "lists": pa.array([[1], [], None, [2, 3]], pa.list_(pa.int32())),
    "texts": pa.array([["a"], None, ["b", "cd"], []], pa.list_(pa.string())),
}
TABLE = pa.table(COLUMNS)


def test_chunks_and_offsets_do_not_matter() -> None:
    longer = pa.concat_tables([TABLE, TABLE, TABLE])
    wanted = table_digest(TABLE)
    assert table_digest(longer.slice(4, 4)) == wanted
    assert table_digest(longer.combine_chunks().slice(4, 4)) == wanted
    assert table_digest(pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)])) == wanted
    assert table_digest(TABLE.slice(1, 2)) == table_digest(
        pa.table({k: v.slice(1, 2) for k, v in COLUMNS.items()})
    )


def test_what_nulls_hide_does_not_matter() -> None:
    valid = pa.py_buffer(b"\x01")  # only the first of two values
    hidden = [
        pa.Array.from_buffers(pa.int64(), 2, [valid, pa.array([5, value], pa.int64()).buffers()[1]])
        for value in (0, 9)
    ]
    assert table_digest(pa.table({"a": hidden[0]})) == table_digest(pa.table({"a": hidden[1]}))


@pytest.mark.parametrize("name", COLUMNS)
def test_every_change_matters(name: str) -> None:
    wanted = table_digest(TABLE)
    values = COLUMNS[name]
    others = [
        {**COLUMNS, name: values.take(pa.array([1, 0, 2, 3]))},
        {**COLUMNS, name: values.take(pa.array([0, 1, 1, 3]))},
        {**{k: v for k, v in COLUMNS.items() if k != name}, "other": values},
        {k: v for k, v in COLUMNS.items() if k != name},
    ]
    digests = {table_digest(pa.table(columns)) for columns in others}
    assert len(digests) == len(others)
    assert wanted not in digests


def test_types_and_boundaries_matter() -> None:
    tables = [
        {"a": pa.array([1, 2], pa.int64())},
        {"a": pa.array([1, 2], pa.int32())},
        {"a": pa.array([1.0, 2.0])},
        {"a": pa.array([0, 2], pa.int64())},
        {"a": pa.array([None, 2], pa.int64())},
        {"a": pa.array(["ab", "c"])},
        {"a": pa.array(["a", "bc"])},
        {"a": pa.array([["ab"], ["c"]])},
        {"a": pa.array([["ab", "c"], []], pa.list_(pa.string()))},
        {"a": pa.array([["ab", "c"], None], pa.list_(pa.string()))},
        {"a": pa.array([], pa.string())},
        {"a": pa.array([], pa.int64())},
    ]
    assert len({table_digest(pa.table(columns)) for columns in tables}) == len(tables)
