"""The values of a day compared with those of the train days: new values, and counts of frequent ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from etl.quality.column_summary import TOP
from etl.quality.reduce_by_key import reduce_by_key
from storage.paths import Partition
from storage.publish import read_published

Count = tuple[str, int, int]


@dataclass(frozen=True)
class Values:
    """Figures of some values of a column. Each value is in one part, with all its cells. Nulls are no values.

    Attributes:
        train_cells, day_cells: number of cells on the train days and on the day.
        train_distinct: number of different values on the train days.
        new_cells, new_distinct: the day's cells and values that no train day has.
        top: (value, cells on the train days, cells on the day), most frequent on the train days first, ties
            by value.
        new_top: (value, 0, cells on the day) of the most frequent new values, in the same way.
    """

    train_cells: int = 0
    day_cells: int = 0
    train_distinct: int = 0
    new_cells: int = 0
    new_distinct: int = 0
    top: tuple[Count, ...] = ()
    new_top: tuple[Count, ...] = ()

    def __add__(self, other: Values) -> Values:
        return Values(
            self.train_cells + other.train_cells,
            self.day_cells + other.day_cells,
            self.train_distinct + other.train_distinct,
            self.new_cells + other.new_cells,
            self.new_distinct + other.new_distinct,
            tuple(sorted((*self.top, *other.top), key=lambda entry: (-entry[1], entry[0]))[:TOP]),
            tuple(sorted((*self.new_top, *other.new_top), key=lambda entry: (-entry[2], entry[0]))[:TOP]),
        )

    def to_json(self) -> str:
        """The part as JSON."""
        return json.dumps(self.__dict__)

    @classmethod
    def from_json(cls, text: str) -> Values:
        """The part whose `to_json` this is."""
        values = json.loads(text)
        lists = {name: tuple((v, t, d) for v, t, d in values.pop(name)) for name in ("top", "new_top")}
        return cls(**{**values, **lists})


def compare_values(spark: SparkSession, train: Sequence[Partition], day: Partition) -> dict[str, Values]:
    """Column → its values on the day compared with the train days, from published profiles. One Spark job.

    A column that has no value on any of these days is left out.
    """
    zero = F.lit(0).cast("long")
    window = [
        _counts(spark, partition).select("column", "value", "count", zero.alias("of_day"))
        for partition in train
    ]
    today = _counts(spark, day).select("column", "value", zero.alias("count"), F.col("count").alias("of_day"))
    both = (
        reduce(DataFrame.unionByName, [*window, today])
        .groupBy("column", "value")
        .agg(F.sum("count").alias("train"), F.sum("of_day").alias("day"))
    )
    return reduce_by_key(both, values_of, Values)


def _counts(spark: SparkSession, partition: Partition) -> DataFrame:
    return read_published(spark, partition, columns=["column", "value", "count"])


def values_of(column: str, rows: pa.RecordBatch) -> Values:
    """The figures of rows (column, value, train, day), with one row per value."""
    table = pa.table({"value": rows.column(1), "train": rows.column(2), "day": rows.column(3)})
    old, new = (
        table.filter(pc.greater(table["train"], 0)),
        table.filter(pc.equal(table["train"], 0)),
    )
    return Values(
        train_cells=_sum(old["train"]),
        day_cells=_sum(table["day"]),
        train_distinct=len(old),
        new_cells=_sum(new["day"]),
        new_distinct=len(new),
        top=_top(old, "train"),
        new_top=_top(new, "day"),
    )


def _sum(counts: pa.ChunkedArray) -> int:
    return int(pc.sum(counts, min_count=0).as_py())


def _top(table: pa.Table, by: str) -> tuple[Count, ...]:
    if not len(table):
        return ()
    order = [(by, "descending"), ("value", "ascending")]
    most = table.take(pc.select_k_unstable(table, k=min(TOP, len(table)), sort_keys=order))
    return tuple(zip(*(most[name].to_pylist() for name in ("value", "train", "day")), strict=True))
