"""Reads footers of Parquet files: rows, row groups, columns and their statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from conf.errors import DataError
from conf.lazy_pyspark import T
from storage import file_io

Description = tuple[tuple[tuple[str, str], ...], int, int, tuple[int, ...], dict[str, tuple[int, Any, Any]]]


def written_files(folder: str) -> list[str]:
    """Returns the full paths of the Parquet files that Spark wrote to a folder, sorted by name.

    The order of the names is the order of Spark's partitions.
    """
    scheme = folder.split("://", 1)[0] + "://" if "://" in folder else ""
    return [scheme + info.path for info in file_io.list_files(folder) if info.path.endswith(".parquet")]


def describe(path: str) -> Description:
    """Reads the footer of a Parquet file.

    Returns:
        (columns, rows, bytes, groups, statistics). Here columns are pairs of name and Arrow type; rows and
        bytes are the numbers for the file; groups are the numbers of rows of the row groups; statistics map
        each column to (number of nulls, lowest value, highest value).
    """
    files, inner = file_io.filesystem(path)
    with files.open_input_file(inner) as source:
        size = source.size()
        parquet = pq.ParquetFile(source)
        footer = parquet.metadata
        # Remove " not null": whether elements of a list may be null depends on Spark's plan, not on the
        # table.
        columns = tuple(
            (field.name, str(field.type).replace(" not null", "")) for field in parquet.schema_arrow
        )
        groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
        statistics = (
            {
                chunk.path_in_schema: _over_groups(groups, index, chunk.path_in_schema)
                for index, chunk in enumerate(groups[0].column(i) for i in range(footer.num_columns))
            }
            if groups
            else {name: (0, None, None) for name, _ in columns}
        )
    return columns, footer.num_rows, size, tuple(group.num_rows for group in groups), statistics


def _over_groups(groups: Sequence[Any], index: int, name: str) -> tuple[int, Any, Any]:
    nulls, lowest, highest = 0, None, None
    for group in groups:
        statistics = group.column(index).statistics
        if statistics is None:
            continue
        nulls += statistics.null_count or 0
        if not statistics.has_min_max:
            continue
        try:
            low, high = statistics.min, statistics.max
        except pa.ArrowNotImplementedError:  # of a decimal, which no rule of a table limits
            continue
        lowest = low if lowest is None else min(lowest, low)
        highest = high if highest is None else max(highest, high)
    return nulls, lowest, highest


def spark_schema(columns: Sequence[tuple[str, str]]) -> T.StructType:
    """Converts the columns of a manifest to a Spark schema.

    Raises:
        DataError: a column has a type that this release does not know.
    """
    types = _spark_types()
    unknown = [(name, kind) for name, kind in columns if kind not in types]
    if unknown:
        raise DataError(
            f"a manifest names columns of types that this release does not know: {unknown}",
            "run the job that writes the table again",
        )
    return T.StructType([T.StructField(name, types[kind]) for name, kind in columns])


def _spark_types() -> dict[str, T.DataType]:
    """Maps the type of a column in a manifest to its Spark type."""
    return {
        "bool": T.BooleanType(),
        "int32": T.IntegerType(),
        "int64": T.LongType(),
        "float": T.FloatType(),
        "double": T.DoubleType(),
        "string": T.StringType(),
        "list<element: int8>": T.ArrayType(T.ByteType()),
        "list<element: int32>": T.ArrayType(T.IntegerType()),
        "list<element: int64>": T.ArrayType(T.LongType()),
        "list<element: float>": T.ArrayType(T.FloatType()),
        "list<element: string>": T.ArrayType(T.StringType()),
    }
