"""Vocabularies: value → id for every categorical column, counted in one pass, extended without moving an id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from conf.feature_spec import NULL_ID, NUM_RESERVED_IDS, OOV_ID


@dataclass(frozen=True)
class Vocabulary:
    """The ids of one column.

    Attributes:
        column: the column it encodes.
        entries: number of values with an id.
        cardinality: embedding rows: one more than the highest id, reserved ids included.
        lookup: frame (value string, id int), one row a value.
        broadcast: whether the lookup is small enough (by its measured size) to be sent to every task.
    """

    column: str
    entries: int
    cardinality: int
    broadcast: bool
    lookup: DataFrame = field(compare=False, repr=False)


def count_values(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """How often each value occurs: (column, value, count), nulls left out. One pass for all columns.

    The shuffle is keyed by (column, value), so a large column is spread over all tasks.
    """
    cells = F.array(
        *(
            F.struct(F.lit(name).alias("column"), F.col(name).cast("string").alias("value"))
            for name in columns
        )
    )
    return (
        rows.select(F.explode(cells).alias("cell"))
        .select("cell.column", "cell.value")
        .where(F.col("value").isNotNull())
        .groupBy("column", "value")
        .agg(F.count(F.lit(1)).alias("count"))
    )


def add_counts(known: DataFrame, new: DataFrame) -> DataFrame:
    """Cumulative counts: (column, value, id, count), where values only in `new` have a null id.

    Args:
        known: (column, value, id, count) of the vocabulary to extend, rare values with a null id included.
        new: (column, value, count) of days not counted yet.
    """
    arrived = new.select("column", "value", F.lit(None).cast("int").alias("id"), "count")
    return (
        known.select("column", "value", "id", "count")
        .unionByName(arrived)
        .groupBy("column", "value")
        .agg(F.max("id").alias("id"), F.sum("count").alias("count"))
    )


def assign_ids(counts: DataFrame, min_counts: Mapping[str, int]) -> DataFrame:
    """Gives an id to every value that has none and occurs often enough: (column, value, id, count).

    New ids follow the highest one of the column (or start behind the reserved ids), by descending count, ties by value
    in UTF-8 order. Values below the threshold keep a null id, so that a later extension can count on.

    Args:
        counts: (column, value, id, count); id null for values without one.
        min_counts: column → the frequency from which a value gets an id.
    """
    threshold = F.coalesce(
        *(F.when(F.col("column") == name, F.lit(least)) for name, least in min_counts.items())
    )
    marked = counts.withColumn("arrives", F.col("id").isNull() & (F.col("count") >= threshold))
    by_column = Window.partitionBy("column")
    # Arrivals only are ranked: the window's partition holds a filtered column, never the whole raw vocabulary.
    arrivals = (
        marked.where("arrives")
        .withColumn("rank", F.row_number().over(by_column.orderBy(F.desc("count"), F.asc("value"))))
        .drop("id", "arrives")
    )
    highest = counts.groupBy("column").agg(
        F.coalesce(F.max("id"), F.lit(NUM_RESERVED_IDS - 1)).alias("highest")
    )
    numbered = arrivals.join(F.broadcast(highest), "column").select(
        "column", "value", (F.col("highest") + F.col("rank")).cast("int").alias("id"), "count"
    )
    return marked.where(~F.col("arrives")).select("column", "value", "id", "count").unionByName(numbered)


def sizes(vocabulary: DataFrame) -> dict[str, tuple[int, int]]:
    """column → (values with an id, highest id). One row a column: safe to collect."""
    found = (
        vocabulary.groupBy("column")
        .agg(F.count("id").alias("entries"), F.max("id").alias("highest"))
        .collect()
    )
    return {row["column"]: (row["entries"], row["highest"] or NUM_RESERVED_IDS - 1) for row in found}


def encode(rows: DataFrame, column: str, vocabulary: Vocabulary) -> DataFrame:
    """The frame with `column` replaced by int ids: NULL_ID for null, OOV_ID for a value without an id."""
    value, found = f"_value_{column}", f"_id_{column}"
    lookup = vocabulary.lookup.select(F.col("value").alias(value), F.col("id").alias(found))
    if vocabulary.broadcast:
        lookup = F.broadcast(lookup)
    raw = F.col(column).cast("string")
    identified = F.when(raw.isNull(), F.lit(NULL_ID)).otherwise(F.coalesce(F.col(found), F.lit(OOV_ID)))
    return (
        rows.join(lookup, raw == F.col(value), "left")
        .withColumn(column, identified.cast("int"))
        .drop(value, found)
    )
