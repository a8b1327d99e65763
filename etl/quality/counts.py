"""How often each value occurs in each column: one pass over the rows for all columns, nothing collected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from conf.types import Config
from etl.ops.base import Type
from etl.workflow.feature_plan import plan
from storage.feature_spec import LABEL

Kind = Literal["string", "int", "float"]

LABEL_CELLS = ""  # the name the label is counted under: no raw column has it


@dataclass(frozen=True)
class Column:
    """A raw feature column. `kind` string: its values are names, compared as text; int or float: they are numbers."""

    name: str
    kind: Kind

    @property
    def numeric(self) -> bool:
        return self.kind != "string"


def feature_columns(config: Config) -> list[Column]:
    """The raw columns behind the features, in config order: dense ones as numbers, categorical ones as names."""
    types = plan(config).columns
    found: dict[str, Column] = {}
    for group in config.features:
        for name in group.columns:
            kind = types[name]
            if kind in ("int", "float", "string"):  # lists that `prepare` made have no profile
                found.setdefault(name, Column(name, _kind(kind) if group.kind == "dense" else "string"))
    return list(found.values())


def _kind(of_column: Type) -> Kind:
    return "int" if of_column == "int" else "float" if of_column == "float" else "string"


def count_cells(pieces: Sequence[DataFrame], columns: Sequence[Column]) -> DataFrame:
    """(piece, column, value, count): every cell of the columns and of the label, nulls as a null value. Exact.

    All pieces of the log are counted in one pass: a day is small beside what a Spark job costs on one machine. Each Arrow
    batch is counted where it is read, so that what is shuffled, by column and value, is values and not cells. Numbers are
    written as decimals that read back as the same number; -0.0 counts as 0.0.

    Args:
        pieces: rows with the columns and the label; `piece` is the place in this list.
    """
    every = [Column(LABEL_CELLS, "float"), *columns]
    cells = [
        F.col(LABEL if column.name == LABEL_CELLS else f"`{column.name}`")
        .cast({"string": "string", "int": "bigint", "float": "double"}[column.kind])
        .alias(f"c{index}")
        for index, column in enumerate(every)
    ]
    marked = [rows.select(F.lit(place).alias("piece"), *cells) for place, rows in enumerate(pieces)]
    schema = "piece int, column string, value string, count long"
    partial = reduce(DataFrame.unionAll, marked).mapInArrow(_counter(every), schema)
    return partial.groupBy("piece", "column", "value").agg(F.sum("count").alias("count"))


def _counter(columns: Sequence[Column]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    names = ["piece", "column", "value", "count"]

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not batch.num_rows:
                continue
            column_of, values, counts = [], [], []
            for column, cells in zip(columns, batch.columns[1:], strict=True):
                found = pc.value_counts(pc.add(cells, 0.0) if column.kind == "float" else cells)
                column_of.append(pa.repeat(column.name, len(found)))
                values.append(found.field("values").cast(pa.string()))
                counts.append(found.field("counts"))
            arrays = [pa.concat_arrays(each) for each in (column_of, values, counts)]
            piece = pa.repeat(batch.column(0)[0], len(arrays[0]))  # a task reads one piece
            yield pa.RecordBatch.from_arrays([piece, *arrays], names)

    return count
