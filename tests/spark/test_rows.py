"""Frames of Spark and Arrow tables of this process: the same queries and functions give the same rows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from spark import choose_workers
from spark.choose_workers import stay_in_process
from spark.rows import (
    Rows,
    count,
    list_entries,
    map_rows,
    map_rows_in_threads,
    query,
    quoted,
    records,
    select,
    spread,
    union_all,
    with_hash,
    with_nulls,
    with_value,
)
from storage.run_context import RunContext
from tests.etl import cases
from tests.processes import ROOT
from tests.rows import BOTH_FORMS, AsRows, as_table, columns_of

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
LONG = 2**63 - 1

# Queries over the table `clicks` (user_key, item_index, label). Each uses a part of SQL that our queries use.
QUERIES = {
    "count": "SELECT user_key, count(1) AS n, count(label) AS known FROM {clicks} GROUP BY user_key",
    "sum": "SELECT sum(item_index) AS total, sum(CASE WHEN label = 1 THEN 1 ELSE 0 END) AS ones FROM {clicks}",
    "long sum": "SELECT sum(CAST(item_index AS BIGINT) * 3000000000) AS total FROM {clicks}",
    "lists": "SELECT user_key, sort_array(collect_list(item_index)) AS l FROM {clicks} GROUP BY user_key",
    "size": "SELECT user_key, size(collect_list(item_index)) AS n FROM {clicks} GROUP BY user_key",
    "array_remove": (
        "SELECT user_key, size(array_remove(collect_list(item_index), 3)) AS n FROM {clicks} GROUP BY user_key"
    ),
    "rounding": "SELECT user_key, CAST(round(1024 / log2(item_index + 2)) AS BIGINT) AS gain FROM {clicks}",
    "division": "SELECT item_index, (item_index + 1) / 7 AS share, item_index % 5 AS rest FROM {clicks}",
    "distinct": "SELECT DISTINCT user_key, item_index FROM {clicks}",
    "semi join": "SELECT * FROM {clicks} AS c SEMI JOIN {users} AS u USING (user_key)",
    "left join": (
        "SELECT c.user_key, u.new IS NULL AS unknown, coalesce(u.new, false) AS new FROM {clicks} AS c "
        "LEFT JOIN {users} AS u ON u.user_key = c.user_key"
    ),
    "quoted": "SELECT `item_index` = 1 AS one FROM {clicks}",
    "union": "SELECT 'a' AS kind, user_key FROM {clicks} UNION ALL SELECT 'b' AS kind, user_key FROM {users}",
    "limit": "SELECT user_key FROM {users} ORDER BY user_key LIMIT 3",
    "nothing": "SELECT max(item_index) AS most, sum(item_index) AS total FROM {clicks} WHERE label > 5",
}


def frames(spark: SparkSession, seed: int, rows: int) -> tuple[DataFrame, DataFrame]:
    draw = np.random.default_rng(seed)
    names = ["", "a", "ä", "B", "'", '"', "🙂", "z" * 30]
    clicks = [
        (str(draw.choice(names)), int(draw.integers(0, 9)), [None, 0.0, 1.0][draw.integers(0, 3)])
        for _ in range(rows)
    ]
    users = [(name, bool(draw.integers(0, 2))) for name in names[::2]]
    return (
        spark.createDataFrame(clicks, "user_key string, item_index int, label float").repartition(2),
        spark.createDataFrame(users, "user_key string, new boolean"),
    )


def in_order(rows: Rows) -> list[str]:
    return sorted(str(list(row.items())) for row in records(rows))


@pytest.mark.parametrize("text", QUERIES.values(), ids=QUERIES)
@pytest.mark.parametrize("rows", [0, 1, 60])
def test_a_query_gives_the_same_rows_in_both_engines(spark: SparkSession, text: str, rows: int) -> None:
    clicks, users = frames(spark, rows, rows)
    by_spark = query(text, clicks=clicks, users=users)
    table = query(text, clicks=as_table(clicks), users=as_table(users))
    assert isinstance(by_spark, DataFrame)
    assert isinstance(table, pa.Table)
    assert columns_of(table) == columns_of(by_spark)
    assert in_order(table) == in_order(by_spark)


def test_tables_join_a_query_of_frames(spark: SparkSession) -> None:
    clicks, users = frames(spark, 3, 40)
    mixed = query(QUERIES["semi join"], clicks=clicks, users=as_table(users))
    assert isinstance(mixed, DataFrame)
    assert in_order(mixed) == in_order(query(QUERIES["semi join"], clicks=clicks, users=users))


def test_a_query_reads_persisted_frames_from_the_cache(spark: SparkSession) -> None:
    """And leaves no views behind."""
    views = spark.sql("SHOW VIEWS").collect()
    clicks, users = frames(spark, 3, 40)
    known = query(QUERIES["semi join"], clicks=clicks, users=users).persist()
    assert known.count() > 0
    twice = query("SELECT a.user_key FROM {a} AS a JOIN {b} AS b USING (user_key)", a=known, b=known)
    again = query("SELECT user_key FROM {rows}", rows=known)
    for rows, scans in ((twice, 2), (again, 1)):
        plan = rows._jdf.queryExecution().toString()
        assert plan.rpartition("== Physical Plan ==")[2].count("InMemoryTableScan") == scans
    assert known.is_cached
    assert spark.sql("SHOW VIEWS").collect() == views
    known.unpersist()


@settings(max_examples=6, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=30), st.lists(st.integers(-LONG, LONG), min_size=1, max_size=30))
def test_hashes_are_those_of_spark(spark: SparkSession, texts: list[str], numbers: list[int]) -> None:
    for values, kind in ((texts, "string"), (numbers, "long")):
        frame = spark.createDataFrame([(value,) for value in values], f"v {kind}")
        expected = [row.h for row in with_hash(frame, "v", "h").collect()]
        assert with_hash(as_table(frame), "v", "h").column("h").to_pylist() == expected


@BOTH_FORMS
@pytest.mark.parametrize("name", ["a b", "a`b", 'a"b', "a{b}c", "{}", "ä-1", "select"])
def test_columns_may_have_any_name(spark: SparkSession, as_rows: AsRows, name: str) -> None:
    rows = as_rows(spark.createDataFrame([(1,), (2,)], "v int").withColumnRenamed("v", name))
    totals = query(f"SELECT sum({quoted(name)}) AS total FROM {{rows}}", rows=rows)
    assert records(totals) == [{"total": 3}]


def doubled(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        values = batch.column(0).to_numpy() * 2
        yield pa.RecordBatch.from_arrays([pa.array(values, pa.int32())], ["twice"])


@BOTH_FORMS
def test_functions_get_every_row_once(spark: SparkSession, as_rows: AsRows) -> None:
    numbers = as_rows(spark.range(0, 1003, 1, 3).selectExpr("CAST(id AS INT) AS n"))
    schema, expected = pa.schema([("twice", pa.int32())]), list(range(0, 2006, 2))
    assert [row["twice"] for row in records(map_rows(numbers, doubled, schema))] == expected
    for threads, most in ((1, 10_000), (3, 7)):
        rows = map_rows_in_threads(numbers, doubled, schema, (), threads, most)
        assert [row["twice"] for row in records(rows)] == expected
    empty = as_rows(spark.range(0).selectExpr("CAST(id AS INT) AS n"))
    assert records(map_rows_in_threads(empty, doubled, schema, (), 2, 7)) == []


def test_an_error_in_a_thread_is_raised(spark: SparkSession) -> None:
    def fails(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError(f"wrong: {[len(batch) for batch in batches]}")

    rows = pa.table({"n": pa.array(np.arange(20))})
    with pytest.raises(ValueError, match=r"wrong: \[7\]"):
        map_rows_in_threads(rows, fails, rows.schema, (), 2, 7)


@BOTH_FORMS
def test_columns_are_added_and_rows_united(spark: SparkSession, as_rows: AsRows) -> None:
    rows = as_rows(
        spark.createDataFrame([("a", [3, 4]), ("b", []), ("c", [5])], "user_key string, l array<int>")
    )
    more = with_value(with_nulls(rows, "nothing", pa.list_(pa.int8())), "day", "2026-01-01")
    assert columns_of(more) == ["user_key", "l", "nothing", "day"]
    assert records(select(more, ["nothing", "day"])) == [{"nothing": None, "day": "2026-01-01"}] * 3
    entries = [("a", 1, 3), ("a", 2, 4), ("c", 1, 5)]
    assert [tuple(row.values()) for row in records(list_entries(rows, "l", "item"))] == entries
    both = union_all([select(more, ["user_key", "day"]), select(more, ["day", "user_key"])])
    assert count(both) == 6
    assert columns_of(both) == ["user_key", "day"]


def test_tables_are_sorted_where_frames_are_distributed(spark: SparkSession) -> None:
    rows = pa.table({"user_key": ["b", "c", "a"], "n": [1, 2, 3]})
    assert spread(rows, "user_key").column("n").to_pylist() == [3, 1, 2]
    frame = spark.createDataFrame([("b", 1), ("c", 2), ("a", 3)], "user_key string, n int")
    assert spread(frame, "user_key", 5).rdd.getNumPartitions() == 5


@pytest.mark.parametrize(
    "rows, engine, master, expected",
    [
        (10, "auto", "local[2]", True),
        (10**6, "auto", "local[2]", True),
        (10, "arrow", "local[2]", False),
        (10**8, "auto", "local[2]", False),
        (10, "auto", "spark://node:7077", False),
    ],
)
def test_few_rows_stay_in_the_process_of_a_local_job(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, rows: int, engine: str, master: str, expected: bool
) -> None:
    config = cases.write_config(tmp_path, {"workflow": {"engine": engine}})
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--master {master} pyspark-shell")
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(choose_workers, "available_memory", lambda: 10**9)
    context = RunContext("test", config, "2026-01-01")
    stay_in_process(context, rows)
    assert context.in_process is expected


@pytest.mark.processes
def test_queries_write_no_files_in_the_working_folder(tmp_path: Any) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import pyarrow as pa; from spark.rows import run_query\n"
        "rows = pa.table({'n': pa.array(range(100000))})\n"
        "print(run_query('SELECT count(1) AS n FROM {rows}', {'rows': rows}).to_pylist())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[{'n': 100000}]"
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []
