"""The source `covisitation`: proposes items that many users clicked together with the user's items.

scoring/candidates/similar_items.py has the formula of the similarity of two items. The weight of a user is
1 / (number of the user's items), which scales the user's row to unit length. So users with many clicks do not
count more than others. There is no shrinkage. Weights are stored as integers in units of 2⁻²⁴.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from conf.list_types import WindowedSource
from conf.raw_types import PositiveInt

if TYPE_CHECKING:
    from scoring.candidates.exclusions import Exclusions
    from scoring.candidates.lists_in_spark import VectorStore
    from scoring.candidates.source_tables import SourceTables
    from spark.rows import Rows

WEIGHT_UNITS = 1 << 24


class Settings(WindowedSource):
    """The source `covisitation`: items that are similar to the items that the user clicked.

    Two items are similar if many users clicked both. docs/candidates.md has the formula of the similarity.
    """

    clicks_per_user: PositiveInt = Field(
        default=50,
        description="Number of items of a user that are used: the distinct items that the user clicked last. "
        "The limit bounds the number of item pairs of very active users.",
    )
    neighbours: PositiveInt = Field(
        default=100, description="Number of most similar items that are used for each item."
    )


def candidates(settings: Settings, tables: SourceTables) -> Rows:
    """Returns the items that the source proposes for each user; see `covisited_items`."""
    rows = tables.clicks(settings.window_days)
    return covisited_items(settings, tables.exclusions, rows, tables.items, tables.vector_store)


def covisited_items(
    config: Settings, exclusions: Exclusions, rows: Rows, items: Rows, store: VectorStore
) -> Rows:
    """Returns the lists of the source; see `lists_of_similar_items`.

    Args:
        config: the settings of the source, such as n.
        exclusions: the excluded items of each user.
        rows: rows with the columns user_key, item_key, label and the column that recency() names.
        items: rows with the columns item_index and item_key, one row per item.
        store: publishes the neighbours.
    """
    from scoring.candidates.similar_items import latest_items, lists_of_similar_items

    history = with_weights(latest_items(rows, items, config.clicks_per_user))
    return lists_of_similar_items(config, history, exclusions, store)


def with_weights(history: Rows) -> Rows:
    """Adds the column weight (int64), floor(WEIGHT_UNITS / number of the user's items).

    Args:
        history: one row (user_key, item_index) for each pair of a user and one of the user's items.
    """
    from spark.rows import query

    number = "count(1) OVER (PARTITION BY user_key)"
    text = f"""
        SELECT user_key, item_index, CAST(floor({WEIGHT_UNITS} / {number}) AS BIGINT) AS weight
        FROM {{history}}
    """
    return query(text, history=history)
