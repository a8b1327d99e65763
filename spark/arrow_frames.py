"""Converts small Arrow tables to Spark frames, and small frames to tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from conf.lazy_pyspark import T

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame_of(spark: SparkSession, rows: pa.Table | DataFrame) -> DataFrame:
    """Converts an Arrow table to a Spark frame with the same rows. A frame is returned unchanged.

    The driver sends the rows of a table to the JVM.

    Args:
        spark: the session.
        rows: numbers, strings, or lists of numbers. Only strings and lists of a table may be null.
    """
    if not isinstance(rows, pa.Table):
        return rows
    return spark.createDataFrame(rows.to_pandas(), spark_types(rows.schema))


def table_of(rows: DataFrame) -> pa.Table:
    """Returns the rows of a small Spark frame as an Arrow table, in the order of the frame.

    Args:
        rows: numbers that are never null, and strings.
    """
    return pa.Table.from_pandas(rows.toPandas(), arrow_schema(rows), preserve_index=False)


def collected(rows: DataFrame) -> pa.Table:
    """Returns the rows of a small Spark frame as an Arrow table: any types, with or without nulls."""
    batches: list[pa.RecordBatch] = rows._collect_as_arrow()
    return pa.Table.from_batches(batches, None if batches else arrow_schema(rows))


def arrow_schema(rows: DataFrame) -> pa.Schema:
    """Returns the Arrow types of the columns of a frame."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(rows.schema)


def spark_types(schema: pa.Schema) -> T.StructType:
    """Returns the Spark types of the columns of an Arrow schema."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
