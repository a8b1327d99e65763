"""Runs SQL over Arrow tables in this process with DuckDB.

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


def run_query(text: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """Returns the result of one query.

    Args:
        text: SQL, with the names of tables in braces, and with backticks around unusual names of columns.
        tables: the tables by name.
    """
    cursor = _database().cursor()
    try:
        for name, table in tables.items():
            cursor.register(name, table)
        result = cursor.sql(_in_duckdb(text, tables)).to_arrow_table()
    finally:
        cursor.close()
    for index, field in enumerate(result.schema):
        if field.type == _SUM:
            result = result.set_column(index, field.name, result.column(index).cast(pa.int64()))
    return result


def _in_duckdb(text: str, tables: Mapping[str, pa.Table]) -> str:
    """Returns the text with the names of the tables, and with the quotes of DuckDB around identifiers."""
    named = text.format_map({name: f'"{name}"' for name in tables})
    return _IDENTIFIER.sub(lambda match: _quoted(match[1].replace("``", "`")), named)


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
