"""Makes the lists of the sources `covisitation` and `item_knn` in a worker: scores are sums of similarities.

The neighbours of all items form a sparse matrix S: S_ij is the similarity of item j to item i, or 0 if j is
not a neighbour of i. With a sparse matrix H of the users' items (1 or 0), the scores of all users are H S.
All numbers are integers, so scores are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.sparse import csr_array

from scoring.candidates.pairs_of_lists import pairs_of
from scoring.requests import EXCLUDED, HISTORY, ITEM_INDEX, LISTED, NEIGHBOURS, SIMILARITIES, SIMILARITY_UNITS
from storage.feature_spec import USER_KEY
from storage.file_digests import open_file
from storage.read_parquet import concat_parts

# A job has at most two sources with neighbours. Tasks of both sources may alternate in a worker.
_TABLES_KEPT = 2
_LOADING = Lock()  # threads in the process of a job make lists
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
    return Neighbours(csr_array((values, columns, starts), shape=(size, size)))


def _row(matrix: csr_array, row: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Returns the columns and the values of the stored elements of a row."""
    of_row = slice(matrix.indptr[row], matrix.indptr[row + 1])
    return matrix.indices[of_row], matrix.data[of_row]
