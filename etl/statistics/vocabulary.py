"""Builds vocabularies, which map the values of categorical columns to ids, in one pass over the rows.

When a vocabulary is extended, new values get ids, and existing ids never change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from etl.raw.value_text import text_column


def count_values(rows: DataFrame, values: Sequence[tuple[str, Column, bool]], day: Column) -> DataFrame:
    """Counts the values of all columns in one pass over the rows.

    Returns a frame with the columns column, value, count, last_seen: one row for each value of a column.
    `last_seen` is the last day on which the value occurs. The shuffle is keyed by (column, value), so the
    values of a large column are spread over all tasks. Nulls are not counted.

    Args:
        values: (name, expression, is_list) for each column to count. `name` is the name of its vocabulary,
            `expression` is the value in a row, and `is_list` says whether this value is a list.
        day: the day of the row, in days since 1970-01-01.
    """
    cells = [
        F.array(F.struct(F.lit(name).alias("column"), text_column(value).alias("value")))
        for name, value, is_list in values
        if not is_list
    ]
    lists = [
        F.coalesce(
            F.transform(value, _named(name)), F.array().cast("array<struct<column:string,value:string>>")
        )
        for name, value, is_list in values
        if is_list
    ]
    plain = F.concat(*cells, *lists) if len(cells) + len(lists) > 1 else (cells + lists)[0]
    return (
        rows.select(F.explode(plain).alias("cell"), day.cast("int").alias("day"))
        .select("cell.column", "cell.value", "day")
        .where(F.col("value").isNotNull())
        .groupBy("column", "value")
        .agg(F.count(F.lit(1)).alias("count"), F.max("day").alias("last_seen"))
    )


def _named(name: str) -> Any:
    return lambda element: F.struct(F.lit(name).alias("column"), text_column(element).alias("value"))


def add_counts(known: DataFrame, new: DataFrame) -> DataFrame:
    """Adds the value counts of new days to those of a vocabulary.

    Returns a frame with the columns of `known`: one row for each value of a column. Values that occur only in
    `new` have a null id.

    Args:
        known: the vocabulary to extend, with the columns column, value, id, count, last_seen. It includes
            rare values, which have a null id.
        new: the value counts of days that the vocabulary does not include yet, with the columns column,
            value, count, last_seen.
    """
    without_id = new.select("column", "value", F.lit(None).cast("int").alias("id"), "count", "last_seen")
    return (
        known.select("column", "value", "id", "count", "last_seen")
        .unionByName(without_id)
        .groupBy("column", "value")
        .agg(F.max("id").alias("id"), F.sum("count").alias("count"), F.max("last_seen").alias("last_seen"))
    )


def vocabulary_facts(with_id: DataFrame, rare: DataFrame) -> dict[str, dict[str, int]]:
    """Returns the facts of each vocabulary, by the name of the vocabulary.

    The facts are the number of values with an id (`entries`), the highest id, and the number of values
    without an id (`rare_values`). `occurrences` and `rare_occurrences` say how often the values with an id,
    and those without one, occur in the rows. The driver collects one row per vocabulary.
    """
    known = with_id.groupBy("column").agg(
        F.count("id").alias("entries"), F.max("id").alias("highest"), F.sum("count").alias("occurrences")
    )
    others = rare.groupBy("column").agg(
        F.count(F.lit(1)).alias("rare_values"), F.sum("count").alias("rare_occurrences")
    )
    rows = known.join(others, "column", "full_outer").collect()
    names = ("entries", "highest", "occurrences", "rare_values", "rare_occurrences")
    return {row["column"]: {name: int(row[name] or 0) for name in names} for row in rows}
