"""Proposes items that are similar to the user's items, for the sources `covisitation` and `item_knn`.

The items of a user are the last `clicks_per_user` distinct items that the user clicked. Each user has a
weight w_u. The similarity of two items is the cosine of their columns in the weighted matrix of users and
items (M. Deshpande, G. Karypis, Item-Based Top-N Recommendation Algorithms, ACM TOIS 22(1), 2004, sections
4.1 and 4.3). In addition, the denominator contains a number h, the shrinkage:

    sim(i, j) = Σ_u w_u [u clicked i and j] / (√(Σ_u w_u [u clicked i] · Σ_u w_u [u clicked j]) + h)

[condition] is 1 if the condition is true, else 0. For each item i, only the `neighbours` most similar items
are used. A user's score of item j is the sum of sim(i, j) over the user's items i for which j is one of these
most similar items.

Weights are integers, and similarities are integers in units of 2⁻³⁰. Therefore all sums are exact, and the
lists do not depend on how Spark partitions the rows. Each user contributes at most clicks_per_user² / 2 pairs
of items. Before the shuffle, each task adds up the weights of equal pairs.

For frames, Spark joins the rows and adds up the weights. For tables, item_pairs.py multiplies sparse
matrices. The neighbours are published as a table. Workers read it and make the lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from conf.lazy_imports import F, Window
from scoring.candidates.clicks import recency
from scoring.candidates.exclusions import Exclusions
from scoring.candidates.lists_in_spark import USERS_PER_BATCH, VectorStore, empty_lists, histories
from scoring.candidates.pairs_of_lists import pairs_of
from scoring.candidates.source_settings import SimilarItems
from scoring.requests import EXCLUDED, HISTORY, ITEM_INDEX, LISTED, NEIGHBOURS, SIMILARITIES, SIMILARITY_UNITS
from scoring.spark.score_frames import score_in_batches
from spark.rows import Rows, count, persist, query, unpersist
from storage.feature_spec import USER_KEY
from storage.file_digests import open_file
from storage.read_parquet import concat_parts

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from scipy.sparse import csr_array

Batches = Iterable[pa.RecordBatch]


def lists_of_similar_items(
    source: SimilarItems,
    history: Rows,
    exclusions: Exclusions,
    store: VectorStore,
    shrink: float = 0.0,
) -> Rows:
    """Returns, for each user, the n items with the highest scores that are not excluded.

    The result has the columns user_key, candidates and scores. If scores are equal, the smaller item index
    comes first. A user without clicks gets an empty list.

    The function computes and publishes the neighbours before it returns.

    Args:
        source: the settings of the source. The function reads `n` and `neighbours`.
        history: rows with the columns user_key, item_index and weight; see `similarities`.
        exclusions: the excluded items of each user.
        store: publishes the neighbours.
        shrink: h, in the unit of the weights.
    """
    history = persist(history)
    neighbours = persist(_neighbours(history, source.neighbours, shrink))
    number = count(neighbours)
    if not number:
        return empty_lists(exclusions.users)
    files = store.publish(source.name, neighbours, number, 2 * source.neighbours)
    unpersist(neighbours)
    text = """
        SELECT users.user_key, history, excluded
        FROM {users} AS users LEFT JOIN {of_user} AS of_user ON of_user.user_key = users.user_key
    """
    users = query(text, users=exclusions.users, of_user=histories(history))
    return score_in_batches(users, _lister(files, source.n), LISTED, USERS_PER_BATCH, "cpu")


def _neighbours(history: Rows, most: int, shrink: float) -> Rows:
    """Computes the table to publish: the `most` items that are most similar to each item."""
    if isinstance(history, pa.Table):
        from scoring.candidates.item_pairs import neighbour_table  # importing this module imports scipy

        return neighbour_table(history, most, shrink)
    near = nearest(similarities(history, shrink), most)
    return near.groupBy(ITEM_INDEX).agg(*_columns_of_neighbours())


def _columns_of_neighbours() -> list[Column]:
    """Returns Spark aggregates that collect the neighbours of an item: their indices and similarities."""
    pairs = F.sort_array(
        F.collect_list(F.struct("other", F.col("similarity").cast("int").alias("similarity")))
    )
    return [pairs.getField("other").alias(NEIGHBOURS), pairs.getField("similarity").alias(SIMILARITIES)]


def _lister(files: tuple[str, ...], n: int) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Returns a function for mapInArrow that makes the lists of the users of one task."""

    def make_lists(batches: Batches) -> Iterator[pa.RecordBatch]:

        neighbours = load_neighbours(files)
        for batch in batches:
            yield neighbours.lists(batch, n)

    return make_lists


