"""Tables as tasks have them: in several forms, divided by user, and compared with frames of Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from etl.ops.arrays import plain
from spark.rows import spark_types

FORMS = ("plain", "dictionary", "chunks")
Records = dict[int, dict[str, Any]]


def in_form(table: pa.Table, form: str) -> pa.Table:
    """The table with plain columns, with dictionaries, or in two chunks with different dictionaries."""
    if form == "plain":
        return table
    if form == "chunks":
        half = len(table) // 2
        return pa.concat_tables([in_form(table[half:], "dictionary"), in_form(table[:half], "dictionary")])
    columns = [
        column
        if name in ("row_id", "event_time", "label", "weight") or pa.types.is_list(column.type)
        else column.combine_chunks().dictionary_encode()
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    return pa.table(columns, table.column_names)


def by_user(table: pa.Table, tasks: int = 3) -> list[pa.Table]:
    """The rows of each task: all rows of some users. Some tasks may have no rows."""
    users = table.column("user_key").to_pylist()
    return [
        table.filter(pa.array([sum(map(ord, user)) % tasks == task for user in users], pa.bool_()))
        for task in range(tasks)
    ]


def without_dictionaries(table: pa.Table) -> pa.Table:
    return pa.table({name: plain(table.column(name)) for name in table.column_names})


def records(tables: Sequence[pa.Table]) -> Records:
    """row_id -> row, of the rows of all tasks."""
    rows = [row for table in tables for row in table.to_pylist()]
    named = {row["row_id"]: row for row in rows}
    assert len(named) == len(rows)
    return named


def to_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """The rows in several partitions. They are read from a file once."""
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(without_dictionaries(table), f"{folder}/rows.parquet")
        frame = spark.read.parquet(folder).repartition(3).persist()
        frame.count()
        return frame


def assert_same_rows(tables: Sequence[pa.Table], frame: DataFrame) -> None:
    """Both have the same rows, in any order, and the same types of columns."""
    collected = [row.asDict() for row in frame.collect()]
    expected = {row["row_id"]: row for row in collected}
    assert len(collected) == len(expected)
    assert records(tables) == expected
    types = {field.name: field.dataType.simpleString() for field in frame.schema}
    for table in tables:
        schema = without_dictionaries(table).schema
        assert {field.name: field.dataType.simpleString() for field in spark_types(schema)} == types
