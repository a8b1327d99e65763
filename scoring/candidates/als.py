"""The source `als`: proposes items by a matrix factorization of the clicks.

Spark MLlib computes a vector for each user and each item by alternating least squares for implicit feedback
(Y. Hu, Y. Koren, C. Volinsky, Collaborative Filtering for Implicit Feedback Datasets, ICDM 2008). The rating
of a user and an item is the number of clicks or, if rows have weights, the sum of their weights. A user's
score of an item is the dot product of their vectors.

The initial vectors depend on the seed and on the numbers of users and items, and the order of additions
depends on the order of the ratings. So users are numbered in the order of their keys, and MLlib gets the
ratings in one partition, sorted by user and item. MLlib then distributes them over a fixed number of blocks.
It adds some partial sums in the order in which tasks end, so the vectors of two runs may differ by rounding
errors of float64. `item_vectors.rounded` removes most of these differences.
"""

from __future__ import annotations

from pyspark.ml.recommendation import ALS
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from conf.types import Als
from scoring.candidates.clicks import weight_of_clicks
from scoring.candidates.filters import Exclusions
from scoring.candidates.lists_in_spark import VectorStore, lists_from_vectors, no_lists
from scoring.inputs.requests import ITEM_INDEX, VECTOR
from storage.feature_spec import ITEM_KEY, LABEL, USER_KEY

_USER_NUMBER, _CLICKS = "user_number", "clicks"
# Number of blocks of users, and of items. MLlib computes the vectors of one block in one task. A fixed number
# makes the result independent of the size of the cluster.
_BLOCKS = 10
_CHECKPOINT_ITERATIONS = 2


def als_items(
    config: Als, exclusions: Exclusions, rows: DataFrame, items: DataFrame, store: VectorStore
) -> DataFrame:
    """Returns, for each user with clicks, the n items with the highest scores that are not excluded.

    The result has the columns user_key, candidates and scores. Only items that somebody clicked are
    proposed. If scores are equal, the smaller item index comes first. Users without clicks have no row.

    The vectors are computed, and those of the items are published, before the function returns.

    Args:
        config: the settings of the source, such as n.
        exclusions: the excluded items of each user.
        rows: a frame with the columns user_key, item_key and label.
        items: a frame with the columns item_index and item_key, one row per item.
        store: publishes the item vectors.
    """
    fitted = als_vectors(config, rows, items, store.checkpoints)
    if fitted is None:
        return no_lists(exclusions.users)
    users, item_vectors = fitted
    files = store.publish(config.name, item_vectors, item_vectors.count(), config.rank)
    return lists_from_vectors(exclusions.users.join(users, USER_KEY), VECTOR, files, config.n, store)


def als_vectors(
    config: Als, rows: DataFrame, items: DataFrame, checkpoints: str
) -> tuple[DataFrame, DataFrame] | None:
    """Computes the vectors of the users and items that have clicks.

    Args:
        config, rows, items: as in `als_items`.
        checkpoints: folder for vectors of single iterations. The result needs it as long as it is used.

    Returns:
        Two frames: user_key and vector (array<float>), and item_index and vector. None if there are no
        clicks.
    """
    clicks = (
        rows.where(F.col(LABEL) == 1)
        .join(items.select(ITEM_KEY, ITEM_INDEX), ITEM_KEY)
        .groupBy(USER_KEY, ITEM_INDEX)
        .agg(weight_of_clicks(rows).cast("float").alias(_CLICKS))
        .persist()
    )
    in_order = F.row_number().over(Window.orderBy(F.asc(USER_KEY)))
    numbered = clicks.select(USER_KEY).distinct().select(USER_KEY, in_order.alias(_USER_NUMBER)).persist()
    if numbered.isEmpty():
        return None
    ratings = clicks.join(numbered, USER_KEY).select(_USER_NUMBER, ITEM_INDEX, _CLICKS)
    # Without checkpoints, a task describes all iterations before it, and its description overflows the stack.
    rows.sparkSession.sparkContext.setCheckpointDir(checkpoints)
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