def latest_items(rows: Rows, items: Rows, most: int) -> Rows:
    """Returns the last `most` items that each user clicked, one row (user_key, item_index) per item.

    If the times are equal, the smaller item index is preferred.

    Args:
        rows: rows with the columns user_key, item_key, label and the column that recency() names.
        items: rows with the columns item_index and item_key, one row per item.
        most: maximum number of items of a user.
    """
    text = f"""
        SELECT user_key, item_index
        FROM (
            SELECT user_key, item_index,
                row_number() OVER (PARTITION BY user_key ORDER BY latest_at DESC, item_index) AS place
            FROM (
                SELECT user_key, item_index, max({recency(rows)}) AS latest_at
                FROM {{rows}} JOIN {{items}} USING (item_key)
                WHERE label = 1
                GROUP BY user_key, item_index
            ) AS latest
        ) AS placed
        WHERE place <= {most}
    """
    return query(text, rows=rows, items=items)


def similarities(history: DataFrame, shrink: float = 0.0) -> DataFrame:
    """Returns the similarity of each ordered pair of different items, if at least one user clicked both.

    The result has the columns item_index, other and similarity. `similarity` is an int64 in units of 2⁻³⁰.

    Args:
        history: a frame with one row for each pair of a user and one of the user's items: user_key,
            item_index and weight (int64), the weight of the user.
        shrink: h, in the unit of the weights.
    """
    others = history.select(USER_KEY, F.col(ITEM_INDEX).alias("other"))
    together = (
        history.join(others, USER_KEY)
        .where(F.col(ITEM_INDEX) < F.col("other"))
        .groupBy(ITEM_INDEX, "other")
        .agg(F.sum("weight").alias("shared"))
    )
    norm = history.groupBy(ITEM_INDEX).agg(F.sum("weight").alias("norm"))
    of_other = norm.select(F.col(ITEM_INDEX).alias("other"), F.col("norm").alias("norm_other"))
    lengths = F.sqrt(F.col("norm").cast("double")) * F.sqrt(F.col("norm_other").cast("double"))
    if shrink:
        lengths = lengths + F.lit(shrink)
    similarity = F.floor(F.col("shared") / lengths * SIMILARITY_UNITS + 0.5).cast("long")
    once = (
        together.join(norm, ITEM_INDEX)
        .join(of_other, "other")
        .select(ITEM_INDEX, "other", similarity.alias("similarity"))
    )
    both = F.array(
        F.struct(F.col(ITEM_INDEX).alias("from"), F.col("other").alias("to")),
        F.struct(F.col("other").alias("from"), F.col(ITEM_INDEX).alias("to")),
    )
    return once.select(F.explode(both).alias("pair"), "similarity").select(
        F.col("pair.from").alias(ITEM_INDEX), F.col("pair.to").alias("other"), "similarity"
    )


def nearest(similar: DataFrame, most: int) -> DataFrame:
    """Returns, for each item, the rows of the `most` other items that are most similar to it.

    If similarities are equal, the smaller item index is preferred.

    Args:
        similar: a frame with the columns item_index, other and similarity.
        most: maximum number of rows per item.
    """
    order: list[Column] = [F.desc("similarity"), F.asc("other")]
    place = F.row_number().over(Window.partitionBy(ITEM_INDEX).orderBy(*order))
    ranked = similar.select("*", place.alias("place")).where(F.col("place") <= most)
    return ranked.select(ITEM_INDEX, "other", "similarity")


# The code below makes the lists of the sources `covisitation` and `item_knn` in a worker. Scores are sums of
# similarities.
#
# The neighbours of all items form a sparse matrix S: S_ij is the similarity of item j to item i, or 0 if
# j is not a neighbour of i. With a sparse matrix H of the users' items (1 or 0), the scores of all users
# are H S. All numbers are integers, so scores are exact.

# A worker keeps two tables: a job has at most two sources with neighbours, and their tasks may alternate.
_TABLES_KEPT = 2
_LOADING = Lock()  # several threads of this process may load a table at once
# Number of users whose scores are in memory at the same time. A user has at most clicks_per_user · neighbours
# scores of 16 bytes.
_USERS = 1024


