"""The reader of Avro files, against pandas, for all codecs and blocks of any size."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import lz4.block
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.errors import ConfigError, DataError
from conf.raw_types import EventTime, RawTable
from etl.readers import avro
from etl.readers.avro import AvroReader
from etl.readers.parquet import ParquetReader
from tests.etl.readers.blocks import ReadRows, opened, read_all

CODECS = ["null", "deflate", "bzip2", "xz", "snappy", "zstandard", "lz4"]


def table_of(**columns: Any) -> RawTable:
    listed = [
        {"name": name, **(kind if isinstance(kind, dict) else {"type": kind})}
        for name, kind in columns.items()
    ]
    return RawTable.model_validate({"path": "x", "format": "avro", "columns": listed})


def schema_of(**fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "shop.Click",
        "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
    }


def write(path: Path, schema: dict[str, Any], rows: list[dict[str, Any]], **options: Any) -> str:
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows, **options)
    return str(path)


def read(
    paths: str | list[str], table: RawTable, time: EventTime | None = None, split_bytes: int | None = None
) -> ReadRows:
    reader = opened(AvroReader, table, [paths] if isinstance(paths, str) else paths, time)
    return read_all(reader, table.names, split_bytes)


TIME = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC))
FIELDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "flag": ("boolean", st.booleans()),
    "small": ("int", st.integers(-(2**31), 2**31 - 1)),
    "big": ("long", st.integers(-(2**63), 2**63 - 1)),
    "single": ("float", st.floats(-4, 4, width=16)),
    "number": ("double", st.floats(-1e6, 1e6)),
    "text": ("string", st.text(max_size=4).filter(lambda text: "\x00" not in text)),
    "day": ({"type": "int", "logicalType": "date"}, st.dates(dt.date(1, 1, 1))),
    "at": ({"type": "long", "logicalType": "timestamp-micros"}, TIME),
    "price": (
        {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2},
        st.decimals(-1000, 1000, places=2),
    ),
    "items": ({"type": "array", "items": "long"}, st.lists(st.integers(-9, 9), max_size=3)),
    "tags": ({"type": "array", "items": "string"}, st.lists(st.sampled_from(["a", "ö b"]), max_size=3)),
    "kind": ({"type": "enum", "name": "Kind", "symbols": ["view", "buy"]}, st.sampled_from(["view", "buy"])),
}
DECLARED = {
    "flag": "bool", "small": "int", "big": "int", "single": "float", "number": "float", "text": "string",
    "day": "date", "at": "timestamp", "price": "decimal", "items": "list<int>", "tags": "list<string>",
    "kind": "string",
}  # fmt: skip
EPOCH, EPOCH_DAY = dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.date(1970, 1, 1)
RECORDS = st.lists(
    st.fixed_dictionaries({name: st.one_of(st.none(), values) for name, (_, values) in FIELDS.items()}),
    max_size=25,
)


def expected(name: str, value: Any) -> Any:
    """The value of a field as the reader gives it."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, dt.datetime):
        return (value - EPOCH) // dt.timedelta(microseconds=1)
    if isinstance(value, dt.date):
        return (value - EPOCH_DAY).days
    return float(value) if isinstance(value, Decimal) else value


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(
    records=RECORDS,
    codec=st.sampled_from(CODECS),
    sync_interval=st.integers(1, 400),
    split_bytes=st.sampled_from([None, 1, 50, 500]),
)
def test_rows_are_those_of_pandas(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[dict[str, Any]],
    codec: str,
    sync_interval: int,
    split_bytes: int | None,
) -> None:
    folder = tmp_path_factory.mktemp("avro")
    schema = schema_of(**{name: ["null", kind] for name, (kind, _) in FIELDS.items()})
    path = write(folder / "a.avro", schema, records, codec=codec, sync_interval=sync_interval)
    rows = read(path, table_of(**DECLARED), EventTime(column="at"), split_bytes)
    known = pd.DataFrame(records, columns=list(FIELDS), dtype=object)
    assert rows.columns == {
        name: [expected(name, value) for value in known[name].where(known[name].notna(), None)]
        for name in FIELDS
    }
    assert rows.reasons == [None] * len(records)
    assert [place[1] for place in rows.places] == list(range(1, len(records) + 1))


