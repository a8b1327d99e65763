"""Compares the values of a day with those of the train days: new values, and counts of frequent values."""

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
    """Figures of some values of a column, without nulls.

    An object includes all cells of each of its values. So objects for different values can be added.

    Attributes:
        train_cells, day_cells: number of cells on the train days and on the day.
        train_distinct: number of different values on the train days.
        new_cells, new_distinct: number of cells, and of different values, of the day whose value does not
            occur on any train day.
        top: (value, cells on the train days, cells on the day), sorted by descending cells on the train
            days, then by value.
        new_top: (value, 0, cells on the day) of the most frequent new values, sorted by descending cells,
            then by value.
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
        """The object as JSON."""
        return json.dumps(self.__dict__)

    @classmethod
    def from_json(cls, text: str) -> Values:
        """The inverse of `to_json`."""
        values = json.loads(text)
        lists = {name: tuple((v, t, d) for v, t, d in values.pop(name)) for name in ("top", "new_top")}
        return cls(**{**values, **lists})


def compare_values(spark: SparkSession, train: Sequence[Partition], day: Partition) -> dict[str, Values]:
    """Returns column → comparison of the day with the train days, from published profiles. One Spark job.

    The result lacks columns that have no value on any of these days.
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
    """Computes the figures from rows (column, value, train, day), with one row per value."""
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
