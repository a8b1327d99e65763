"""The source `item_knn`: proposes the nearest neighbours of the user's items by cosine similarity.

With c_ij users who clicked both items and c_i users who clicked item i, the similarity of two items is

    sim(i, j) = c_ij / (√(c_i c_j) + shrink)

(M. Deshpande, G. Karypis, ACM TOIS 22(1), 2004, section 4.1; scoring/candidates/similar_items.py). All users
have the weight 1. `shrink` reduces the similarity of items that few users clicked (R. M. Bell, Y. Koren, ICDM
2007, section 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from conf.list_types import WindowedSource
from conf.raw_types import PositiveInt

if TYPE_CHECKING:
    from scoring.candidates.exclusions import Exclusions
    from scoring.candidates.lists_in_spark import VectorStore
    from scoring.candidates.source_tables import SourceTables
    from spark.rows import Rows


class Settings(WindowedSource):
    """The source `item_knn`: the nearest neighbours, by cosine, of the items that the user clicked.

    In contrast to `covisitation`, all users have the same weight, and `shrink` reduces the similarity of
    items that few users clicked. docs/candidates.md has the formula of the similarity.
    """

    clicks_per_user: PositiveInt = Field(
        default=200,
        description="Number of items of a user that are used: the distinct items that the user clicked last. "
        "The limit bounds the number of item pairs of very active users.",
    )
    neighbours: PositiveInt = Field(
        default=100, description="Number of most similar items that are used for each item."
    )
    shrink: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.0,
        description="Number of users that is added to the denominator of the cosine. A larger value reduces "
        "the similarity of items that few users clicked.",
    )


def candidates(settings: Settings, tables: SourceTables) -> Rows:
    """Returns the items that the source proposes for each user; see `item_knn_items`."""
    rows = tables.clicks(settings.window_days)
    return item_knn_items(settings, tables.exclusions, rows, tables.items, tables.vector_store)


def item_knn_items(
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
    from spark.rows import query

    latest = latest_items(rows, items, config.clicks_per_user)
    history = query("SELECT user_key, item_index, CAST(1 AS BIGINT) AS weight FROM {latest}", latest=latest)
    return lists_of_similar_items(config, history, exclusions, store, config.shrink)
