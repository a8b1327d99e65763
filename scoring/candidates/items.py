"""Chooses the items that may be candidates of any user, and gives each item an index."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Window
from pyspark.sql import functions as F

from conf.errors import DataError
from scoring.requests import ITEM_INDEX
from spark.rows import Rows
from storage.feature_spec import ITEM_KEY

OUT_OF_STOCK, INACTIVE = "out_of_stock", "inactive"
_REASON = "_reason"


def number_items(items: Rows) -> Rows:
    """Adds item_index (int32) as the first column: the position of the item in the order of item_key.

    Positions are counted from 0. A single task sorts all items of a frame. Scoring needs all items on one
    device anyway, so they also fit into the memory of this task.
    """
    if isinstance(items, pa.Table):
        ordered = items.take(pc.sort_indices(items, sort_keys=[(ITEM_KEY, "ascending")]))
        return ordered.add_column(0, ITEM_INDEX, pa.array(np.arange(len(ordered)), pa.int32()))
    order = F.row_number().over(Window.orderBy(F.asc(ITEM_KEY)))
    return items.select((order - 1).alias(ITEM_INDEX), *items.columns)


def available_items(items: Rows, seen: Rows | None, out_of_stock: Rows | None) -> tuple[Rows, dict[str, int]]:
    """Returns the items that may be candidates, and the number of items that each filter left out.

    An item that is both out of stock and inactive counts as out of stock.

    Args:
        items: rows with item_key and any other columns. All arguments are tables, or all are frames.
        seen: rows with item_key. An item without a row in `seen` is inactive. None skips this filter.
        out_of_stock: rows with distinct item_key. None skips this filter.

    Raises:
        DataError: no item is left.
    """
    if seen is None and out_of_stock is None:
        return items, {}
    if isinstance(items, pa.Table):
        return _available_of_table(items, seen, out_of_stock)
    reasons = []
    marked = items
    for name, keys in ((OUT_OF_STOCK, out_of_stock), (INACTIVE, seen)):
        if keys is not None:
            marked = marked.join(
                keys.select(ITEM_KEY).distinct().withColumn(name, F.lit(True)), ITEM_KEY, "left"
            )
            has_key = F.col(name).isNotNull()
            reasons.append(F.when(has_key if name == OUT_OF_STOCK else ~has_key, F.lit(name)))
    marked = marked.select(*items.columns, F.coalesce(*reasons).alias(_REASON)).persist()
    counts = {row[_REASON]: row["count"] for row in marked.groupBy(_REASON).count().collect()}
    if None not in counts:
        raise _no_item(counts)
    dropped = {name: counts.get(name, 0) for name in filter_names(seen, out_of_stock)}
    return marked.where(F.col(_REASON).isNull()).drop(_REASON), dropped


def _available_of_table(
    items: pa.Table, seen: pa.Table | None, out_of_stock: pa.Table | None
) -> tuple[pa.Table, dict[str, int]]:
    """Implements `available_items` for tables."""
    kept = np.ones(len(items), bool)
    dropped = {}
    for name, keys in ((OUT_OF_STOCK, out_of_stock), (INACTIVE, seen)):
        if keys is not None:
            has_key = pc.is_in(items[ITEM_KEY], value_set=keys[ITEM_KEY].combine_chunks()).to_numpy()
            left_out = kept & (has_key if name == OUT_OF_STOCK else ~has_key)
            dropped[name] = int(left_out.sum())
            kept &= ~left_out
    if not kept.any():
        raise _no_item({name: count for name, count in dropped.items() if count})
    return items.filter(pa.array(kept)), dropped


def _no_item(counts: Mapping[str, int]) -> DataError:
    return DataError(
        f"no item is left to recommend; number of items left out, by reason: {dict(counts)}",
        "raise candidates.active_days, or correct the table of items out of stock",
    )


def filter_names(seen: Rows | None, out_of_stock: Rows | None) -> list[str]:
    """Returns the names of the filters whose argument is not None."""
    return [name for name, keys in ((OUT_OF_STOCK, out_of_stock), (INACTIVE, seen)) if keys is not None]
