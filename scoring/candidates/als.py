"""The source `als`: proposes items by a matrix factorization of the clicks.

Spark MLlib computes a vector for each user and each item with alternating least squares for implicit feedback
(Y. Hu, Y. Koren, C. Volinsky, Collaborative Filtering for Implicit Feedback Datasets, ICDM 2008). For Arrow
tables, als_vectors.py computes the vectors in this process. These vectors differ from those of MLlib only by
rounding errors. The rating of a user and an item is the number of clicks or, if rows have weights, the sum of
their weights. A user's score of an item is the dot product of their vectors.

The initial vectors depend on the seed and on the numbers that MLlib gets as ids of users and items. The order
in which MLlib adds numbers depends on the order of the ratings. To make the initial vectors and this order
reproducible, this module numbers users in the order of their keys. It passes the ratings to MLlib in one
partition, sorted by user and item. MLlib then distributes the ratings over a fixed number of blocks. MLlib
adds some partial sums in the order in which tasks end, so the vectors of two runs may differ by rounding
errors of float64. `item_vectors.rounded` removes most of these differences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.lazy_imports import F, Window
from scoring.candidates.clicks import weight_of_clicks
from scoring.candidates.exclusions import Exclusions
from scoring.candidates.lists_in_spark import VectorStore, lists_from_vectors, no_lists, with_exclusions
from scoring.candidates.source_settings import AlsParameters
from scoring.requests import ITEM_INDEX, VECTOR
from spark.choose_workers import cores_without_jvm
from spark.rows import Rows, count, persist, query
from storage.feature_spec import USER_KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_USER_NUMBER, _CLICKS = "user_number", "clicks"
# Number of blocks into which MLlib divides the users, and also the items. MLlib computes the vectors of one
# block in one task. A fixed number makes the result independent of the size of the cluster.
_BLOCKS = 10
_CHECKPOINT_ITERATIONS = 2


def als_items(
    config: AlsParameters, exclusions: Exclusions, rows: Rows, items: Rows, store: VectorStore
) -> Rows:
    """Returns, for each user with clicks, the n items with the highest scores that are not excluded.

    The result has the columns user_key, candidates and scores. Only items with clicks are proposed. If scores
    are equal, the smaller item index comes first. Users without clicks have no row.

    The function computes all vectors and publishes the item vectors before it returns.

    Args:
        config: the settings of the source, such as n.
        exclusions: the excluded items of each user.
        rows: rows with the columns user_key, item_key and label.
        items: rows with the columns item_index and item_key, one row per item.
        store: publishes the item vectors.
    """
    fitted = als_vectors(config, rows, items, store.checkpoints)
    if fitted is None:
        return no_lists(exclusions.users)
    users, item_vectors = fitted
    files = store.publish(config.name, item_vectors, count(item_vectors), config.rank)
    of_users = with_exclusions(exclusions.users, users, VECTOR)
    return lists_from_vectors(of_users, VECTOR, files, config.n, store)


def als_vectors(config: AlsParameters, rows: Rows, items: Rows, checkpoints: str) -> tuple[Rows, Rows] | None:
    """Computes the vectors of the users and items that have clicks.

    Args:
        config, rows, items: as in `als_items`.
        checkpoints: folder in which Spark stores the vectors after every second iteration. It must exist as
            long as a returned frame is used.

    Returns:
        Rows of users, with user_key and vector (array<float>), and rows of items, with item_index and vector.
        None if there are no clicks.
    """
    text = f"""
        SELECT user_key, item_index, CAST({weight_of_clicks(rows)} AS FLOAT) AS {_CLICKS}
        FROM {{rows}} JOIN {{items}} USING (item_key)
        WHERE label = 1
        GROUP BY user_key, item_index
    """
    clicks = persist(query(text, rows=rows, items=items))
    if isinstance(clicks, pa.Table):
        return _vectors_of_table(config, clicks) if len(clicks) else None
    return _vectors_of_frame(config, clicks, checkpoints)


def _vectors_of_table(config: AlsParameters, clicks: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Implements `als_vectors` in this process, without Spark."""
    import torch

    from scoring.candidates.als_vectors import fit_vectors

    keys = clicks.column(USER_KEY).combine_chunks()
    users = keys.unique()
    users = users.take(pc.sort_indices(users))
    items, item = np.unique(clicks.column(ITEM_INDEX).to_numpy(), return_inverse=True)
    user = pc.index_in(keys, value_set=users).to_numpy().astype(np.int64)
    of_caller = torch.get_num_threads()
    torch.set_num_threads(cores_without_jvm() or 1)
    try:
        fitted = fit_vectors(user, item.astype(np.int64), clicks.column(_CLICKS).to_numpy(), config, _BLOCKS)
    finally:
        torch.set_num_threads(of_caller)
    lists = [
        pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), config.rank).cast(pa.list_(pa.float32()))
        for vectors in fitted
    ]
    return (
        pa.Table.from_arrays([users, lists[0]], [USER_KEY, VECTOR]),
        pa.Table.from_arrays([pa.array(items.astype(np.int32)), lists[1]], [ITEM_INDEX, VECTOR]),
    )


def _vectors_of_frame(
    config: AlsParameters, clicks: DataFrame, checkpoints: str
) -> tuple[DataFrame, DataFrame] | None:
    """Implements `als_vectors` in Spark. `clicks` has user_key, item_index and clicks (float)."""
    from pyspark.ml.recommendation import ALS

    in_order = F.row_number().over(Window.orderBy(F.asc(USER_KEY)))
    numbered = clicks.select(USER_KEY).distinct().select(USER_KEY, in_order.alias(_USER_NUMBER)).persist()
    if numbered.isEmpty():
        return None
    ratings = clicks.join(numbered, USER_KEY).select(_USER_NUMBER, ITEM_INDEX, _CLICKS)
    # Without checkpoints, a task's lineage contains all earlier iterations, and serializing it overflows the
    # stack.
    clicks.sparkSession.sparkContext.setCheckpointDir(checkpoints)
    als = ALS(
        rank=config.rank,
        maxIter=config.iterations,
        regParam=config.regularization,
        alpha=config.alpha,
        seed=config.seed,
        checkpointInterval=_CHECKPOINT_ITERATIONS,
        implicitPrefs=True,
        numUserBlocks=_BLOCKS,
        numItemBlocks=_BLOCKS,
        userCol=_USER_NUMBER,
        itemCol=ITEM_INDEX,
        ratingCol=_CLICKS,
    )
    model = als.fit(ratings.repartition(1).sortWithinPartitions(_USER_NUMBER, ITEM_INDEX))
    of_users = model.userFactors.join(numbered, F.col("id") == F.col(_USER_NUMBER))
    return (
        of_users.select(USER_KEY, F.col("features").alias(VECTOR)),
        model.itemFactors.select(F.col("id").alias(ITEM_INDEX), F.col("features").alias(VECTOR)),
    )
