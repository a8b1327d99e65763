"""Vocabularies: value → id for every categorical column, counted in one pass, extended without moving an id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from etl.raw.value_text import text_column


@dataclass(frozen=True)
class IdRule:
    """Which values of one vocabulary get an id: at least `min_count` occurrences, at most `max_size` values."""

    min_count: int
    first_id: int
    max_size: int | None = None


def count_values(rows: DataFrame, values: Sequence[tuple[str, Column, bool]], day: Column) -> DataFrame:
    """How often each value occurs, and when last: (column, value, count, last_seen). One pass for all columns.

    The shuffle is keyed by (column, value), so a large column is spread over all tasks. Nulls are left out.

    Args:
        values: (vocabulary, value, whether it is a list).
        day: the row's day, in days since 1970-01-01.
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
    """Cumulative counts: (column, value, id, count, last_seen), where values only in `new` have a null id.

    Args:
        known: (column, value, id, count, last_seen) of the vocabulary to extend, rare values with a null id included.
        new: (column, value, count, last_seen) of days not counted yet.
    """
    arrived = new.select("column", "value", F.lit(None).cast("int").alias("id"), "count", "last_seen")
    return (
        known.select("column", "value", "id", "count", "last_seen")
        .unionByName(arrived)
        .groupBy("column", "value")
        .agg(F.max("id").alias("id"), F.sum("count").alias("count"), F.max("last_seen").alias("last_seen"))
    )


def assign_ids(counts: DataFrame, rules: Mapping[str, IdRule]) -> DataFrame:
    """Gives an id to every value that has none and occurs often enough: (column, value, id, count, last_seen).

    New ids follow the highest one of the column (or start at its first id), by descending count, ties by value in
    UTF-8 order. Values below the threshold, or beyond the greatest size, keep a null id, so that a later extension can
    count on.

    Args:
        counts: (column, value, id, count, last_seen); id null for values without one.
    """
    marked = counts.withColumn(
        "arrives",
        F.col("id").isNull() & (F.col("count") >= _by_column(rules, lambda rule: rule.min_count)),
    )
    by_column = Window.partitionBy("column")
    # Arrivals only are ranked: the window's partition holds a filtered column, never the whole raw vocabulary.
    arrivals = (
        marked.where("arrives")
        .withColumn("rank", F.row_number().over(by_column.orderBy(F.desc("count"), F.asc("value"))))
        .drop("id", "arrives")
    )
    highest = counts.groupBy("column").agg(
        F.coalesce(F.max("id"), _by_column(rules, lambda rule: rule.first_id - 1)).alias("highest"),
        F.count("id").alias("entries"),
    )
    room = _by_column(rules, lambda rule: 2**31 if rule.max_size is None else rule.max_size)
    fits = F.col("entries") + F.col("rank") <= room
    numbered = arrivals.join(F.broadcast(highest), "column").select(
        "column",
        "value",
        F.when(fits, F.col("highest") + F.col("rank")).cast("int").alias("id"),
        "count",
        "last_seen",
    )
    columns = ["column", "value", "id", "count", "last_seen"]
    return marked.where(~F.col("arrives")).select(*columns).unionByName(numbered)


def _by_column(rules: Mapping[str, IdRule], value: Any) -> Column:
    """The rule's value for the row's column; columns with equal ones share a branch."""
    branches: dict[Any, list[str]] = {}
    for name, rule in rules.items():
        branches.setdefault(value(rule), []).append(name)
    return F.coalesce(*(F.when(F.col("column").isin(*names), F.lit(key)) for key, names in branches.items()))


def vocabulary_facts(with_id: DataFrame, rare: DataFrame) -> dict[str, dict[str, int]]:
    """Vocabulary → entries, highest id, occurrences counted under an id and without. One row a column is collected."""
    known = with_id.groupBy("column").agg(
        F.count("id").alias("entries"), F.max("id").alias("highest"), F.sum("count").alias("occurrences")
    )
    others = rare.groupBy("column").agg(
        F.count(F.lit(1)).alias("rare_values"), F.sum("count").alias("rare_occurrences")
    )
    found = known.join(others, "column", "full_outer").collect()
    names = ("entries", "highest", "occurrences", "rare_values", "rare_occurrences")
    return {row["column"]: {name: int(row[name] or 0) for name in names} for row in found}
