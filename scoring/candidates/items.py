"""The items that may be candidates of any user, and their indices."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from conf.errors import DataError
from scoring.inputs.requests import ITEM_INDEX
from storage.feature_spec import ITEM_KEY

OUT_OF_STOCK, INACTIVE = "out_of_stock", "inactive"
_REASON = "_reason"


def number_items(items: DataFrame) -> DataFrame:
    """The items with item_index (int32, 0..n-1 in the order of item_key) as the first column.

    One task numbers all items. They fit into its memory: to be scored, all items must fit on one device
    anyway.
    """
    order = F.row_number().over(Window.orderBy(F.asc(ITEM_KEY)))
    return items.select((order - 1).alias(ITEM_INDEX), *items.columns)


def available_items(
    items: DataFrame, seen: DataFrame | None, out_of_stock: DataFrame | None
) -> tuple[DataFrame, dict[str, int]]:
    """The items that may be candidates, and the number of items left out for each reason.

    An item that is both out of stock and inactive counts as out of stock.

    Args:
        items: any columns, including item_key.
        seen: rows with item_key. An item that has no row here is inactive. None skips this filter.
        out_of_stock: distinct item_key; None skips this filter.

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
            has_key = F.col(name).isNotNull()
            reasons.append(F.when(has_key if name == OUT_OF_STOCK else ~has_key, F.lit(name)))
    if not reasons:
        return items, {}
    marked = marked.select(*items.columns, F.coalesce(*reasons).alias(_REASON)).persist()
    counts = {row[_REASON]: row["count"] for row in marked.groupBy(_REASON).count().collect()}
    if None not in counts:
        raise DataError(
            f"no item is left to recommend; number of items left out, by reason: {counts}",
            "raise candidates.active_days, or correct the table of items out of stock",
        )
    dropped = {name: counts.get(name, 0) for name in filter_names(seen, out_of_stock)}
    return marked.where(F.col(_REASON).isNull()).drop(_REASON), dropped


def filter_names(seen: DataFrame | None, out_of_stock: DataFrame | None) -> list[str]:
    """The names of the filters that apply. A filter whose argument is None does not apply."""
    return [name for name, keys in ((OUT_OF_STOCK, out_of_stock), (INACTIVE, seen)) if keys is not None]
