"""Rows of tests in both forms of spark/rows.py: as a frame of Spark, and as a table of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from spark.rows import Rows

AsRows: TypeAlias = Callable[[DataFrame], Rows]


def as_table(frame: DataFrame) -> pa.Table:
    """The rows of a frame as a table."""
    rows = [row.asDict() for row in frame.collect()]
    return pa.Table.from_pylist(rows, schema=to_arrow_schema(frame.schema))


def as_frame(frame: DataFrame) -> DataFrame:
    """The frame itself."""
    return frame


# A test with the argument `as_rows` runs once for each form, and passes its frames through it.
BOTH_FORMS = pytest.mark.parametrize("as_rows", [as_frame, as_table], ids=["frames", "tables"])


def columns_of(rows: Rows) -> list[str]:
    """The names of the columns."""
    return rows.columns if isinstance(rows, DataFrame) else rows.column_names
