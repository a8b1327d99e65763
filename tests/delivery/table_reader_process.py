"""A process that reads Delta and Iceberg tables with other tools, in an environment of its own.

Its packages are those of requirements/test-tables.txt. It imports none of our modules. Each line of standard
input is a JSON list of [reader, location, condition]. A location is the folder of a Delta table, or the newest
metadata file of an Iceberg table. The answer is a line with a JSON list: the rows, each as a list of values in
the order of the names of the columns, or the text of the reader's error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import deltalake
import duckdb
import polars
import pyiceberg.table

Rows = list[dict[str, Any]]


def _duckdb(function: str, where: str, condition: str) -> Rows:
    """Reads without downloads: the extensions come from Python packages."""
    connection = duckdb.connect(config={"autoinstall_known_extensions": False})
    for name in ("httpfs", "avro", "delta", "iceberg"):
        path = files(f"duckdb_extension_{name}") / f"extensions/v{duckdb.__version__}/{name}.duckdb_extension"
        connection.load_extension(str(path))
    read = connection.execute(f"SELECT * FROM {function}('{where}') WHERE {condition}")
    names = [column[0] for column in read.description or []]
    return [dict(zip(names, row, strict=True)) for row in read.fetchall()]


def _polars(frame: polars.LazyFrame, condition: str) -> Rows:
    return frame.filter(polars.sql_expr(condition)).collect().to_dicts()


READERS: dict[str, Callable[[str, str], Rows]] = {
    "duckdb, delta": lambda where, condition: _duckdb("delta_scan", where, condition),
    "polars, delta": lambda where, condition: _polars(polars.scan_delta(where), condition),
    "deltalake": lambda where, _: deltalake.DeltaTable(where).to_pyarrow_table().to_pylist(),
    "duckdb, iceberg": lambda where, condition: _duckdb("iceberg_scan", where, condition),
    "polars, iceberg": lambda where, condition: _polars(polars.scan_iceberg(where), condition),
    "pyiceberg": lambda where, _: (
        pyiceberg.table.StaticTable.from_metadata(where).scan().to_arrow().to_pylist()
    ),
}


def _answer(reader: str, where: str, condition: str) -> list[list[Any]] | str:
    try:
        rows = READERS[reader](where, condition)
    except BaseException as error:  # polars raises errors that are no Exception
        return f"{type(error).__name__}: {error}"
    return [[row[name] for name in sorted(row)] for row in rows]


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps([_answer(*request) for request in json.loads(line)], default=str), flush=True)
