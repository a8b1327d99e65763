"""The reader of Parquet files gives the rows, reasons and texts of the Spark reader, and needs no JVM."""

from __future__ import annotations

import datetime
import decimal
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from conf.errors import ConfigError, DataError
from conf.raw_types import Column, EventTime, RawTable
from etl.readers import parquet
from etl.readers.parquet import ParquetReader
from etl.readers.text import TextReader
from tests.etl.readers.blocks import ReadRows, opened, read_all
from tests.etl.readers.spark_parquet import EXACT_TIME, read_parquet_rows
from tests.etl.test_parquet_rows import REFUSED, WRITERS, table_of, written

TWO_53 = 2.0**53


def with_spark(
    spark: SparkSession, table: RawTable, paths: Sequence[str], event_time: EventTime | None = None
) -> ReadRows:
    """The same rows, read by Spark."""
    frame = read_parquet_rows(spark, table, paths, event_time)
    rows = frame.orderBy("row_id").collect()
    assert [row["row_id"] for row in rows] == list(range(len(rows)))
    return ReadRows(
        [(row["_file"], row["_line_number"]) for row in rows],
        [row["_reason"] for row in rows],
        [row["_line"] for row in rows],
        {name: [row[name] for row in rows] for name in table.names},
        [row[EXACT_TIME] if EXACT_TIME in frame.columns else None for row in rows],
        0,
    )


def assert_equal(actual: ReadRows, expected: ReadRows) -> None:
    """Compares everything but the number of blocks; floats to the bit."""
    assert actual.places == expected.places
    assert actual.reasons == expected.reasons
    assert actual.texts == expected.texts
    assert actual.exact == expected.exact
    assert actual.columns.keys() == expected.columns.keys()
    for name, values in actual.columns.items():
        assert repr(values) == repr(expected.columns[name]), name  # 0.0 and -0.0 differ


def assert_equals_spark(
    spark: SparkSession, table: RawTable, paths: Sequence[str], event_time: EventTime | None = None
) -> ReadRows:
    expected = with_spark(spark, table, paths, event_time)
    reader = opened(ParquetReader, table, paths, event_time)
    whole = read_all(reader, table.names)
    assert_equal(whole, expected)
    for split_bytes in (1, 200):  # a split for each row group; large groups in several blocks
        assert_equal(read_all(reader, table.names, split_bytes), expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "FILE_SPLIT_BYTES", 60)
        assert_equal(read_all(reader, table.names), expected)
    some = read_all(reader, table.names[:1])
    assert (some.reasons, some.texts) == (expected.reasons, expected.texts)
    return whole


@pytest.mark.parametrize("writer", WRITERS)
def test_files_of_every_writer(spark: SparkSession, tmp_path: Path, writer: str) -> None:
    WRITERS[writer](tmp_path / "a.parquet", spark)
    same = {
        "whole_int": {"type": "int", "source": "whole"},
        "flag_float": {"type": "float", "source": "flag"},
    }
    table = table_of(whole="string", n="int", x="float", text="string", flag="int", **same)
    rows = assert_equals_spark(spark, table, [str(tmp_path / "a.parquet")])
    assert rows.columns["whole"] == ["11", "1000001", None, None, "0", "9007199254740991"]


def test_files_of_a_day_may_store_a_column_differently(spark: SparkSession, tmp_path: Path) -> None:
    table = table_of(k="string", n="int", o={"type": "float", "optional": True})
    parts: list[tuple[Any, Any]] = [
        (pa.array([11, 12]), pa.array([1.0, 1.5])),
        (pa.array([11.0, None]), pa.array([2, 2**63], pa.uint64())),
        (pa.array(["11", 'x"\\\t\x01\x7f/\U0001f600']), pa.array(["3", "3.5"])),
        (pa.array([decimal.Decimal("11.00"), None], pa.decimal128(12, 2)), pa.array([True, None])),
        (pa.nulls(2), pa.nulls(2)),
        (pa.array([b"11", b"\xc3\xa9"]), pa.array([4, 5], pa.uint32())),
        (pa.array([11, 11], pa.int8()), pa.array([decimal.Decimal(6), decimal.Decimal(10**19)])),
        (pa.array([], pa.int64()), pa.array([], pa.int64())),
        (pa.array([11, 2**24 - 1], pa.float32()), pa.array([TWO_53, math.inf])),
        (pa.array([2**63, 2**64 - 1], pa.uint64()), pa.array([math.nan, -math.inf])),
        (pa.array(["a", ""], pa.large_string()), pa.array([decimal.Decimal("1.5"), None])),
        (pa.array([b"", None], pa.large_binary()), pa.array([1.0, 2.0**24], pa.float32())),
        (pa.array(["a", None]).dictionary_encode(), pa.array(["", "x"]).dictionary_encode()),
        (pa.array([decimal.Decimal(7), None], pa.decimal256(30, 0)), pa.array([1, 2], pa.duration("s"))),
    ]
    paths = []
    for number, (keys, numbers) in enumerate(parts):
        more = {"o": pa.array([0.5, 0.25])} if number == 0 else {}
        paths.append(written(tmp_path / f"{number:02}.parquet", {"n": numbers, "k": keys, **more}))
    (tmp_path / "02a.parquet").write_bytes(b"")
    paths = [*paths[:3], f"{tmp_path}/02a.parquet", *paths[3:]]
    rows = assert_equals_spark(spark, table, paths)
    assert rows.reasons.count("integer:n") == 10


