"""A process that reads tables with other tools, in an environment of its own (requirements/test-readers.txt).

It imports none of our modules. Each line of standard input is a JSON list of [reader, location]. The answer
is a line with a JSON list: {value of `generation`: rows}, or the text of the reader's error.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import Any

import deltalake
import duckdb
import pandas
import polars
from pyarrow import dataset, fs

ENDPOINT = os.environ.get("AWS_ENDPOINT_URL", "")
OPTIONS = (
    {"aws_endpoint_url": ENDPOINT, "aws_allow_http": "true", "aws_region": "us-east-1"} if ENDPOINT else None
)


def _duckdb() -> duckdb.DuckDBPyConnection:
    """A connection without downloads. Its extensions come from Python packages."""
    connection = duckdb.connect(config={"autoinstall_known_extensions": False})
    if ENDPOINT:
        for name in ("httpfs", "delta"):
            path = (
                files(f"duckdb_extension_{name}")
                / f"extensions/v{duckdb.__version__}/{name}.duckdb_extension"
            )
            connection.load_extension(str(path))
        connection.execute(
            f"CREATE SECRET (TYPE s3, KEY_ID '{os.environ['AWS_ACCESS_KEY_ID']}', REGION 'us-east-1', "
            f"SECRET '{os.environ['AWS_SECRET_ACCESS_KEY']}', ENDPOINT '{ENDPOINT.split('//')[1]}', "
            "URL_STYLE 'path', USE_SSL false)"
        )
    return connection


def _sql(where: str, function: str = "read_parquet") -> Iterable[Any]:
    rows = _duckdb().execute(f"SELECT generation FROM {function}('{where}')").fetchall()
    return [row[0] for row in rows]


def _pyarrow(where: str) -> tuple[fs.FileSystem, str]:
    if "://" not in where:
        return fs.LocalFileSystem(), where
    host = ENDPOINT.split("//")[1]
    return fs.S3FileSystem(endpoint_override=host, scheme="http", region="us-east-1"), where.split("://")[1]


def _pandas(where: str) -> Iterable[Any]:
    files, inner = _pyarrow(where)
    read = pandas.read_parquet(inner, filesystem=files)
    return list(read["generation"]) if len(read.columns) else []


def _dataset(where: str) -> Iterable[Any]:
    files, inner = _pyarrow(where)
    table = dataset.dataset(inner, filesystem=files, format="parquet").to_table()
    return table["generation"].to_pylist() if table.column_names else []


def _polars(where: str, **options: Any) -> Iterable[Any]:
    return polars.scan_parquet(where, storage_options=OPTIONS, **options).collect()["generation"].to_list()


READERS: dict[str, Callable[[str], Iterable[Any]]] = {
    "pandas": _pandas,
    "pyarrow": _dataset,
    "polars": _polars,
    "polars, no hidden files": lambda where: _polars(where, hidden_file_prefix=["_", "."]),
    "polars, delta": lambda where: (
        polars.scan_delta(where, storage_options=OPTIONS).collect()["generation"].to_list()
    ),
    "duckdb": _sql,
    "duckdb, delta": lambda where: _sql(where, "delta_scan"),
    "duckdb, json": lambda where: _sql(where, "read_json"),
    "polars, json": lambda where: polars.scan_ndjson(where).collect()["generation"].to_list(),
    "duckdb, csv": lambda where: _sql(where, "read_csv"),
    "polars, csv": lambda where: polars.scan_csv(where).collect()["generation"].to_list(),
    "deltalake": lambda where: (
        deltalake.DeltaTable(where, storage_options=OPTIONS).to_pyarrow_table()["generation"].to_pylist()
    ),
}


def _answer(reader: str, where: str) -> dict[str, int] | str:
    try:
        return dict(Counter(str(value) for value in READERS[reader](where)))
    except BaseException as error:  # polars raises errors that are no Exception
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps([_answer(*request) for request in json.loads(line)]), flush=True)
