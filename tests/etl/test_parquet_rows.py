"""Parquet files of all writers: which types are read, how values are converted, and what is refused."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from conf.errors import ConfigError, DataError, NightrankError
from conf.raw_types import EventTime, RawTable
from etl.raw import file_columns
from etl.raw.layout_digest import layout_digest
from etl.readers.parquet import ParquetReader
from etl.workflow.raw_values import raw_values
from tests.etl import cases
from tests.etl.readers.blocks import ReadRows, opened, read_all
from tests.etl.readers.spark_parquet import read_footers

DAY = "2026-01-01"
TWO_53 = 2.0**53


def table_of(**columns: Any) -> RawTable:
    """A Parquet table; the value of a column is its type, or a mapping with more keys."""
    listed = [
        {"name": name, **({"type": kind} if isinstance(kind, str) else kind)}
        for name, kind in columns.items()
    ]
    return RawTable.model_validate({"path": "x", "format": "parquet", "columns": listed})


def written(path: Path, columns: Mapping[str, Any], **options: Any) -> str:
    """Writes a file with Arrow, and returns its path."""
    pq.write_table(pa.table(dict(columns)), path, **options)
    return str(path)


def rows_of(table: RawTable, paths: Sequence[str]) -> ReadRows:
    """The rows of the files, which are the same whatever the size of file splits."""
    reader = opened(ParquetReader, table, paths)
    whole = read_all(reader, table.names)
    for split_bytes in (1, 200):  # a split for each row group; large groups in several blocks
        assert repr(replace(read_all(reader, table.names, split_bytes), blocks=whole.blocks)) == repr(whole)
    return whole


REFUSED: dict[str, tuple[pa.Array, str, type[NightrankError], str]] = {
    "list": (pa.array([["a"]]), "string", DataError, "list, map or struct"),
    "struct": (pa.array([{"a": 1, "b": 2}]), "int", DataError, "list, map or struct"),
    "map": (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "string", DataError, "list, map"),
    "ns": (pa.array([1], pa.timestamp("ns")), "int", ConfigError, "nanoseconds"),
    "ms with zone": (pa.array([1], pa.timestamp("ms", "UTC")), "float", ConfigError, "milliseconds"),
    "date": (pa.array([dt.date(2026, 1, 1)]), "string", DataError, "Date"),
    "time": (pa.array([1], pa.time64("us")), "int", ConfigError, "declare the column with `type: time`"),
    "50 digits": (pa.array([decimal.Decimal(1)], pa.decimal256(50, 0)), "int", DataError, "50 digits"),
    "boolean": (pa.array([True]), "string", ConfigError, "type: int"),
    "fixed bytes": (pa.array([b"ab"], pa.binary(2)), "string", DataError, "FIXED_LEN_BYTE_ARRAY"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_type_without_a_rule_is_refused_only_if_it_is_listed(tmp_path: Path, case: str) -> None:
    values, declared, error, shown = REFUSED[case]
    path = written(tmp_path / "a.parquet", {"good": [1], "bad": values})
    with pytest.raises(error) as caught:
        read_footers(table_of(good="int", bad=declared), [path])
    for text in (path, "'bad'", shown, "what to do: "):
        assert text in str(caught.value)
    (file,) = read_footers(table_of(good="int"), [path])
    assert file.rows == 1


def test_a_codec_without_a_decoder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.parquet", {"x": [1.5]}, compression="gzip")
    read_footers(table_of(x="float"), [path])
    monkeypatch.setattr(file_columns, "_UNREADABLE_CODECS", ("GZIP",))
    with pytest.raises(DataError, match=r"a\.parquet: the column 'x' is compressed with GZIP, which cannot"):
        read_footers(table_of(x="float"), [path])


@pytest.mark.parametrize(
    "option", [{"compression": "brotli"}, {"column_encoding": "BYTE_STREAM_SPLIT", "use_dictionary": False}]
)
def test_what_spark_cannot_read_is_read(tmp_path: Path, option: dict[str, Any]) -> None:
    path = written(tmp_path / "a.parquet", {"x": [1.5, None, 2.5]}, **option)
    table = table_of(x="float")
    rows = read_all(opened(ParquetReader, table, [path]), table.names)
    assert rows.columns["x"] == [1.5, None, 2.5]


@pytest.mark.parametrize(
    "content, problem",
    [
        (lambda whole: whole[:-20], "is cut off"),
        (lambda whole: whole[:3], "is not a Parquet file; it begins with b'PAR'"),
        (lambda whole: whole[:4], "is cut off"),
        (lambda whole: b"a,b\n1,2\n", "is not a Parquet file; it begins with b'a,b"),
        (lambda whole: whole[:-60] + b"\xff" * 52 + whole[-8:], "the Parquet footer is damaged"),
        (lambda whole: whole[:-8] + b"\xff\xff\xff\x7fPAR1", "the Parquet footer is damaged"),
        (lambda whole: b"", "is empty"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: Callable[[bytes], bytes], problem: str) -> None:
    path = Path(written(tmp_path / "a.parquet", {"x": [1, 2]}))
    path.write_bytes(content(path.read_bytes()))
    with pytest.raises(DataError, match="deliver") as caught:
        read_footers(table_of(x="int"), [str(path)])
    assert str(caught.value).startswith(str(path))
    assert problem in caught.value.problem


@pytest.mark.parametrize("position", [0, 1])
def test_each_file_needs_each_column_that_is_not_optional(tmp_path: Path, position: int) -> None:
    paths = [written(tmp_path / f"{name}.parquet", {"x": [1], "y": [2]}) for name in "ab"]
    written(tmp_path / f"{'ab'[position]}.parquet", {"x": [1]})
    with pytest.raises(DataError) as caught:
        read_footers(table_of(x="int", y="int"), paths)
    assert caught.value.problem == f"{paths[position]} has no columns ['y']; its columns are ['x']"
    assert "optional: true" in caught.value.remedy
    assert len(read_footers(table_of(x="int", y={"type": "int", "optional": True}), paths)) == 2


def test_names_that_differ_only_in_case_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", {"user": [1], "User": [2], "z": [3], "Z": [4], "q": [5]})
    with pytest.raises(DataError, match=r"a\.parquet has the columns \['User', 'user'\]"):
        read_footers(table_of(user="int"), [path])
    read_footers(table_of(q="int"), [path])


def test_optional_columns_need_a_format_with_names() -> None:
    column = {"name": "x", "type": "int", "optional": True}
    with pytest.raises(ValueError, match="columns of tsv files have no names"):
        RawTable.model_validate({"path": "x", "format": "tsv", "columns": [column]})


ROWS: dict[str, list[Any]] = {
    "whole": [11.0, 1_000_001.0, math.nan, None, -0.0, TWO_53 - 1],
    "n": [1, None, -3, 2**53 + 1, 0, 7],
    "x": [0.5, math.nan, None, 3.0, -1e30, 2.0],
    "text": ["a", "", None, "日本", "11.0", " b "],
    "flag": [True, False, None, True, False, True],
}


def _with_pandas(path: Path, _: SparkSession | None) -> None:
    frame = pd.DataFrame(
        {**ROWS, "n": pd.array(ROWS["n"], "Int64"), "flag": pd.array(ROWS["flag"], "boolean")}
    )
    frame["text"] = frame["text"].astype("category")
    frame.assign(unlisted=pd.Timestamp("2026-01-01")).to_parquet(path)


def _with_polars(path: Path, _: SparkSession | None) -> None:
    frame = pl.DataFrame(ROWS, strict=False).with_columns(pl.col("text").cast(pl.Categorical))
    frame.with_columns(unlisted=pl.time(1, 2)).write_parquet(path)


def _with_duckdb(path: Path, _: SparkSession | None) -> None:
    rows = pa.table(ROWS)
    connection = duckdb.connect()
    connection.register("rows_of_arrow", rows)
    connection.sql(f"COPY (SELECT *, uuid() AS unlisted FROM rows_of_arrow) TO '{path}' (FORMAT parquet)")


def _with_spark(path: Path, spark: SparkSession) -> None:
    schema = "whole double, n bigint, x double, text string, flag boolean"
    rows = spark.createDataFrame([*zip(*ROWS.values(), strict=True)], schema).coalesce(1)
    rows.selectExpr("*", "interval '1' day AS unlisted").write.parquet(str(path.parent / "folder"))
    next((path.parent / "folder").glob("part-*")).rename(path)


WRITERS = {"pandas": _with_pandas, "polars": _with_polars, "duckdb": _with_duckdb, "spark": _with_spark}


@pytest.mark.parametrize("writer", [name for name in WRITERS if name != "spark"])
def test_files_of_every_writer_have_the_same_values(tmp_path: Path, writer: str) -> None:
    WRITERS[writer](tmp_path / "a.parquet", None)
    _require_the_rows(tmp_path / "a.parquet")


def test_files_of_spark_have_the_same_values(spark: SparkSession, tmp_path: Path) -> None:
    _with_spark(tmp_path / "a.parquet", spark)
    _require_the_rows(tmp_path / "a.parquet")


def _require_the_rows(path: Path) -> None:
    same = {
        "whole_int": {"type": "int", "source": "whole"},
        "flag_float": {"type": "float", "source": "flag"},
    }
    table = table_of(whole="string", n="int", x="float", text="string", flag="int", **same)
    rows = rows_of(table, [str(path)])
    assert rows.reasons == [None] * 6
    assert rows.columns == {
        "whole": ["11", "1000001", None, None, "0", "9007199254740991"],
        "whole_int": [11, 1_000_001, None, None, 0, 2**53 - 1],
        "n": ROWS["n"],
        "x": [0.5, None, None, 3.0, -1e30, 2.0],
        "text": ["a", None, None, "日本", "11.0", " b "],
        "flag": [1, 0, None, 1, 0, 1],
        "flag_float": [1.0, 0.0, None, 1.0, 0.0, 1.0],
    }
    # The same rule for a table in memory (nightrank).
    types = {column.name: column.type for column in table.columns}
    in_memory = pq.read_table(path).select(list(ROWS))
    for name, source in (("whole_int", "whole"), ("flag_float", "flag")):
        in_memory = in_memory.append_column(name, in_memory.column(source))
    assert {name: array.to_pylist() for name, array in raw_values(in_memory, types).items()} == rows.columns


def test_files_of_a_day_may_store_a_column_differently(tmp_path: Path) -> None:
    table = table_of(k="string", n="int", o={"type": "float", "optional": True})
    parts: list[tuple[Any, Any]] = [
        (pa.array([11, 12]), pa.array([1.0, 1.5])),
        (pa.array([11.0, None]), pa.array([2, 2**63], pa.uint64())),
        (pa.array(["11", "x"]), pa.array(["3", "3.5"])),
        (pa.array([decimal.Decimal("11.00"), None], pa.decimal128(12, 2)), pa.array([True, None])),
        (pa.nulls(2), pa.nulls(2)),
        (pa.array([b"11", b"\xc3\xa9"]), pa.array([4, 5], pa.uint32())),
        (pa.array([11, 11], pa.int8()), pa.array([decimal.Decimal(6), decimal.Decimal(10**19)])),
        (pa.array([], pa.int64()), pa.array([], pa.int64())),
        (pa.array([11, 2**24 - 1], pa.float32()), pa.array([TWO_53, math.inf])),
    ]
    paths = []
    for number, (keys, numbers) in enumerate(parts):
        more = {"o": pa.array([0.5, 0.25])} if number == 0 else {}
        paths.append(written(tmp_path / f"{number}.parquet", {"n": numbers, "k": keys, **more}))
    (tmp_path / "2a.parquet").write_bytes(b"")
    rows = rows_of(table, [*paths[:3], f"{tmp_path}/2a.parquet", *paths[3:]])
    assert [place for _, place in rows.places] == [1, 2] * 8
    assert rows.columns["k"] == [
        *["11", "12", "11", None, "11", "x", "11", None, None, None, "11", "é", "11", "11", "11", "16777215"]
    ]
    bad = "integer:n"
    # The number of a row that is rejected is not read.
    assert [
        (None if reason else n, reason) for n, reason in zip(rows.columns["n"], rows.reasons, strict=True)
    ] == [
        *[(1, None), (None, bad), (2, None), (None, bad), (3, None), (None, bad), (1, None), (None, None)],
        *[(None, None)] * 2,
        *[(4, None), (5, None), (6, None), (None, bad), (None, bad), (None, bad)],
    ]
    assert rows.columns["o"] == [0.5, 0.25, *[None] * 14]


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
def test_a_number_without_a_certain_text_stops_the_job(
    tmp_path: Path, values: pa.Array, shown: str, row: int, wanted: list[str]
) -> None:
    paths = [
        written(tmp_path / "a.parquet", {"k": [1.0]}),
        written(tmp_path / "b.parquet", {"k": values}, row_group_size=4),
    ]
    with pytest.raises(DataError) as caught:
        read_all(opened(ParquetReader, table_of(k="string"), paths), wanted, 1)
    assert caught.value.problem.startswith(f"{paths[1]}, row {row}: the value {shown} of the column 'k' ")
    assert "as strings in UTF-8, or as integers" in caught.value.remedy
    if not pa.types.is_binary(values.type):
        with pytest.raises(DataError, match=f"column k, row {row - 1}: "):
            raw_values(pa.table({"k": values}), {"k": "string"})


INSTANTS = [1_767_225_600_123_456_789, -1, -999_999_999_999]  # ns


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_are_exact_with_any_unit(tmp_path: Path, unit: Any) -> None:
    length = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
    stored: list[tuple[str, str | None, dict[str, Any]]] = [
        *[("ms", None, {}), ("us", "UTC", {}), ("ns", "Europe/Berlin", {}), ("ns", None, {})],
        ("us", None, {"use_deprecated_int96_timestamps": True}),
    ]
    paths: list[str] = []
    expected: list[tuple[int, int | None]] = []
    for number, (file_unit, zone, options) in enumerate(stored):
        kept = [value // length[file_unit] for value in INSTANTS]
        columns = {"at": pa.array(kept, pa.timestamp(file_unit, zone))}
        paths.append(written(tmp_path / f"{number}.parquet", columns, **options))
        expected += [
            (value * length[file_unit] // length[unit], value * length[file_unit] // 1000) for value in kept
        ]
    integers = [value // length[unit] for value in INSTANTS]
    paths.append(written(tmp_path / "9.parquet", {"at": integers}))
    expected += [(value, None) for value in integers]  # not a timestamp
    reader = opened(ParquetReader, table_of(at="int"), paths, EventTime(column="at", unit=unit))
    rows = read_all(reader, ["at"])
    assert [*zip(rows.columns["at"], rows.exact, strict=True)] == expected


def _layout(folder: Path, form: str, kind: str, **log: Any) -> str:
    columns = [{"name": "label", "type": "int"}, {"name": "user", "type": "string"}]
    columns += [{"name": "item", "type": "string"}, {"name": "day", "type": kind}]
    section = {"path": "{data}/*", "format": form, "columns": columns, "label": {"column": "label"}, **log}
    features = [{"columns": ["user"], "kind": "categorical", "ops": ["categorify"]}]
    changes = {"log": section, "features": features, "scopes": {}, "split": {"by": "fraction"}}
    return layout_digest(cases.write_config(folder, changes))


def test_days_with_dates_of_96_bit_timestamps_in_a_time_zone_are_computed_again(tmp_path: Path) -> None:
    """The other stored days remain valid. The digests are those of the code that used the date in UTC."""
    zone = {"time_zone": "Europe/Berlin"}
    assert _layout(tmp_path, "parquet", "date") == "af16c3274de2e899"
    assert _layout(tmp_path, "orc", "date", **zone) == "d6550a60a3d1341c"
    assert _layout(tmp_path, "parquet", "timestamp", **zone) == "41a7e3cf291913e0"
    assert _layout(tmp_path, "parquet", "date", **zone) != "30d14f95fd52492d"
    assert _layout(tmp_path, "delta", "date", **zone) != "849a9f5fada0e56c"