FLOATS = [
    0.5,
    -0.0,
    0.0,
    None,
    math.nan,
    math.inf,
    1e38,
    3.5e38,
    -1e300,
    1e-3,
    9.99e-4,
    1e7,
    123456.789,
    1e10,
]
DECIMALS = [
    None,
    *map(decimal.Decimal, ("0.1", "1E-9", "123456789.123456789", "-0.000000001", "99999999999999999999")),
]


def test_numbers_and_their_texts(spark: SparkSession, tmp_path: Path) -> None:
    columns = {
        "double": pa.array(FLOATS),
        "single": pa.array([value and np.float32(value) for value in FLOATS], pa.float32()),
        "decimal": pa.array(
            [DECIMALS[index % len(DECIMALS)] for index in range(len(FLOATS))], pa.decimal128(38, 9)
        ),
        "texts": pa.array([str(value) for value in FLOATS]),
        "octets": pa.array([str(value).encode() for value in FLOATS]),
        "big": pa.array([2**63 - 1 - index for index in range(len(FLOATS))]),
    }
    path = written(tmp_path / "a.parquet", columns, row_group_size=4)
    for declared in ("int", "float"):
        assert_equals_spark(spark, table_of(**dict.fromkeys(columns, declared)), [path])


INSTANTS = [1_767_225_600_123_456_789, -1, -999_999_999_999, None]  # ns


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps(spark: SparkSession, tmp_path: Path, unit: str) -> None:
    length = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
    stored: list[tuple[str, str | None, dict[str, Any]]] = [
        *[
            ("s", None, {}),
            ("ms", None, {}),
            ("us", "UTC", {}),
            ("ns", "Europe/Berlin", {}),
            ("ns", None, {}),
        ],
        ("us", None, {"use_deprecated_int96_timestamps": True}),
    ]
    paths = []
    for number, (of_file, zone, options) in enumerate(stored):
        kept = [value and value // length[of_file] for value in INSTANTS]
        kept.append(2**62 if not options else 0)
        columns = {"k": [1, 2, 3, 4, 5], "at": pa.array(kept, pa.timestamp(of_file, zone))}
        paths.append(written(tmp_path / f"{number}.parquet", columns, **options))
    paths.append(written(tmp_path / "9.parquet", {"k": [1, 2], "at": [5, None]}))
    event_time = EventTime(column="at", unit=unit)  # type: ignore[arg-type]
    rows = assert_equals_spark(spark, table_of(k="string", at="int"), paths, event_time)
    assert rows.exact[0] == 1_767_225_600_000_000
    assert rows.exact[-2:] == [None, None]


@pytest.mark.parametrize(
    "values, shown, row",
    [
        (pa.array([1.0, 1.5, None]), "1.5", 2),
        (pa.array([TWO_53]), "9007199254740992.0", 1),
        (pa.array([1, 2**24], pa.float32()), "16777216.0", 2),
        (pa.array([math.inf]), "inf", 1),
        (pa.array([decimal.Decimal("1.00"), decimal.Decimal("1.25")]), "1.25", 2),
        (pa.array([b"a", b"\xff", b"\xfe"]), "b'\\xff'", 2),
        (pa.array([*[1.0] * 9, 1.5]), "1.5", 10),
    ],
)
@pytest.mark.parametrize("wanted", [["k"], []])
def test_a_value_without_text_stops_the_job_as_in_spark(
    spark: SparkSession, tmp_path: Path, values: pa.Array, shown: str, row: int, wanted: list[str]
) -> None:
    paths = [
        written(tmp_path / "a.parquet", {"k": [1.0]}),
        written(tmp_path / "b.parquet", {"k": values}, row_group_size=4),
    ]
    with pytest.raises(DataError) as expected:
        read_parquet_rows(spark, table_of(k="string"), paths)
    with pytest.raises(DataError) as caught:
        read_all(opened(ParquetReader, table_of(k="string"), paths), wanted, 1)
    assert caught.value.problem.startswith(f"{paths[1]}, row {row}: the value {shown} of the column 'k' ")
    assert (caught.value.problem, caught.value.remedy) == (expected.value.problem, expected.value.remedy)


def test_a_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    texts = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"\xff", b"c"]).buffers())
    path = written(tmp_path / "a.parquet", {"k": texts})
    with pytest.raises(
        DataError, match=r"a.parquet, row 2: the value b'\\xff' of the column 'k' is not UTF-8"
    ):
        read_all(opened(ParquetReader, table_of(k="string"), [path]), ["k"])


