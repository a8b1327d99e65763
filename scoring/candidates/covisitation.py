"""The source `covisitation`: proposes items clicked by users who clicked the same items as this user.

similar_items.py has the formula of the similarity of two items. The weight of a user is 1 / (number of the
user's items), which scales the user's row to unit length. So users with many clicks do not count more than
others. There is no shrinkage. Weights are stored as integers in units of 2⁻²⁴.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from conf.types import Covisitation
from scoring.candidates.filters import Exclusions
from scoring.candidates.lists_in_spark import VectorStore
from scoring.candidates.similar_items import latest_items, lists_of_similar_items
from scoring.inputs.requests import ITEM_INDEX
from storage.feature_spec import USER_KEY

WEIGHT_UNITS = 1 << 24


def covisited_items(
    config: Covisitation, exclusions: Exclusions, rows: DataFrame, items: DataFrame, store: VectorStore
) -> DataFrame:
    """Returns the lists of the source; see `lists_of_similar_items`.

    Args:
        config: the settings of the source, such as n.
        exclusions: the excluded items of each user.
        rows: a frame with the columns user_key, item_key, label and the column that recency() returns.
        items: a frame with the columns item_index and item_key, one row per item.
        store: publishes the neighbours.
    """
    history = with_weights(latest_items(rows, items, config.clicks_per_user))
    return lists_of_similar_items(config, history, exclusions, store)


def with_weights(history: DataFrame) -> DataFrame:
    """Adds the column weight (int64), floor(WEIGHT_UNITS / number of the user's items).

    Args:
        history: a frame with one row (user_key, item_index) for each user and each of the user's items.
    """
    by_user = Window.partitionBy(USER_KEY)
    weight = F.floor(F.lit(WEIGHT_UNITS) / F.count(F.lit(1)).over(by_user)).cast("long")
    return history.select(USER_KEY, ITEM_INDEX, weight.alias("weight"))
