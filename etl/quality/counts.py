"""Counts the values of all columns in one pass over the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType

from conf.types import Config
from etl.workflow.feature_plan import plan
from storage.feature_spec import LABEL

Kind = Literal["string", "int", "float"]

LABEL_CELLS = ""  # column name of the label in value counts; no raw column has this name


@dataclass(frozen=True)
class Column:
    """A column of the raw log that a feature reads.

    Attributes:
        kind: "string" for categorical values, which are compared as text; "int" or "float" for numbers.
    """

    name: str
    kind: Kind

    @property
    def numeric(self) -> bool:
        """Returns whether the values are numbers."""
        return self.kind != "string"


def feature_columns(config: Config) -> list[Column]:
    """Returns the raw columns that features read, in the order of the configured features.

    If a dense feature reads a numeric column, its values are compared as numbers. The values of all other
    columns are compared as text.
    """
    types = plan(config).columns
    columns: dict[str, Column] = {}
    for group in config.features:
        for name in group.columns:
            kind = types[name]
            if kind in ("int", "float", "string"):  # lists, which `prepare` may add, have no profile
                columns.setdefault(name, Column(name, kind if group.kind == "dense" else "string"))
    return list(columns.values())


def count_cells(pieces: Sequence[DataFrame], columns: Sequence[Column]) -> DataFrame:
    """Counts how often each value of the columns and of the label occurs.

    Returns a frame with the columns piece, column, value, count: one row for each value of a column in a
    piece. A piece is one of the frames in `pieces`. All pieces are counted in one Spark job, because the
    overhead of a job per piece would exceed the time to count its rows. The task that reads an Arrow batch
    also counts its values, so Spark shuffles counts of values instead of rows. Numbers are converted to texts
    that can be parsed back exactly; -0.0 is counted as 0.0. In the row with the number of nulls, the value is
    null.

    Args:
        pieces: frames that have the columns and the label. In the result, `piece` is the index of a frame in
            this list.
        columns: the columns to count.
    """
    all_columns = [Column(LABEL_CELLS, "float"), *columns]
    marked = [
        rows.select(F.lit(index).alias("piece"), *_cells(rows, all_columns))
        for index, rows in enumerate(pieces)
    ]
    schema = "piece int, column string, value string, count long"
    partial = reduce(DataFrame.unionAll, marked).mapInArrow(_count_batches(all_columns), schema)
    return partial.groupBy("piece", "column", "value").agg(F.sum("count").alias("count"))


def _cells(rows: DataFrame, columns: Sequence[Column]) -> list[SparkColumn]:
    """Returns the values to count. Doubles stay numbers: Arrow makes their texts, as in the scan pass."""
    types = {"string": "string", "int": "bigint", "float": "double"}
    cells = []
    for index, column in enumerate(columns):
        name = LABEL if column.name == LABEL_CELLS else column.name
        is_real = isinstance(rows.schema[name].dataType, DoubleType | FloatType)
        cell = F.col(f"`{name}`").cast("double" if is_real else types[column.kind])
        cells.append(cell.alias(f"c{index}"))
    return cells


def _count_batches(
    columns: Sequence[Column],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    names = ["piece", "column", "value", "count"]

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not batch.num_rows:
                continue
            column_names, values, counts = [], [], []
            for column, cells in zip(columns, batch.columns[1:], strict=True):
                is_real = pa.types.is_floating(cells.type)
                counted = pc.value_counts(pc.add(cells, 0.0) if is_real else cells)
                column_names.append(pa.repeat(column.name, len(counted)))
                values.append(counted.field("values").cast(pa.string()))
                counts.append(counted.field("counts"))
            arrays = [pa.concat_arrays(parts) for parts in (column_names, values, counts)]
            piece = pa.repeat(batch.column(0)[0], len(arrays[0]))  # all rows of a task are in one piece
            yield pa.RecordBatch.from_arrays([piece, *arrays], names)

    return count