def test_times_of_day_are_times_or_plain_integers(tmp_path: Path) -> None:
    millis, micros = (
        ["null", {"type": kind, "logicalType": f"time-{unit}"}]
        for kind, unit in (("int", "millis"), ("long", "micros"))
    )
    clock = dt.time(13, 45, 0, 5000)
    path = write(tmp_path / "a", schema_of(a=millis, b=micros), [{"a": clock, "b": clock}, {"a": None}])
    as_time = 49_500_005_000
    assert read(path, table_of(a="time", b="time")).columns == {"a": [as_time, None], "b": [as_time, None]}
    assert read(path, table_of(a="int", b="int")).columns == {
        "a": [as_time // 1000, None],
        "b": [as_time, None],
    }


@pytest.mark.parametrize("codec", CODECS)
def test_a_file_of_many_blocks_is_read_in_parts(tmp_path: Path, codec: str) -> None:
    rows = [{"key": row, "text": f"user {row}"} for row in range(3000)]
    schema = schema_of(key="long", text="string")
    paths = [
        write(tmp_path / f"{number}", schema, rows[number::2], codec=codec, sync_interval=500)
        for number in (0, 1)
    ]
    table = table_of(key="int", text="string")
    whole, parts = read(paths, table), read(paths, table, split_bytes=700)
    assert parts.columns == whole.columns
    assert parts.places == whole.places
    assert whole.columns["key"] == [*range(0, 3000, 2), *range(1, 3000, 2)]
    assert whole.blocks == len(paths) < parts.blocks


def test_rows_are_read_a_part_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "_BLOCK_ROWS", 7)
    path = write(tmp_path / "a", schema_of(key="long"), [{"key": row} for row in range(20)])
    rows = read(path, table_of(key="int"))
    assert rows.columns == {"key": list(range(20))}
    assert rows.blocks == 3


def test_types_of_avro_have_values_of_the_declared_types(tmp_path: Path) -> None:
    enum = {"type": "enum", "name": "Kind", "namespace": "shop", "symbols": ["view", "buy"]}
    schema = schema_of(
        kind=enum,
        again=["null", "shop.Kind"],
        either=["int", "long", "null"],
        same={"type": "string", "logicalType": "uuid"},
        local={"type": "long", "logicalType": "local-timestamp-millis"},
        nano={"type": "long", "logicalType": "timestamp-nanos"},
        nested={
            "type": "record",
            "name": "Place",
            "fields": [{"name": "x", "type": "string", "default": "q"}],
        },
        map={"type": "map", "values": "Place"},
        code={
            "type": "fixed",
            "name": "Code",
            "size": 4,
            "logicalType": "decimal",
            "precision": 6,
            "scale": 1,
        },
    )
    uuid = "6f1dd8a3-0c1b-4b43-9c66-8a5dc4e4a8e1"
    row = {
        "kind": "buy", "again": "view", "either": 2**40, "same": uuid, "nano": -1,
        "local": dt.datetime(2026, 7, 1, 12), "nested": {"x": "ü"}, "map": {"a": {"x": "b"}}, "code": Decimal("1.5"),
    }  # fmt: skip
    path = write(tmp_path / "a", schema, [row])
    table = table_of(
        kind="string", again="string", either="int", same="string", local="timestamp", nano="int", code="float",
        gone={"type": "int", "optional": True},
    ).model_copy(update={"time_zone": "Europe/Berlin"})  # fmt: skip
    rows = read(path, table, EventTime(column="nano", unit="ms"))
    local = (dt.datetime(2026, 7, 1, 10) - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
    assert {name: values[0] for name, values in rows.columns.items()} == {
        "kind": "buy", "again": "view", "either": 2**40, "same": uuid, "local": local, "nano": -1, "code": 1.5,
        "gone": None,
    }  # fmt: skip
    assert rows.exact == [-1]
    for name, problem in (("nested", "struct"), ("map", "struct")):
        with pytest.raises(DataError, match=rf"column '{name}' has the type {problem}"):
            read(path, table_of(**{name: "string"}))
    with pytest.raises(ConfigError, match="declare the column with `type: timestamp`"):
        read(path, table_of(local="string"))
    with pytest.raises(DataError, match=r"has no column.*\['x'\]"):
        read(path, table_of(x="string"))


def test_a_bad_value_is_quarantined_with_its_row_as_json(tmp_path: Path) -> None:
    rows = [{"key": "1", "x": 0.5}, {"key": "one", "x": None}, {"key": None, "x": 1e300}]
    path = write(tmp_path / "a", schema_of(key=["string", "null"], x=["double", "null"]), rows)
    read_rows = read(path, table_of(key="int", x="float"))
    assert read_rows.reasons == [None, "integer:key", "number:x"]
    assert read_rows.columns == {"key": [1, None, None], "x": [0.5, None, None]}
    assert json.loads(read_rows.texts[1]) == {"key": "one"}


def test_ids_that_are_not_certain_stop_the_job_with_the_number_of_the_row(tmp_path: Path) -> None:
    rows = [{"key": float(row) if row != 95 else 0.5} for row in range(100)]
    path = write(tmp_path / "a", schema_of(key="double"), rows, sync_interval=16)
    for split_bytes in (None, 1):
        with pytest.raises(DataError, match=r"a, row 96: the value 0\.5 of the column 'key' has no text"):
            read(path, table_of(key="string"), split_bytes=split_bytes)
    other = [{"key": b"\xff" if row == 60 else b"a"} for row in range(100)]
    binary = write(tmp_path / "b", schema_of(key="bytes"), other, sync_interval=16)
    with pytest.raises(DataError, match=r"b, row 61: .*'key'"):
        read(binary, table_of(key="string"), split_bytes=1)


def test_texts_that_are_not_utf8_are_errors_and_not_other_texts(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "a", schema_of(key="string"), [{"key": "abc"}, {"key": "xyz"}]))
    path.write_bytes(path.read_bytes().replace(b"xyz", b"x\xffz"))
    with pytest.raises(DataError, match=r"a, row 2: .*'key'"):
        read(str(path), table_of(key="string"))


