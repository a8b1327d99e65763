"""Which items are candidates at all, and their numbers."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from conf.errors import DataError
from scoring.inputs.requests import ITEM_INDEX
from storage.feature_spec import ITEM_KEY

OUT_OF_STOCK, INACTIVE = "out_of_stock", "inactive"
_REASON = "_reason"


def number_items(items: DataFrame) -> DataFrame:
    """items plus item_index (int32, 0..n-1 in the order of item_key), as the first column.

    One task numbers them all: items fit one device, or they could not be gathered there to be scored.
    """
    order = F.row_number().over(Window.orderBy(F.asc(ITEM_KEY)))
    return items.select((order - 1).alias(ITEM_INDEX), *items.columns)


def available_items(
    items: DataFrame, seen: DataFrame | None, out_of_stock: DataFrame | None
) -> tuple[DataFrame, dict[str, int]]:
    """The items that may be candidates, and how many were left out by reason.

    An item that is out of stock and inactive counts as out of stock.

    Args:
        seen: rows with item_key: an item without one is inactive; None asks for nothing.
        out_of_stock: distinct item_key; None for none.

    Raises:
        DataError: no item is left.
    """
    reasons = []
    marked = items
    for name, keys in ((OUT_OF_STOCK, out_of_stock), (INACTIVE, seen)):
        if keys is not None:
            marked = marked.join(
                keys.select(ITEM_KEY).distinct().withColumn(name, F.lit(True)), ITEM_KEY, "left"
            )
            there = F.col(name).isNotNull()
            reasons.append(F.when(there if name == OUT_OF_STOCK else ~there, F.lit(name)))
    if not reasons:
        return items, {}
    marked = marked.select(*items.columns, F.coalesce(*reasons).alias(_REASON)).persist()
    counted = {row[_REASON]: row["count"] for row in marked.groupBy(_REASON).count().collect()}
    if None not in counted:
        raise DataError(
            f"no item is left to recommend: {counted}",
            "raise candidates.active_days, or correct the table of items out of stock",
        )
    dropped = {name: counted.get(name, 0) for name in marked_names(seen, out_of_stock)}
    return marked.where(F.col(_REASON).isNull()).drop(_REASON), dropped


def marked_names(seen: DataFrame | None, out_of_stock: DataFrame | None) -> list[str]:
    """The reasons that were asked for."""
    return [name for name, keys in ((OUT_OF_STOCK, out_of_stock), (INACTIVE, seen)) if keys is not None]