@dataclass(frozen=True)
class Neighbours:
    """The neighbours of all items.

    Attributes:
        similarities: S, (N, N) int64 sparse, in units of 2⁻³⁰. N is the largest item index plus 1.
    """

    similarities: csr_array

    def lists(self, users: pa.RecordBatch, n: int) -> pa.RecordBatch:
        """Returns, for each user, the n items with the highest scores that are not excluded.

        If scores are equal, the smaller item index comes first. Only items with a score above 0 are listed.

        Args:
            users: a batch with one row per user: user_key; history, the indices of the user's items, or null;
                and excluded, the indices of the excluded items, or null.
            n: maximum number of items in a list.
        """
        lists, scores_of_lists = [], []
        for first in range(0, users.num_rows, _USERS):
            block = users.slice(first, _USERS)
            scores = self._matrix(block.column(HISTORY)) @ self.similarities
            excluded = self._matrix(block.column(EXCLUDED))
            for row in range(block.num_rows):
                items, of_items = _row(scores, row)
                without = np.isin(items, _row(excluded, row)[0], invert=True)
                best, of_best = best_items(items[without], of_items[without], n)
                lists.append(best)
                scores_of_lists.append((of_best / SIMILARITY_UNITS).astype(np.float32))
        offsets = pa.array(np.cumsum([0, *map(len, lists)]).astype(np.int32))
        values = (
            np.concatenate([np.zeros(0, np.int32), *lists]),
            np.concatenate([np.zeros(0, np.float32), *scores_of_lists]),
        )
        columns = [pa.ListArray.from_arrays(offsets, pa.array(value)) for value in values]
        return pa.RecordBatch.from_arrays([users.column(USER_KEY), *columns], schema=LISTED)

    def _matrix(self, lists: pa.ListArray) -> csr_array:
        """Returns lists of item indices as a sparse matrix of ones, (U, N) int64.

        An item without neighbours may have an index beyond the last column of the matrix. Such an item is
        left out.
        """
        row, item = pairs_of(lists)
        size = self.similarities.shape[0]
        row, item = row[item < size], item[item < size]
        from scipy.sparse import csr_array  # only workers import scipy

        return csr_array((np.ones(len(row), np.int64), (row, item)), shape=(len(lists), size))


def best_items(
    items: NDArray[np.int32], scores: NDArray[np.int64], n: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Returns the n items with the highest scores, the best first, and their scores.

    Equal scores are ordered by item.

    Args:
        items: (M,) different items, in any order.
        scores: (M,) their scores.
        n: maximum number of items in the result.
    """
    if len(items) > n:
        lowest = np.partition(scores, len(items) - n)[len(items) - n]
        items, scores = items[scores >= lowest], scores[scores >= lowest]
    order = np.lexsort((items, -scores))[:n]
    return items[order].astype(np.int32), scores[order]


def load_neighbours(files: tuple[str, ...]) -> Neighbours:
    """Reads the neighbours of all items.

    The two latest tables stay in the memory of the process, until `free_neighbours` is called. Each neighbour
    of each item takes 12 bytes.

    Args:
        files: paths of Parquet files with the columns item_index, neighbours and similarities, one row per
            item.
    """
    with _LOADING:
        return _load(files)


def free_neighbours() -> None:
    """Frees the tables that `load_neighbours` kept."""
    _load.cache_clear()


@lru_cache(maxsize=_TABLES_KEPT)
def _load(files: tuple[str, ...]) -> Neighbours:
    tables = []
    for path in files:
        with open_file(path) as source:
            tables.append(pq.read_table(source, columns=[ITEM_INDEX, NEIGHBOURS, SIMILARITIES]))
    table = concat_parts(tables).sort_by(ITEM_INDEX).combine_chunks()
    index = table.column(ITEM_INDEX).to_numpy()
    others = table.column(NEIGHBOURS).combine_chunks()
    values = table.column(SIMILARITIES).combine_chunks().flatten().to_numpy().astype(np.int64)
    columns = others.flatten().to_numpy().astype(np.int32)
    size = int(max(index.max(), columns.max())) + 1
    lengths = np.zeros(size, np.int64)
    lengths[index] = others.value_lengths().to_numpy()
    starts = np.concatenate([[0], np.cumsum(lengths)])
    from scipy.sparse import csr_array  # only workers import scipy

    return Neighbours(csr_array((values, columns, starts), shape=(size, size)))


def _row(matrix: csr_array, row: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Returns the columns and the values of the stored elements in a row of a sparse matrix."""
    of_row = slice(matrix.indptr[row], matrix.indptr[row + 1])
    return matrix.indices[of_row], matrix.data[of_row]
