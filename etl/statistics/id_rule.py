"""Assigns ids to the values of a vocabulary by one rule, in Spark frames and in Arrow tables.

New ids continue after the highest id of the column. If the column has no id yet, they start at the rule's
first id. Values get ids in the order of `_ORDER`. Values with fewer than `min_count` occurrences, and values
beyond `max_size`, keep a null id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.lazy_imports import F, Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Sort order in which values get ids. Values with equal counts are sorted by their UTF-8 bytes.
_ORDER = (("count", "descending"), ("value", "ascending"))


@dataclass(frozen=True)
class IdRule:
    """The rule that decides which values of a vocabulary get an id.

    Attributes:
        min_count: the number of occurrences that a value needs to get an id.
        first_id: the id of the first value, which is the lowest id.
        max_size: maximum number of values with an id; None for no limit.
    """

    min_count: int
    first_id: int
    max_size: int | None = None


def assign_ids(counts: DataFrame, rules: Mapping[str, IdRule]) -> DataFrame:
    """Assigns ids to frequent values that have none.

    Returns a frame with the columns of `counts` and the new ids. New ids continue after the highest id of the
    column. If the column has no id yet, they start at the rule's first id. They are assigned by descending
    count; values with equal counts are sorted by their UTF-8 bytes. Values with fewer than `min_count`
    occurrences, and values beyond `max_size`, keep a null id. The counts of these values are kept, so that
    new occurrences can be added when the vocabulary is extended.

    Args:
        counts: a frame with the columns column, value, id, count, last_seen. The id is null for values
            without an id.
        rules: maps each column to the rule that decides which of its values get an id.
    """
    marked = counts.withColumn(
        "is_new",
        F.col("id").isNull() & (F.col("count") >= _by_column(rules, lambda rule: rule.min_count)),
    )
    by_column = Window.partitionBy("column")
    # Only values that may get a new id are ranked, so the window does not have to sort the rare values.
    ranked = (
        marked.where("is_new")
        .withColumn("rank", F.row_number().over(by_column.orderBy(*_spark_order())))
        .drop("id", "is_new")
    )
    highest = counts.groupBy("column").agg(
        F.coalesce(F.max("id"), _by_column(rules, lambda rule: rule.first_id - 1)).alias("highest"),
        F.count("id").alias("entries"),
    )
    max_size = _by_column(rules, lambda rule: 2**31 if rule.max_size is None else rule.max_size)
    fits = F.col("entries") + F.col("rank") <= max_size
    numbered = ranked.join(F.broadcast(highest), "column").select(
        "column",
        "value",
        F.when(fits, F.col("highest") + F.col("rank")).cast("int").alias("id"),
        "count",
        "last_seen",
    )
    columns = ["column", "value", "id", "count", "last_seen"]
    return marked.where(~F.col("is_new")).select(*columns).unionByName(numbered)


def _by_column(rules: Mapping[str, IdRule], value: Any) -> Column:
    """Returns an expression for one parameter of a rule.

    The field `column` of a row selects the rule. Columns with equal parameters share a branch of the
    expression.
    """
    branches: dict[Any, list[str]] = {}
    for name, rule in rules.items():
        branches.setdefault(value(rule), []).append(name)
    return F.coalesce(*(F.when(F.col("column").isin(*names), F.lit(key)) for key, names in branches.items()))


def _spark_order() -> list[Column]:
    return [F.desc(name) if order == "descending" else F.asc(name) for name, order in _ORDER]


def assign_ids_of_column(entries: pa.Table, rule: IdRule) -> pa.Table:
    """Assigns ids to the values of one column as `assign_ids` does.

    Args:
        entries: a table with the columns value, id, count, last_seen. The id is null for values without an
            id.
        rule: decides which values get an id, and which id is the lowest.
    """
    ids = entries["id"].combine_chunks()
    counts = entries["count"].to_numpy()
    is_new = ids.is_null().to_numpy(zero_copy_only=False) & (counts >= rule.min_count)
    positions = np.flatnonzero(is_new)
    if not len(positions):
        return entries
    new_entries = entries.take(pa.array(positions))
    order = pc.sort_indices(new_entries, list(_ORDER)).to_numpy()
    known = len(ids) - ids.null_count
    room = len(order) if rule.max_size is None else max(0, rule.max_size - known)
    highest = pc.max(ids).as_py() if known else rule.first_id - 1
    new_ids = ids.fill_null(-1).to_numpy(zero_copy_only=False).copy()
    new_ids[positions[order[:room]]] = highest + 1 + np.arange(min(room, len(order)), dtype=np.int32)
    return entries.set_column(1, "id", pa.array(new_ids, mask=new_ids < 0))
