"""The source `item_knn`: proposes the nearest neighbours of the user's items by cosine similarity.

With c_ij users who clicked both items and c_i users who clicked item i, the similarity of two items is

    sim(i, j) = c_ij / (√(c_i c_j) + shrink)

(M. Deshpande, G. Karypis, ACM TOIS 22(1), 2004, section 4.1; similar_items.py). All users have the weight 1.
`shrink` reduces the similarity of items that few users clicked (R. M. Bell, Y. Koren, ICDM 2007, section 3,
who shrink similarities towards zero where the support is small).
"""

from __future__ import annotations

from conf.source_types import ItemKnn
from scoring.candidates.filters import Exclusions
from scoring.candidates.lists_in_spark import VectorStore
from scoring.candidates.similar_items import latest_items, lists_of_similar_items
from spark.rows import Rows, query


def item_knn_items(
    config: ItemKnn, exclusions: Exclusions, rows: Rows, items: Rows, store: VectorStore
) -> Rows:
    """Returns the lists of the source; see `lists_of_similar_items`.

    Args:
        config: the settings of the source, such as n.
        exclusions: the excluded items of each user.
        rows: rows with the columns user_key, item_key, label and the column that recency() names.
        items: rows with the columns item_index and item_key, one row per item.
        store: publishes the neighbours.
    """
    latest = latest_items(rows, items, config.clicks_per_user)
    history = query("SELECT user_key, item_index, CAST(1 AS BIGINT) AS weight FROM {latest}", latest=latest)
    return lists_of_similar_items(config, history, exclusions, store, config.shrink)
