"""Tables of `join_external` in every format have the same rows, with types, nulls and local times."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import orc

from conf.names import SPARK_TABLE
from conf.plugins import READER
from etl.operators.join_external import JoinExternal
from etl.prepare.attributes import read_attribute_table
from tests.etl import cases

BERLIN, EPOCH = ZoneInfo("Europe/Berlin"), dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
# price, flag, day, local time without a fold; each may be null.
Row = tuple[float | None, bool | None, dt.date | None, dt.datetime | None]
ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(-999, 999).map(lambda cents: cents / 4)),
        st.one_of(st.none(), st.booleans()),
        st.one_of(st.none(), st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1))),
        st.one_of(st.none(), st.datetimes(dt.datetime(2026, 4, 1), dt.datetime(2026, 10, 1))),
    ),
    min_size=1,
    max_size=8,
)
NAMES = ["item", "price", "flag", "day", "at"]
SCHEMA = pa.schema(
    [
        ("item", pa.string()),
        ("price", pa.float64()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
    ]
)


def _table(rows: list[tuple[Any, ...]]) -> pa.Table:
    return pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=NAMES).cast(SCHEMA)


def _text(separator: str, header: bool) -> Callable[[list[tuple[Any, ...]], Path], object]:
    def write(rows: list[tuple[Any, ...]], path: Path) -> None:
        lines = [separator.join("NULL" if value is None else str(value) for value in row) for row in rows]
        path.write_text("".join(f"{line}\n" for line in ([separator.join(NAMES)] if header else []) + lines))

    return write


def _json_lines(rows: list[tuple[Any, ...]], path: Path) -> None:
    plain = [
        [value if isinstance(value, str | float | bool) or value is None else str(value) for value in row]
        for row in rows
    ]
    path.write_text("".join(f"{json.dumps(dict(zip(NAMES, row, strict=True)))}\n" for row in plain))


def _avro(rows: list[tuple[Any, ...]], path: Path) -> None:
    day = {"type": "int", "logicalType": "date"}
    local = {"type": "long", "logicalType": "local-timestamp-micros"}
    kinds = ["string", "double", "boolean", day, local]
    fields = [{"name": name, "type": ["null", kind]} for name, kind in zip(NAMES, kinds, strict=True)]
    with path.open("wb") as file:
        records = [dict(zip(NAMES, row, strict=True)) for row in rows]
        fastavro.writer(file, {"type": "record", "name": "row", "fields": fields}, records)


WRITERS: dict[str, Callable[[list[tuple[Any, ...]], Path], object]] = {
    "tsv": _text("\t", header=False),
    "csv": _text(",", header=True),
    "jsonl": _json_lines,
    "parquet": lambda rows, path: pq.write_table(_table(rows), path),
    "orc": lambda rows, path: orc.write_table(_table(rows), str(path)),
    "avro": _avro,
    "delta": lambda rows, path: write_deltalake(path, _table(rows)),
}


def test_every_format_is_tested() -> None:
    # tests/etl/spark/test_copy_tables.py has the format spark_table, test_displays.py the format displays
    assert {*WRITERS, SPARK_TABLE, "displays"} == {*READER.built_in()}


@pytest.mark.parametrize("form", WRITERS)
@settings(max_examples=8, deadline=None, derandomize=True, database=None)
@given(values=ROWS)
def test_every_format_has_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, form: str, values: list[Row]
) -> None:
    folder = tmp_path_factory.mktemp("external")
    rows = [(f"item {number}", *row) for number, row in enumerate(values)]
    WRITERS[form](rows, folder / "table")
    nulls = {"null_values": ["NULL"]} if form in ("tsv", "csv", "jsonl") else {}
    columns = {"price": "float", "flag": "bool", "day": {"type": "date"}, "at": "timestamp"}
    operator = JoinExternal(
        path="{data}/../table", format=form, columns=columns, key="item", time_zone="Europe/Berlin", **nulls
    )
    (step,) = operator.bind({"item_id": "string"})
    source, key = operator.source(step)
    config = cases.write_config(folder)
    (folder / "raw").mkdir()
    read = read_attribute_table(config, source, key, "join_external", "2026-01-01")
    assert [tuple(row.values()) for row in read.to_pylist()] == [
        (
            item,
            price,
            None if flag is None else int(flag),
            None if day is None else (day - EPOCH.date()).days,
            None if at is None else (at.replace(tzinfo=BERLIN) - EPOCH) // dt.timedelta(microseconds=1),
        )
        for item, price, flag, day, at in rows
    ]
    assert dict(step.types) == {"price": "float", "flag": "int", "day": "int", "at": "int"}
