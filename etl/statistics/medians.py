"""Exact medians of many columns. Values are counted and sorted by all tasks; no task needs all values."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F


def measure_medians(rows: DataFrame, values: Mapping[str, Column]) -> dict[str, float | None]:
    """Returns the lower median of each expression, by the name of the expression in `values`.

    The lower median is the smallest value v such that at least half of the values are <= v. Nulls are
    ignored. The median is None if all values are null. The driver collects one number per task and column.
    """
    if not values:
        return {}
    cells = F.array(
        *(
            F.struct(F.lit(index).alias("column"), value.cast("double").alias("value"))
            for index, value in enumerate(values.values())
        )
    )
    counted = (
        rows.select(F.explode(cells).alias("cell"))
        .select("cell.column", "cell.value")
        .where(F.col("value").isNotNull())
        .groupBy("column", "value")
        .agg(F.count(F.lit(1)).alias("count"))
    )
    ranged = (
        counted.repartitionByRange("column", "value").withColumn("part", F.spark_partition_id()).persist()
    )
    try:
        parts = ranged.groupBy("column", "part").agg(F.sum("count").alias("count")).collect()
        targets = []
        for index in range(len(values)):
            column_parts = sorted((row["part"], row["count"]) for row in parts if row["column"] == index)
            half = -(-sum(count for _, count in column_parts) // 2)  # position of the lower median, from 1
            before = 0
            for part, count in column_parts:
                if before < half <= before + count:
                    targets.append((index, part, half - before))
                before += count
        medians = _values_at(ranged, targets) if targets else {}
    finally:
        ranged.unpersist()
    return {name: medians.get(index) for index, name in enumerate(values)}


def _values_at(ranged: DataFrame, targets: list[tuple[int, int, int]]) -> dict[int, float]:
    """Returns one value for each column index. `targets` says at which position the value is.

    Args:
        ranged: a frame with the columns column, value, count, part, sorted by column and value. `column` is
            the index of a column, and `part` is the index of the Spark partition.
        targets: a tuple (column index, part, position) for each column. The value is at this position among
            the column's sorted values in this Spark partition, counted from 1.
    """
    positions = ranged.sparkSession.createDataFrame(targets, "column int, part int, position long")
    until = Window.partitionBy("column").orderBy("value").rowsBetween(Window.unboundedPreceding, 0)
    running = ranged.join(F.broadcast(positions), ["column", "part"]).withColumn(
        "until", F.sum("count").over(until)
    )
    reached = (
        running.where(F.col("until") >= F.col("position"))
        .groupBy("column")
        .agg(F.min("value").alias("value"))
    )
    return {row["column"]: row["value"] for row in reached.collect()}
