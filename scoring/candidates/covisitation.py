"""The source `covisitation`: proposes items clicked by users who clicked the same items as this user.

similar_items.py has the formula of the similarity of two items. The weight of a user is 1 / (number of the
user's items), which scales the user's row to unit length. So users with many clicks do not count more than
others. There is no shrinkage. Weights are stored as integers in units of 2⁻²⁴.
"""

from __future__ import annotations

from conf.types import Covisitation
from scoring.candidates.filters import Exclusions
from scoring.candidates.lists_in_spark import VectorStore
from scoring.candidates.similar_items import latest_items, lists_of_similar_items
from spark.rows import Rows, query

WEIGHT_UNITS = 1 << 24


def covisited_items(
    config: Covisitation, exclusions: Exclusions, rows: Rows, items: Rows, store: VectorStore
) -> Rows:
    """Returns the lists of the source; see `lists_of_similar_items`.

    Args:
        config: the settings of the source, such as n.
        exclusions: the excluded items of each user.
        rows: rows with the columns user_key, item_key, label and the column that recency() names.
        items: rows with the columns item_index and item_key, one row per item.
        store: publishes the neighbours.
    """
    history = with_weights(latest_items(rows, items, config.clicks_per_user))
    return lists_of_similar_items(config, history, exclusions, store)


def with_weights(history: Rows) -> Rows:
    """Adds the column weight (int64), floor(WEIGHT_UNITS / number of the user's items).

    Args:
        history: one row (user_key, item_index) for each user and each of the user's items.
    """
    number = "count(1) OVER (PARTITION BY user_key)"
    text = f"""
        SELECT user_key, item_index, CAST(floor({WEIGHT_UNITS} / {number}) AS BIGINT) AS weight
        FROM {{history}}
    """
    return query(text, history=history)