@pytest.mark.parametrize("case", REFUSED)
def test_a_type_without_a_rule_is_refused_only_if_it_is_listed(tmp_path: Path, case: str) -> None:
    values, declared, error, shown = REFUSED[case]
    path = written(tmp_path / "a.parquet", {"good": [1], "bad": values})
    with pytest.raises(error) as caught:
        ParquetReader.open(table_of(good="int", bad=declared), (path,))
    for text in (path, "'bad'", shown, "what to do: "):
        assert text in str(caught.value)
    rows = read_all(opened(ParquetReader, table_of(good="int"), [path]), ["good"])
    assert (rows.columns, rows.texts) == ({"good": [1]}, ['{"good":1}'])


def test_damaged_pages_name_the_file(tmp_path: Path) -> None:
    path = Path(written(tmp_path / "a.parquet", {"x": list(range(1000))}, compression="zstd"))
    content = bytearray(path.read_bytes())
    content[10:200] = bytes(190)
    path.write_bytes(content)
    reader = opened(ParquetReader, table_of(x="int"), [str(path)])
    with pytest.raises(DataError, match=r"a\.parquet: .*damaged") as caught:
        read_all(reader, ["x"])
    assert "deliver the file again" in caught.value.remedy


def test_a_page_that_differs_from_its_checksum_names_the_file(spark: SparkSession, tmp_path: Path) -> None:
    """Spark stores a checksum with each page. The pages are not compressed, so they can be read all the same."""
    texts = [f"text {index}" for index in range(2000)]
    frame = spark.createDataFrame([(index, text) for index, text in enumerate(texts)], "x bigint, s string")
    frame.coalesce(1).write.option("compression", "none").parquet(str(tmp_path / "folder"))
    [path] = (tmp_path / "folder").glob("part-*.parquet")
    reader = opened(ParquetReader, table_of(x="int", s="string"), [str(path)])
    assert read_all(reader, ["x", "s"]).columns["s"] == texts
    content = path.read_bytes()
    place = content.index(b"text 1234")
    path.write_bytes(content[:place] + b"next" + content[place + 4 :])
    assert "next 1234" in pq.read_table(path)["s"].to_pylist()
    with pytest.raises(
        DataError, match=r"part-.*damaged: a page of the column 's' differs from its checksum"
    ):
        read_all(reader, ["x", "s"])
    assert next(reader.blocks(reader.splits()[0], ["x"])).lines == 2000


def test_large_row_groups_are_read_as_several_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "FILE_SPLIT_BYTES", 1000)
    values = list(range(1500))
    texts = [f"text {value}" if value % 3 else None for value in values]
    path = written(tmp_path / "a.parquet", {"x": values, "s": texts}, row_group_size=700)
    reader = opened(ParquetReader, table_of(x="int", s="string"), [path])
    assert [(part.start, part.end) for part in reader.splits()] == [(0, None), (1, None), (2, 3)]
    rows = read_all(reader, ["x", "s"])
    assert (rows.columns["x"], rows.columns["s"]) == (values, texts)
    assert rows.blocks > 10


