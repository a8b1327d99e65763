"""Chooses the items that may be candidates of any user, and gives each item an index.

In an experiment, the same items are also published with the features that the treatment's model needs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Window
from pyspark.sql import functions as F

from conf.errors import DataError
from etl.latest.latest_features import latest_rules
from scoring.model.experiment import Treatment
from scoring.requests import ITEM_INDEX
from spark.rows import Rows, count, query, quoted, read_rows
from storage.feature_spec import ITEM_KEY
from storage.manifest import Manifest, current_manifest
from storage.publish import publish_rows
from storage.run_context import RunContext

OUT_OF_STOCK, INACTIVE = "out_of_stock", "inactive"
_REASON = "_reason"


def number_items(items: Rows) -> Rows:
    """Adds item_index (int32) as the first column: the position of the item in the order of item_key.

    Positions are counted from 0. If the items are a frame, a single task sorts them. Scoring needs all items
    on one device anyway, so they also fit into the memory of this task.
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
        items: rows with item_key and any other columns. All arguments are Arrow tables, or all are Spark
            frames.
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
    """Implements `available_items` for Arrow tables instead of Spark frames."""
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
    left_out = ", ".join(f"{name} {number}" for name, number in counts.items())
    return DataError(
        f"no item is left to recommend; number of items that each filter left out: {left_out}",
        "raise candidates.active_days, or correct the table of items out of stock",
    )


def filter_names(seen: Rows | None, out_of_stock: Rows | None) -> list[str]:
    """Returns the names of the filters that are used: those whose argument is not None."""
    return [name for name, keys in ((OUT_OF_STOCK, out_of_stock), (INACTIVE, seen)) if keys is not None]


# The code below publishes the candidate items with the features that an experiment's treatment needs.


def publish_treatment_items(
    context: RunContext, control_version: str, numbered: Manifest, treatment: Treatment
) -> Manifest:
    """Publishes `experiment_items`: candidate_items with the features of another workflow.

    An item has the same index as in candidate_items, because both variants have the same candidates.

    Args:
        context: the run's configuration, lake, run date and Spark session.
        control_version: the workflow version of the control.
        numbered: the manifest of the table `candidate_items` of the control.
        treatment: the model of the treatment, and its tables.

    Raises:
        DataError: an item of `candidate_items` has no features of the treatment's workflow.
    """
    lake, spec, run_date = context.lake, treatment.model.spec, context.run_date
    partition = lake.experiment_items(spec.workflow_version).partition(run_date)
    inputs = {"candidate_items": numbered.digest, "items": treatment.items.digest}
    current = current_manifest(partition, inputs)
    if current is not None:
        return current
    columns = [feature.name for feature in spec.scoped("item")]
    features = "".join(f", features.{quoted(name)}" for name in columns)
    rows = query(
        f"""
        SELECT numbered.{ITEM_INDEX}, numbered.{ITEM_KEY}{features}
        FROM {{numbered}} AS numbered
        JOIN {{features}} AS features ON features.{ITEM_KEY} = numbered.{ITEM_KEY}
        """,
        numbered=read_rows(
            context,
            lake.candidate_items(control_version).partition(run_date),
            numbered,
            columns=[ITEM_INDEX, ITEM_KEY],
        ),
        features=read_rows(context, lake.items(spec.workflow_version).partition(run_date), treatment.items),
    )
    if count(rows) != numbered.rows:
        raise DataError(
            f"{treatment.items.table} dt={run_date} has features of only {count(rows)} of the "
            f"{numbered.rows} candidate items",
            f"run build_features and build_candidates for {run_date} again",
        )
    return publish_rows(
        rows,
        partition,
        inputs=inputs,
        row_group_rows=context.config.output.row_group_rows,
        sort_by=ITEM_INDEX,
        rules=latest_rules(ITEM_KEY, columns, spec),
        grace_hours=context.config.output.grace_hours,
    )