@pytest.mark.parametrize("codec", CODECS[1:])
def test_blocks_that_become_too_large_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    """The blocks together are too large; each of them is not."""
    monkeypatch.setattr(avro, "ALWAYS_ALLOWED_BYTES", 150_000)
    rows = [{"key": "a" * 100_000}, {"key": "b" * 40_000}, {"key": "c" * 100_000}]
    path = write(tmp_path / "a", schema_of(key="string"), rows, codec=codec, sync_interval=10)
    table = table_of(key="string")
    with pytest.raises(
        DataError, match=r"(?s)a has .* bytes, but becomes more than 150,000 bytes.*`max_expansion`"
    ):
        read(path, table.model_copy(update={"max_expansion": 1.0}))
    allowed = read(path, table.model_copy(update={"max_expansion": 1e6}))
    assert allowed.columns["key"] == [row["key"] for row in rows]


@pytest.mark.parametrize("codec, size", [("snappy", b"\xff\xff\xff\xff\x0f"), ("lz4", b"\xff\xff\xff\xff")])
def test_no_memory_is_reserved_for_a_declared_size(tmp_path: Path, codec: str, size: bytes) -> None:
    """A block of a few bytes declares that it becomes 4 GiB."""
    path = Path(write(tmp_path / "a", schema_of(key="string"), [{"key": "abc"}], codec=codec))
    marker = path.read_bytes()[-16:]
    header = path.read_bytes().split(marker)[0] + marker
    block = size + b"\x00" * 8
    path.write_bytes(header + bytes([2, 2 * len(block)]) + block + marker)
    with pytest.raises(DataError, match=r"a has .* bytes, but becomes more than"):
        read(str(path), table_of(key="string"))


def test_a_block_that_is_shorter_than_it_declares_is_damaged(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "a", schema_of(key="string"), [{"key": "abc"}], codec="lz4"))
    marker = path.read_bytes()[-16:]
    header = path.read_bytes().split(marker)[0] + marker
    block = (90).to_bytes(4, "little") + lz4.block.compress(
        b"\x64abc", store_size=False
    )  # a text of 50 bytes
    path.write_bytes(header + bytes([2, 2 * len(block)]) + block + marker)
    with pytest.raises(DataError, match="the Avro file is damaged"):
        read(str(path), table_of(key="string"))


def test_an_unknown_codec_is_named(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "a", schema_of(key="long"), [{"key": 1}], codec="deflate"))
    path.write_bytes(path.read_bytes().replace(b"deflate", b"brotli7"))
    with pytest.raises(DataError, match="a: the codec of the Avro file, 'brotli7', is not supported"):
        read(str(path), table_of(key="int"))


