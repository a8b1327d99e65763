"""The work of build_features, written for DuckDB.

The log is read once into a table. For each of the 26 categorical columns, a query counts the values of the
train days and assigns ids to the frequent values. A query with 26 left joins then replaces values by ids, and its
result is written as Parquet.

The table stays in memory, which is faster than a database file. If the table does not fit into memory, DuckDB
writes it to the scratch folder. Rows may be written in any order (`preserve_insertion_order=false`), because
this is faster and a training set needs no order. Only a log that is divided by the positions of its rows is read in
its order.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.contender import (
    CATEGORICAL,
    DENSE,
    FIRST_ID,
    LABEL,
    NULL_ID,
    OOV_ID,
    START_UP,
    WORK,
    Outcome,
    Task,
    Timing,
    parquet_files,
    run,
)

_TYPES = {LABEL: "FLOAT", **dict.fromkeys(DENSE, "INTEGER"), **dict.fromkeys(CATEGORICAL, "VARCHAR")}


def _rows_of(files: Sequence[str], form: str) -> str:
    """Returns a query for the rows of files of the same format."""
    names = ", ".join(f"'{file}'" for file in files)
    columns = "columns={" + ", ".join(f"'{name}': '{kind}'" for name, kind in _TYPES.items()) + "}"
    if form == "parquet":
        casts = ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in _TYPES.items())
        return f"SELECT {casts} FROM read_parquet([{names}])"
    if form == "jsonl":
        return f"SELECT * FROM read_json([{names}], format='newline_delimited', {columns})"
    options = f"delim='\\t', header=false, quote='', escape='', auto_detect=false, {columns}"
    return f"SELECT * FROM read_csv([{names}], {options})"


def _read_days(connection: Any, task: Task) -> None:
    """Creates the table `raw` of all rows with their day, `dt`, and whether they are train rows."""
    days = [
        f"SELECT *, '{day.dt}' AS dt, {str(day.train).lower()} AS train "
        f"FROM ({_rows_of([day.file], task.format)})"
        for day in task.days
    ]
    connection.execute(f"CREATE TABLE raw AS {' UNION ALL '.join(days)}")


def _read_splits(connection: Any, task: Task) -> None:
    """Creates the same of a log without dates. Its rows are read in their order, and `dt` is their split."""
    connection.execute("SET preserve_insertion_order=true")
    connection.execute(f"CREATE TABLE numbered AS {_rows_of(task.log, task.format)}")
    connection.execute("SET preserve_insertion_order=false")
    (rows,) = connection.execute("SELECT count(*) FROM numbered").fetchone()
    ends = list(zip(task.days, task.split_ends(rows), strict=True))
    cases = " ".join(f"WHEN rowid < {end} THEN '{split.dt}'" for split, end in ends)
    train_end = max(end for split, end in ends if split.train)
    connection.execute(
        f"CREATE VIEW raw AS SELECT *, CASE {cases} END AS dt, rowid < {train_end} AS train FROM numbered"
    )


def _vocabulary(name: str, min_count: int) -> str:
    numbered = f"row_number() OVER (ORDER BY count(*) DESC, {name}) + {FIRST_ID - 1}"
    return (
        f"CREATE TEMP TABLE vocabulary_{name} AS "
        f"SELECT {name} AS value, CAST({numbered} AS INTEGER) AS id FROM raw "
        f"WHERE train AND {name} IS NOT NULL GROUP BY {name} HAVING count(*) >= {min_count}"
    )


def _encode() -> str:
    dense = [f"CAST(ln(1 + greatest(coalesce({name}, 0), 0)) AS FLOAT) AS {name}" for name in DENSE]
    ids = [
        f"CASE WHEN raw.{name} IS NULL THEN {NULL_ID} ELSE coalesce(v_{name}.id, {OOV_ID}) END AS {name}"
        for name in CATEGORICAL
    ]
    joins = [f"LEFT JOIN vocabulary_{name} v_{name} ON raw.{name} = v_{name}.value" for name in CATEGORICAL]
    return f"SELECT dt, {', '.join([LABEL, *dense, *ids])} FROM raw {' '.join(joins)}"


def recipe(task: Task, timing: Timing) -> Outcome:
    with timing.part(START_UP):
        import duckdb

        connection = duckdb.connect()
        connection.execute(f"PRAGMA threads={task.threads}")
        connection.execute(f"SET temp_directory='{task.scratch}'")
        connection.execute("SET preserve_insertion_order=false")
    with timing.part(WORK):
        with timing.part("read"):
            read = _read_splits if task.shares else _read_days
            read(connection, task)
        with timing.part("vocabularies"):
            for name in CATEGORICAL:
                connection.execute(_vocabulary(name, task.min_count))
        with timing.part("encode and write"):
            options = "FORMAT parquet, COMPRESSION zstd, PARTITION_BY (dt)"
            connection.execute(f"COPY ({_encode()}) TO '{task.out}/rows' ({options})")
    connection.close()
    return Outcome({day.dt: parquet_files(Path(task.out) / "rows" / f"dt={day.dt}") for day in task.days})


if __name__ == "__main__":
    run(recipe)
