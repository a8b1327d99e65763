"""Runs SQL over Arrow tables and Parquet files in this process with DuckDB.

Queries are written for Spark. Where DuckDB lacks a function of Spark, a macro of the same name adds it, for
arguments without nulls.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from spark.scratch_folder import ScratchFolder
from spark.stored_rows import StoredRows

if TYPE_CHECKING:
    import duckdb

_MACROS = """
CREATE MACRO collect_list(x) AS list(x);
CREATE MACRO sort_array(x) AS list_sort(x);
CREATE MACRO size(x) AS CAST(len(x) AS INT);
CREATE MACRO array_remove(x, removed) AS list_filter(x, LAMBDA v: v <> removed);
"""
_IDENTIFIER = re.compile("`((?:[^`]|``)*)`")
# The type of a sum of integers, which Spark adds as int64.
_SUM = pa.decimal128(38, 0)


def run_query(text: str, tables: Mapping[str, pa.Table | StoredRows]) -> pa.Table:
    """Returns the result of one query.

    Files of this machine are read piece by piece. If memory does not suffice for the work, DuckDB writes to
    its folder for temporary files. Files of other file systems are read before the query.

    Args:
        text: SQL, with the names of tables in braces, and with backticks around unusual names of columns.
        tables: the tables by name.

    Raises:
        DataError: a file does not exist or is damaged.
        InfrastructureError: a file could not be read.
    """
    import duckdb

    sources = {
        name: rows.read() if isinstance(rows, StoredRows) and not rows.is_local else rows
        for name, rows in tables.items()
    }
    stored = [rows for rows in sources.values() if isinstance(rows, StoredRows)]
    cursor = _database().cursor()
    try:
        for name, rows in sources.items():
            if not isinstance(rows, StoredRows):
                cursor.register(name, rows)
        result = cursor.sql(_in_duckdb(text, sources)).to_arrow_table()
    except duckdb.Error:
        for rows in stored:
            rows.require_readable()
        raise
    finally:
        cursor.close()
    for index, field in enumerate(result.schema):
        if field.type == _SUM:
            result = result.set_column(index, field.name, result.column(index).cast(pa.int64()))
    return result


def _in_duckdb(text: str, tables: Mapping[str, pa.Table | StoredRows]) -> str:
    """Returns the text with the names or the files of the tables, and with the quotes of DuckDB."""
    marked = _IDENTIFIER.sub(lambda match: _quoted(match[1].replace("``", "`")), text)
    return marked.format_map(
        {name: rows.sql() if isinstance(rows, StoredRows) else f'"{name}"' for name, rows in tables.items()}
    )


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """Returns the database of this process, which has no tables of its own."""
    import duckdb  # takes 0.06 s: only if it is needed

    # DuckDB leaves its files behind if the process is killed. The folder of a dead process is deleted later.
    scratch = ScratchFolder(os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None)
    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": len(os.sched_getaffinity(0)),
        "temp_directory": str(scratch.path / "queries"),  # used if memory does not suffice
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    database = duckdb.connect(config=settings)
    database.execute(_MACROS)
    return database