def test_splits_cover_all_row_groups_and_large_groups_have_several_blocks(tmp_path: Path) -> None:
    sizes = {"a": 0, "b": 1, "c": 1000}
    paths = [
        written(tmp_path / f"{name}.parquet", {"x": range(size), "y": range(size)}, row_group_size=100)
        for name, size in sizes.items()
    ]
    reader = opened(ParquetReader, table_of(x="int", y="int"), paths)
    one = reader.splits()
    assert [(part.path, part.start, part.end) for part in one] == [
        (paths[0], 0, one[0].end),
        (paths[1], 0, 1),
        (paths[2], 0, 10),
    ]
    many = [part for part in reader.splits(3000) if part.path == paths[2]]
    assert [(part.start, part.end) for part in many][:2] == [(0, many[0].end), (many[0].end, many[1].end)]
    assert many[-1].end == 10
    assert sum(part.bytes for part in many) == one[2].bytes
    assert len(many) > 2
    large = [part for part in reader.splits(1) if part.path == paths[2]]
    assert [(part.start, part.end) for part in large] == [(group, None) for group in range(10)]
    assert read_all(reader, ["x"], 1).columns["x"] == [0, *range(1000)]


def test_names_with_dots_are_columns(spark: SparkSession, tmp_path: Path) -> None:
    columns = {"a.b": [1, 2], "a": [{"b": 5}, {"b": 6}], "a.b.c": ["x", None]}
    path = written(tmp_path / "a.parquet", columns)
    table = table_of(x={"type": "int", "source": "a.b"}, y={"type": "string", "source": "a.b.c"})
    rows = assert_equals_spark(spark, table, [path])
    assert rows.texts == ['{"a.b":1,"a.b.c":"x"}', '{"a.b":2}']


