"""The reader of ORC files."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc
from pyspark.sql import SparkSession

from conf.errors import ConfigError, DataError
from conf.raw_types import EventTime, RawTable
from etl.readers.base import open_table
from etl.readers.orc import OrcReader
from tests.etl.readers.blocks import opened, read_all
from tests.etl.test_parquet_rows import table_of


def written(path: Path, columns: dict[str, Any], **options: Any) -> str:
    orc.write_table(pa.table(columns), str(path), **options)
    return str(path)


def test_values_are_converted_by_the_rule_of_all_formats(tmp_path: Path) -> None:
    columns = {
        "i": [1, 2, None],
        "x": [1.5, math.nan, 3.0],
        "s": ["a", "", None],
        "b": [b"x", b"y", None],
        "at": pa.array([1_999_999_999, -1, None], pa.timestamp("ns")),
        "flag": [True, False, None],
        "price": pa.array([decimal.Decimal("1.5"), None, decimal.Decimal(2)], pa.decimal128(10, 2)),
        "a.b": [1, 2, 3],
        "unlisted": [{"a": 1}] * 3,
    }
    path = written(tmp_path / "a.orc", columns)
    table = table_of(
        i="string", x="float", s="string", b="string", at="int", flag="int", price="int",
        dotted={"type": "int", "source": "a.b"}, gone={"type": "int", "optional": True},
    )  # fmt: skip
    rows = read_all(opened(OrcReader, table, [path], EventTime(column="at", unit="s")), table.names)
    assert rows.columns == {
        "i": ["1", "2", None],
        "x": [1.5, None, 3.0],
        "s": ["a", None, None],
        "b": ["x", "y", None],
        "at": [1, -1, None],
        "flag": [1, 0, None],
        "price": [None, None, 2],
        "dotted": [1, 2, 3],
        "gone": [None] * 3,
    }
    assert rows.exact == [1_999_999, -1, None]
    assert rows.reasons == ["integer:price", None, None]
    assert rows.texts[2] == '{"x":3.0,"price":2.00,"a.b":3}'


def test_stripes_are_splits(tmp_path: Path) -> None:
    many = list(range(30_000))
    sizes = {"stripe_size": 1024, "batch_size": 1024, "compression": "uncompressed"}
    paths = [
        written(tmp_path / "a.orc", {"x": many}, **sizes),
        written(tmp_path / "b.orc", {"x": pa.array([], pa.int64())}),
        written(tmp_path / "d.orc", {"x": [7]}),
    ]
    (tmp_path / "c.orc").touch()
    reader = opened(OrcReader, table_of(x="int"), sorted([*paths, str(tmp_path / "c.orc")]))
    assert len(reader.splits()) == 3
    assert len(reader.splits(1)) > 2
    for split_bytes in (None, 1, 5000):
        assert read_all(reader, ["x"], split_bytes).columns["x"] == [*many, 7]


def test_files_of_spark_are_read(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(1, "a", 0.5, dt.date(2026, 1, 1)), (None, None, math.nan, None)]
    frame = spark.createDataFrame(rows, "n int, s string, x double, d date").coalesce(1)
    frame.write.orc(str(tmp_path / "folder"))
    [path] = map(str, (tmp_path / "folder").glob("part-*.orc"))
    table = table_of(n="int", s="string", x="float")
    found = read_all(opened(OrcReader, table, [path]), table.names)
    assert found.columns == {"n": [1, None], "s": ["a", None], "x": [0.5, None]}


def test_errors_name_file_and_column(tmp_path: Path) -> None:
    path = written(tmp_path / "a.orc", {"d": [dt.date(2026, 1, 1)], "k": [0.5]})
    with pytest.raises(ConfigError, match=r"a\.orc: the column 'd' has the type date32"):
        OrcReader.open(table_of(d="int"), (path,))
    with pytest.raises(DataError, match=r"a\.orc has no columns \['x'\]; its columns are \['d', 'k'\]"):
        OrcReader.open(table_of(x="int"), (path,))
    with pytest.raises(DataError, match=r"a\.orc, row 1: the value 0.5 of the column 'k' has no text"):
        read_all(OrcReader.open(table_of(k="string"), (path,)), ["k"])
    for content, problem in (
        (b"a,b\n", "is not an ORC file; it begins with b'a,b'"),
        (b"ORC" + bytes(90), "damaged"),
    ):
        damaged = tmp_path / "damaged.orc"
        damaged.write_bytes(content)
        with pytest.raises(DataError, match=rf"damaged\.orc.*{problem}"):
            OrcReader.open(table_of(k="string"), (str(damaged),))
    (tmp_path / "empty.orc").touch()
    with pytest.raises(DataError, match="is empty"):
        OrcReader.open(table_of(k="string"), (f"{tmp_path}/empty.orc",))


def test_the_format_is_registered(tmp_path: Path) -> None:
    path = written(tmp_path / "a.orc", {"k": [1]})
    table = RawTable(**{**table_of(k="int").model_dump(), "format": "orc"})
    assert isinstance(open_table(table, (path,)), OrcReader)