@pytest.mark.parametrize("codec", CODECS)
def test_damage_is_an_error_of_the_file(tmp_path: Path, codec: str) -> None:
    rows = [{"key": row} for row in range(5000)]
    path = Path(write(tmp_path / "a", schema_of(key="long"), rows, codec=codec))
    whole = path.read_bytes()
    table = table_of(key="int")
    for content, problem in (
        (whole[:-100], "the Avro file is damaged"),
        (whole[:60], "the Avro file is damaged"),
        (b"PAR1" + whole, "is not an Avro file; it begins with b'PAR1'"),
        (b"", "is empty"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"a:? .*{problem}"):
            read(str(path), table)


@pytest.mark.parametrize(
    "kind, problem",
    [
        ({"type": "array", "items": "null"}, "the schema has an array whose elements take no bytes"),
        (
            {"type": "array", "items": {"type": "record", "name": "Empty", "fields": []}},
            "the schema has an array whose elements take no bytes",
        ),
        (["null", "shop.Click"], "the record shop.Click in the file's schema contains itself"),
    ],
)
def test_a_schema_whose_values_have_no_limit_of_memory_is_refused(
    tmp_path: Path, kind: Any, problem: str
) -> None:
    """A few bytes could say that a list has billions of values, or that a record has millions of levels."""
    path = write(tmp_path / "a", schema_of(key="long", other=kind), [])
    with pytest.raises(DataError, match=f"a: {problem}"):
        read(path, table_of(key="int"))


def test_rows_without_bytes_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a", schema_of(key="null"), [{"key": None}] * 3)
    with pytest.raises(DataError, match="a row that has the file's schema takes no bytes"):
        read(path, table_of(key="int"))


def test_a_block_with_a_negative_number_of_rows_is_damage(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "a", schema_of(key="long"), [{"key": 5}, {"key": 6}]))
    marker = path.read_bytes()[-16:]
    head, _, _ = path.read_bytes().partition(marker)
    one = b"\x02\x02\x0a" + marker  # one row, one byte, the value 5
    path.write_bytes(head + marker + one + b"\x01\x02\x0a" + marker + one)  # -1 rows in the second block
    with pytest.raises(DataError, match="a block has -1 records"):
        read(str(path), table_of(key="int"))
    path.write_bytes(head + marker + one + one)
    assert read(str(path), table_of(key="int")).columns == {"key": [5, 5]}


def test_a_file_without_rows_and_an_empty_file_beside_others_have_no_rows(tmp_path: Path) -> None:
    schema = schema_of(key="long")
    (tmp_path / "empty").touch()
    paths = [
        write(tmp_path / "none", schema, []),
        str(tmp_path / "empty"),
        write(tmp_path / "one", schema, [{"key": 1}]),
    ]
    assert read(paths, table_of(key="int")).columns == {"key": [1]}


def test_all_columns_may_be_missing_and_unwanted_columns_are_checked(tmp_path: Path) -> None:
    path = write(tmp_path / "a", schema_of(key="string"), [{"key": "x"}, {"key": "1"}])
    gone = read(path, table_of(other={"type": "int", "optional": True}))
    assert gone.columns == {"other": [None, None]}
    reader = AvroReader.open(table_of(key="int"), (path,))
    (block,) = reader.blocks(reader.splits()[0], [])
    assert dict(block.malformed) == {0: "integer:key"}


def test_values_are_those_of_the_same_rows_in_parquet(tmp_path: Path) -> None:
    rows = pd.DataFrame(
        {
            "key": [1, 2, 2**62],
            "x": [0.1, None, -2.5],
            "at": pd.to_datetime(["2026-01-01T12:00:00.123456Z", "1969-12-31T23:59:59.5Z", None], utc=True),
        }
    )
    rows.to_parquet(tmp_path / "a.parquet", index=False)
    at = {"type": "long", "logicalType": "timestamp-micros"}
    schema = schema_of(key="long", x=["null", "double"], at=["null", at])
    plain = pq.read_table(tmp_path / "a.parquet").to_pylist()
    path = write(tmp_path / "a.avro", schema, plain)
    time = EventTime(column="at", unit="s")
    table = table_of(key="int", x="float", at="int")
    same = table.model_copy(update={"format": "parquet"})
    expected_rows = read_all(opened(ParquetReader, same, [str(tmp_path / "a.parquet")], time), table.names)
    actual = read(path, table, time)
    assert (actual.columns, actual.exact) == (expected_rows.columns, expected_rows.exact)