def _random_column(draw: random.Random, rows: int) -> pa.Array:
    def with_nulls(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        return pa.array([None if draw.random() < 0.1 else value for value in values], kind)

    texts = ["", "a", "1", "2.0", "1e3", "-7", "é", " 1", "9" * 19, "x\ny", "0.1", "1.25"]
    kind = draw.choice(
        [
            "int8",
            "int64",
            "uint32",
            "uint64",
            "float",
            "double",
            "bool",
            "string",
            "binary",
            "decimal",
            "null",
            "category",
        ]
    )
    if kind == "null":
        return pa.nulls(rows)
    if kind in ("string", "binary", "category"):
        values = with_nulls([draw.choice(texts) for _ in range(rows)], pa.string())
        return (
            values.cast(pa.binary())
            if kind == "binary"
            else values.dictionary_encode()
            if kind == "category"
            else values
        )
    if kind == "bool":
        return with_nulls([draw.random() < 0.5 for _ in range(rows)], pa.bool_())
    if kind == "decimal":
        return with_nulls(
            [decimal.Decimal(draw.randrange(-(10**9), 10**9)).scaleb(-2) for _ in range(rows)],
            pa.decimal128(20, 2),
        )
    if kind in ("float", "double"):
        values = [draw.choice([math.nan, 0.25, -3.0, draw.randrange(2**20) / 4, 1e30]) for _ in range(rows)]
        return with_nulls(values, pa.float32() if kind == "float" else pa.float64())
    bits = {"int8": 7, "int64": 63, "uint32": 32, "uint64": 64}[kind]
    return with_nulls([draw.randrange(2**bits) for _ in range(rows)], pa.type_for_alias(kind))


@pytest.mark.parametrize("seed", range(4))
def test_random_tables(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Each file of a table stores each column with another type."""
    draw = random.Random(seed)
    table = table_of(**{f"c{index}": draw.choice(["int", "float"]) for index in range(6)}, s="string")
    paths = []
    for number in range(6):
        rows = draw.choice([0, 1, 7, 60])
        columns = {name: _random_column(draw, rows) for name in table.names[:6]}
        columns["s"] = pa.array([draw.choice(["u", "", None, "é"]) for _ in range(rows)], pa.string())
        options = {
            "use_dictionary": draw.random() < 0.5,
            "data_page_size": 64,
            "dictionary_pagesize_limit": 64,
        }
        shuffled = dict(sorted(columns.items(), key=lambda _: draw.random()))
        paths.append(
            written(
                tmp_path / f"{number}.parquet", shuffled, row_group_size=draw.choice([3, 25, 100]), **options
            )
        )
    assert_equals_spark(spark, table, paths)


INPUTS = Path(__file__).parents[4] / "shared/inputs"


@pytest.mark.skipif(not INPUTS.exists(), reason=f"the inputs are not at {INPUTS}")
@pytest.mark.parametrize("name", ["parquet_timestamp_ns", "parquet_mixed_types"])
def test_logs_that_failed_once(spark: SparkSession, name: str) -> None:
    paths = sorted(str(path) for path in (INPUTS / name / "data").glob("*.parquet"))
    table = table_of(user="int", item="int", ts="int", label="int", x="float", c="string")
    assert_equals_spark(spark, table, paths, EventTime(column="ts"))


@pytest.mark.skipif(not INPUTS.exists(), reason=f"the inputs are not at {INPUTS}")
def test_ids_that_are_floats_are_texts_of_integers_and_lists_are_refused(spark: SparkSession) -> None:
    path = str(INPUTS / "parquet_float_ids_and_lists/data/log.parquet")
    more = {"item": "string", "ts": "int", "label": "int", "price": "float"}
    rows = assert_equals_spark(spark, table_of(user="string", **more), [path], EventTime(column="ts"))
    assert {user for user in rows.columns["user"] if user} == {str(user) for user in range(1, 21)}
    with pytest.raises(DataError, match="the column 'genres' has the Parquet type list") as caught:
        ParquetReader.open(table_of(genres="string"), (path,))
    assert "list<string>" in caught.value.remedy


def test_other_declared_types(tmp_path: Path) -> None:
    declared = {
        "flag": "bool",
        "day": "date",
        "at": "timestamp",
        "old": "timestamp",
        "price": "decimal",
        "ids": "list<int>",
        "tags": "list<string>",
        "gone": "list<int>",
    }
    columns = [
        Column.model_construct(name=name, type=kind, source=None, optional=name == "gone")
        for name, kind in declared.items()
    ]
    table = RawTable.model_construct(**{**dict(table_of(x="int")), "columns": columns})
    values = {
        "flag": [True, None, False],
        "day": [datetime.date(1970, 1, 2), None, datetime.date(1969, 12, 31)],
        "at": pa.array([1, -1, None], pa.timestamp("ms", "Asia/Tokyo")),
        "price": [decimal.Decimal("0.10"), None, decimal.Decimal("-2.50")],
        "ids": [[1.0, None], [0.5], None],
        "tags": [["a", ""], [], None],
    }
    path = written(tmp_path / "a.parquet", {**values, "old": pa.array([0, -1, None], pa.timestamp("s"))})
    old = written(
        tmp_path / "b.parquet",
        {**values, "old": pa.array([1_000, -1_000, 0], pa.timestamp("us"))},
        use_deprecated_int96_timestamps=True,
    )
    one = read_all(opened(ParquetReader, table, [path]), table.names)
    assert one.columns == {
        "flag": [1, None, 0],
        "day": [1, None, -1],
        "at": [1000, -1000, None],
        "old": [0, -1_000_000, None],
        "price": [0.1, None, -2.5],
        "ids": [[1], None, None],
        "tags": [["a"], [], None],
        "gone": [None] * 3,
    }
    assert one.reasons == [None, "list:ids", None]
    assert one.texts[0] == (
        '{"flag":true,"day":"1970-01-02","at":1,"old":0,"price":0.10,"ids":[1.0,null],"tags":["a",""]}'
    )
    both = read_all(opened(ParquetReader, table, [path, old]), ["old", "ids"], 1)
    assert both.columns["old"] == [0, -1_000_000, None, 1_000, -1_000, 0]
    assert both.columns["ids"] == one.columns["ids"] * 2
    assert both.reasons == one.reasons * 2
    required = Column.model_construct(name="gone", type="date", source=None, optional=False)
    with pytest.raises(DataError, match=r"a\.parquet has no columns \['gone'\]"):
        ParquetReader.open(table.model_copy(update={"columns": [required]}), (path,))
    wrong = Column.model_construct(name="tags", type="date", source=None, optional=False)
    with pytest.raises(ConfigError, match=r"a\.parquet: the column 'tags' .*type: date"):
        ParquetReader.open(table.model_copy(update={"columns": [wrong]}), (path,))


@pytest.mark.parametrize("use_dictionary", [True, False])
@pytest.mark.parametrize("declared", ["list<int>", "list<string>"])
def test_texts_in_columns_of_lists_are_read_as_in_text_files(
    tmp_path: Path, declared: str, use_dictionary: bool
) -> None:
    texts = ["3|1", "", "3|1", "2", "|4|", "x|1"]
    (tmp_path / "a.tsv").write_text("".join(f"{text}\n" for text in texts))
    path = written(tmp_path / "a.parquet", {"k": texts}, use_dictionary=use_dictionary, row_group_size=4)
    table = table_of(k=declared)
    expected = read_all(
        opened(TextReader, table.model_copy(update={"format": "tsv"}), [str(tmp_path / "a.tsv")]), ["k"]
    )
    for split_bytes in (None, 1):  # one block, and a block for each row group
        rows = read_all(opened(ParquetReader, table, [path]), ["k"], split_bytes)
        assert (rows.columns, rows.reasons) == (expected.columns, expected.reasons)
    assert expected.columns["k"][4:] == ([[4], None] if declared == "list<int>" else [["4"], ["x", "1"]])


def test_timestamps_of_96_bits_are_instants_in_every_declared_type(tmp_path: Path) -> None:
    at = pa.array([1_767_915_000_000_000, -1, None], pa.timestamp("us", "UTC"))  # 2026-01-08 23:30
    old = written(tmp_path / "a.parquet", {"at": at}, use_deprecated_int96_timestamps=True)
    new = written(tmp_path / "b.parquet", {"at": at})
    days = {"Europe/Berlin": [20462, 0, None], "America/New_York": [20461, -1, None]}
    for time_zone, expected in days.items():
        for declared, event_time in (
            ("date", None),
            ("timestamp", None),
            ("int", EventTime(column="at", unit="ms")),
        ):
            table = table_of(at=declared).model_copy(update={"time_zone": time_zone})
            a, b = (read_all(opened(ParquetReader, table, [path], event_time), ["at"]) for path in (old, new))
            assert (a.columns, a.exact) == (b.columns, b.exact)
            if declared == "date":
                assert a.columns["at"] == expected
    assert a.texts[0] == '{"at":"2026-01-08T23:30:00.000Z"}'


@pytest.mark.parametrize("use_dictionary", [True, False])
@pytest.mark.parametrize("empty", [0, 1, 2])
def test_row_groups_without_rows_are_skipped(tmp_path: Path, empty: int, use_dictionary: bool) -> None:
    rows = pa.table({"u": ["a", "b", None, "a"], "i": [1, 2, 3, None]})
    parts = [rows[:2], rows[2:]]
    parts.insert(empty, rows[:0])
    with pq.ParquetWriter(tmp_path / "a.parquet", rows.schema, use_dictionary=use_dictionary) as writer:
        for part in parts:
            writer.write_table(part)
    reader = opened(ParquetReader, table_of(u="string", i="int"), [str(tmp_path / "a.parquet")])
    for split_bytes in (None, 1):
        assert read_all(reader, ["u", "i"], split_bytes).columns == rows.to_pydict()


@pytest.mark.parametrize("encoding", ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
def test_texts_in_the_encodings_of_version_2(tmp_path: Path, encoding: str) -> None:
    texts = ["user 1", None, "user 12", "", "user 1"]
    options = {"use_dictionary": ["b"], "column_encoding": {"a": encoding}, "row_group_size": 3}
    path = written(tmp_path / "a.parquet", {"a": texts, "b": texts}, **options)
    reader = opened(ParquetReader, table_of(a="string", b="string"), [path])
    expected = [text or None for text in texts]
    for split_bytes in (None, 1):
        assert read_all(reader, ["a", "b"], split_bytes).columns == {"a": expected, "b": expected}


def test_files_that_duckdb_writes_in_version_2(tmp_path: Path) -> None:
    """Some column chunks have a dictionary, and others are encoded as DELTA_LENGTH_BYTE_ARRAY."""
    path = tmp_path / "a.parquet"
    texts = "CASE WHEN range < 2048 THEN range % 7 ELSE range END"
    duckdb.execute(
        f"COPY (SELECT 'u' || {texts} AS u FROM range(4096)) TO '{path}' "
        "(FORMAT parquet, PARQUET_VERSION V2, ROW_GROUP_SIZE 2048)"
    )
    footer = pq.read_metadata(path)
    encodings = [footer.row_group(group).column(0).encodings for group in range(footer.num_row_groups)]
    assert "DELTA_LENGTH_BYTE_ARRAY" in encodings[1]
    assert "DELTA_LENGTH_BYTE_ARRAY" not in encodings[0]
    rows = read_all(opened(ParquetReader, table_of(u="string"), [str(path)]), ["u"])
    assert rows.columns == pq.read_table(path).to_pydict()
