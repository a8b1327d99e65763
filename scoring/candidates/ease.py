"""The source `ease`: proposes items that an item-to-item linear model predicts from the user's clicked items.

ease_weights.py has the model and its source. Spark counts, for each pair of items, the users who clicked both
(the Gram matrix). One task inverts this matrix and returns the weights B, which are published as a table. A
user's score of item j is the sum of B_ij over all items i that the user clicked.

Counts are integers, and weights are rounded such that scores are exact. Therefore the same log gives the same
lists, however Spark partitions the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from conf.errors import DataError
from conf.types import Ease
from scoring.candidates.clicks import clicked_items
from scoring.candidates.filters import Exclusions
from scoring.candidates.lists_in_spark import VectorStore, lists_from_vectors, no_lists
from scoring.inputs.requests import HISTORY, ITEM_INDEX, VECTOR, DeviceKind
from scoring.spark.scoring_workers import SCORING_IMPORTS
from scoring.spark.task_slot import task_slot
from spark.tasks import map_batches
from storage.feature_spec import USER_KEY

OTHER, USERS = "other", "users"

Batches = Iterable[pa.RecordBatch]

_WEIGHTS = T.StructType(
    [T.StructField(ITEM_INDEX, T.IntegerType()), T.StructField(VECTOR, T.ArrayType(T.FloatType()))]
)


def ease_items(
    config: Ease, exclusions: Exclusions, rows: DataFrame, items: DataFrame, store: VectorStore
) -> DataFrame:
    """Returns, for each user with clicks, the n items with the highest scores that are not excluded.

    The result has the columns user_key, candidates and scores. Only items that somebody clicked are
    proposed. If scores are equal, the smaller item index comes first. Users without clicks have no row.

    The weights are computed and published before the function returns.

    Args:
        config: the settings of the source, such as n.
        exclusions: the excluded items of each user.
        rows: a frame with the columns user_key, item_key and label.
        items: a frame with the columns item_index and item_key, one row per item.
        store: publishes the weights.

    Raises:
        DataError: more than `max_items` items have clicks, or `l2` is too small.
        InfrastructureError: the worker that computes the weights has too little memory.
    """
    clicked = clicked_items(rows, items).persist()
    indices = _items_with_clicks(clicked, config.max_items)
    if not len(indices):
        return no_lists(exclusions.users)
    weights = map_batches(
        item_pairs(clicked).repartition(1),
        _weights_of(indices, config.l2, store.device),
        _WEIGHTS,
        SCORING_IMPORTS,
    )
    files = store.publish(config.name, weights, len(indices), len(indices))
    history = clicked.groupBy(USER_KEY).agg(F.sort_array(F.collect_list(ITEM_INDEX)).alias(HISTORY))
    return lists_from_vectors(exclusions.users.join(history, USER_KEY), HISTORY, files, config.n, store)


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


def _items_with_clicks(clicked: DataFrame, most: int) -> np.ndarray:
    """Returns the indices of the items with clicks, (M,) int32, ascending.

    Raises:
        DataError: there are more than `most` items.
    """
    distinct = clicked.select(ITEM_INDEX).distinct()
    number = distinct.count()
    if number > most:
        raise DataError(
            f"source ease: {number} items have clicks, but max_items is {most}; the weights of {number} "
            f"items need {16 * number**2 / 2**30:.1f} GiB of memory in one worker, and "
            f"{4 * number**2 / 2**30:.1f} GiB in each worker that makes lists",
            "raise `max_items` of the source `ease` if the workers have this memory; otherwise count fewer "
            "items with `candidates.active_days` or the source's `window_days`, or use the source `als`",
        )
    return np.array(sorted(row[ITEM_INDEX] for row in distinct.collect()), np.int32)


def _weights_of(
    items: np.ndarray, l2: float, device: DeviceKind
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Returns a function for mapInArrow that computes the weights from the pairs of items of one task."""

    def weights(batches: Batches) -> Iterator[pa.RecordBatch]:
        from scoring.candidates.ease_weights import weight_batches  # torch: only in the workers

        yield from weight_batches(batches, items, l2, device, *task_slot())

    return weights
