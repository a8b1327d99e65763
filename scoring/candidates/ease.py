"""The source `ease`: proposes items that an item-to-item linear model predicts from the user's clicked items.

ease_weights.py describes the model and cites its publication. For each pair of items, Spark counts the users
who clicked both items (the Gram matrix). For Arrow tables, item_pairs.py counts them. One task, or this
process, computes the weights B from this matrix. The job publishes the weights as a table. A user's score of
item j is the sum of B_ij over all items i that the user clicked.

Counts are integers, and weights are rounded so that scores are exact. Therefore the lists do not depend on
how Spark partitions the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from conf.errors import DataError
from conf.lazy_imports import F
from scoring.candidates.clicks import clicked_items
from scoring.candidates.exclusions import Exclusions
from scoring.candidates.lists_in_spark import (
    VectorStore,
    histories,
    lists_from_vectors,
    no_lists,
    with_exclusions,
)
from scoring.candidates.source_settings import EaseParameters
from scoring.requests import HISTORY, ITEM_INDEX, VECTOR, DeviceKind
from scoring.spark.score_frames import SCORING_IMPORTS, task_slot
from spark.choose_workers import cores_without_jvm
from spark.rows import Rows, count, persist, query, records, spark_types
from spark.tasks import map_batches
from storage.feature_spec import USER_KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OTHER, USERS = "other", "users"

Batches = Iterable[pa.RecordBatch]

_WEIGHTS = pa.schema([(ITEM_INDEX, pa.int32()), (VECTOR, pa.list_(pa.float32()))])


def ease_items(
    config: EaseParameters, exclusions: Exclusions, rows: Rows, items: Rows, store: VectorStore
) -> Rows:
    """Returns, for each user with clicks, the n items with the highest scores that are not excluded.

    The result has the columns user_key, candidates and scores. Only items with clicks are proposed. If scores
    are equal, the smaller item index comes first. Users without clicks have no row.

    The function computes and publishes the weights before it returns.

    Args:
        config: the settings of the source, such as n.
        exclusions: the excluded items of each user.
        rows: rows with the columns user_key, item_key and label.
        items: rows with the columns item_index and item_key, one row per item.
        store: publishes the weights.

    Raises:
        DataError: more than `max_items` items have clicks, or `l2` is too small.
        InfrastructureError: the worker that computes the weights has too little memory.
    """
    clicked = persist(clicked_items(rows, items))
    indices = _items_with_clicks(clicked, config.max_items)
    if not len(indices):
        return no_lists(exclusions.users)
    weights = _weights(clicked, indices, config.l2, store.device)
    files = store.publish(config.name, weights, len(indices), len(indices))
    users = with_exclusions(exclusions.users, histories(clicked), HISTORY)
    return lists_from_vectors(users, HISTORY, files, config.n, store)


def _weights(clicked: Rows, items: np.ndarray, l2: float, device: DeviceKind) -> Rows:
    """Returns the weights: item_index, and vector with the weights of all items, one row per item."""
    if not isinstance(clicked, pa.Table):
        weights_of = _weights_of(items, l2, device)
        pairs = item_pairs(clicked).repartition(1)
        return map_batches(pairs, weights_of, spark_types(_WEIGHTS), SCORING_IMPORTS)
    import torch

    from scoring.candidates.ease_weights import weight_batches
    from scoring.candidates.item_pairs import pair_batches

    of_caller, cores = torch.get_num_threads(), cores_without_jvm() or 1
    try:
        batches = weight_batches(pair_batches(clicked), items, l2, device, None, cores)
        return pa.Table.from_batches(batches, _WEIGHTS)
    finally:
        torch.set_num_threads(of_caller)


def item_pairs(clicked: DataFrame) -> DataFrame:
    """Returns the elements of the Gram matrix that are not zero, on and above its diagonal.

    The result has the columns item_index, other and users (int64): the number of users who clicked both
    items. item_index is at most `other`.

    Args:
        clicked: a frame with distinct rows of user_key and item_index.
    """
    others = clicked.select(USER_KEY, F.col(ITEM_INDEX).alias(OTHER))
    pairs = clicked.join(others, USER_KEY).where(F.col(ITEM_INDEX) <= F.col(OTHER))
    return pairs.groupBy(ITEM_INDEX, OTHER).agg(F.count(F.lit(1)).alias(USERS))


def _items_with_clicks(clicked: Rows, most: int) -> np.ndarray:
    """Returns the indices of the items with clicks, (M,) int32, ascending.

    Raises:
        DataError: there are more than `most` items.
    """
    distinct = query("SELECT DISTINCT item_index FROM {clicked}", clicked=clicked)
    number = count(distinct)
    if number > most:
        raise DataError(
            f"source ease: {number} items have clicks, but max_items is {most}; the weights of {number} "
            f"items need {16 * number**2 / 2**30:.1f} GiB of memory in one worker, and "
            f"{4 * number**2 / 2**30:.1f} GiB in each worker that makes lists",
            "raise `max_items` of the source `ease` if the workers have this memory; otherwise count fewer "
            "items with `candidates.active_days` or the source's `window_days`, or use the source `als`",
        )
    return np.array(sorted(row[ITEM_INDEX] for row in records(distinct)), np.int32)


def _weights_of(
    items: np.ndarray, l2: float, device: DeviceKind
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Returns a function for mapInArrow that computes the weights from the pairs of items of one task."""

    def weights(batches: Batches) -> Iterator[pa.RecordBatch]:
        from scoring.candidates.ease_weights import weight_batches  # only workers import torch

        yield from weight_batches(batches, items, l2, device, *task_slot())

    return weights
