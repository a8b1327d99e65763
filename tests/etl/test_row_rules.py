"""Each rule of a row has two forms, for Spark and for Arrow: both give the same values and reject the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from conf.raw_types import EventTime, Label
from conf.types import Keys
from etl.raw.number_text import integer_of, integers, number_of, numbers
from etl.raw.row_rules import RowRule, row_rules, time_rule

SPARK_TYPES = {"int": LongType(), "float": DoubleType(), "string": StringType()}
ARROW_TYPES = {"int": pa.int64(), "float": pa.float64(), "string": pa.string()}
LONG = "é" * 128
VALUES: dict[str, list[Any]] = {
    "int": [None, 0, 1, 2, -1, 10**12, 2**63 - 1, -(2**63), 9_223_372_036_854, -9_223_372_036_855],
    "float": [None, 0.0, 1.0, 0.5, -1.0, 3.5, 1e30, -0.0],
    "string": [
        *[None, "0", "1", "+1", "1.0", ".5", "1e0", "1e39", "NaN", "1d", " 1", "x", "2", "4.0", "é\x7f"],
        *[
            "a\x00",
            "a\x1f",
            "a\x9f",
            LONG,
            LONG + "x",
            "\u2028",
            "1e400",
            "-",
            "1_0",
            "9" * 19,
            "17.0",
            "-3.",
            "17.\x85",
            "9" * 18 + ".000",
            "9223372036854775808.0",
            "9" * 20,
            "+7",
        ],
    ],
}


def rules_of(kind: str, threshold: float | None, unit: Any = "s") -> tuple[RowRule, ...]:
    label = Label(column="x", positive_at_least=threshold)
    keys = None if kind == "float" else Keys(user="x", item="y")  # an id is no float (conf/types.py)
    time = EventTime(column="x", unit=unit) if kind == "int" else None
    return row_rules({"x": kind, "y": kind}, label, keys, time)


def in_spark(spark: SparkSession, kind: str, columns: Sequence[Any]) -> list[list[Any]]:
    schema = StructType([StructField("place", LongType()), StructField("x", SPARK_TYPES[kind])])
    rows = spark.createDataFrame(list(enumerate(VALUES[kind])), schema).withColumn("y", F.col("x"))
    chosen = [column.alias(f"c{index}") for index, column in enumerate(columns)]
    table = rows.select("place", *chosen).orderBy("place").collect()
    return [[row[f"c{index}"] for row in table] for index in range(len(columns))]


@pytest.mark.parametrize("kind", ["int", "float", "string"])
@pytest.mark.parametrize("threshold", [None, 3.5])
@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_both_forms_of_every_rule_agree(
    spark: SparkSession, kind: str, threshold: float | None, unit: str
) -> None:
    rules = rules_of(kind, threshold, unit)
    checks = [check for rule in rules for check in rule.checks]
    values = pa.array(VALUES[kind], ARROW_TYPES[kind])
    rejected = in_spark(spark, kind, [check.in_spark(F.col("x")) for check in checks])
    for check, of_spark in zip(checks, rejected, strict=True):
        of_arrow = check.rejects(values).to_pylist()
        assert [bool(value) for value in of_arrow] == [bool(value) for value in of_spark], check.reason
        assert any(of_arrow), f"no value breaks {check.reason}"
    computed = in_spark(spark, kind, [rule.in_spark(F.col(rule.column)) for rule in rules])
    for rule, of_spark in zip(rules, computed, strict=True):
        good = [
            not any(bool(check.rejects(values)[place].as_py()) for check in rule.checks)
            for place in range(len(values))
        ]
        of_arrow = rule.compute(values).to_pylist()
        assert [value for value, is_good in zip(of_arrow, good, strict=True) if is_good] == [
            value for value, is_good in zip(of_spark, good, strict=True) if is_good
        ], rule.output
        assert any(good)


def test_the_first_reason_is_that_of_the_label_then_of_keys_then_of_the_time() -> None:
    reasons = [check.reason for rule in rules_of("string", None) for check in rule.checks]
    assert reasons == ["label:x", "missing_key:x", "key:x", "missing_key:y", "key:y"]
    of_numbers = [check.reason for rule in rules_of("int", None) for check in rule.checks]
    assert of_numbers == ["label:x", "missing_key:x", "missing_key:y", "missing_time:x", "time_range:x"]


def test_both_forms_convert_texts_to_the_same_numbers(spark: SparkSession) -> None:
    texts = pa.array(VALUES["string"], pa.string())
    of_integers, of_numbers = in_spark(spark, "string", [integer_of(F.col("x")), number_of(F.col("x"))])
    assert integers(texts).to_pylist() == of_integers
    assert numbers(texts).to_pylist() == of_numbers
    assert 7 in of_integers
    assert None in of_integers[1:]


def test_nanoseconds_are_rounded_down(spark: SparkSession) -> None:
    rule = time_rule(EventTime(column="x", unit="ns"))
    values = [1_767_225_600_123_456_789, 999, 0, -1, -1000, -1001, 2**63 - 1, None]
    expected = [None if value is None else value // 1000 for value in values]
    assert rule.compute(pa.array(values)).to_pylist() == expected
    frame = spark.createDataFrame([(value,) for value in values], "x long").coalesce(1)
    assert [row[0] for row in frame.select(rule.in_spark(F.col("x"))).collect()] == expected
