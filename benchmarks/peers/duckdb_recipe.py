"""The work of build_features, written for DuckDB.

The text is read once into a table. For each of the 26 categorical columns, a query counts the values of the
train days and assigns ids to the frequent values. A query with 26 left joins then replaces values by ids, and its
result is written as Parquet.

The table stays in memory, which is faster than a database file. If the table does not fit into memory, DuckDB
writes it to the scratch folder. Rows may be written in any order (`preserve_insertion_order=false`), because
this is faster and a training set needs no order.
"""

from __future__ import annotations

from pathlib import Path

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


def _read(file: str, dt: str, train: bool) -> str:
    types = {LABEL: "FLOAT", **dict.fromkeys(DENSE, "INTEGER"), **dict.fromkeys(CATEGORICAL, "VARCHAR")}
    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in types.items())
    options = f"delim='\\t', header=false, quote='', escape='', auto_detect=false, columns={{{columns}}}"
    return f"SELECT *, '{dt}' AS dt, {str(train).lower()} AS train FROM read_csv('{file}', {options})"


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
            union = " UNION ALL ".join(_read(day.file, day.dt, day.train) for day in task.days)
            connection.execute(f"CREATE TABLE raw AS {union}")
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
