"""Counts the users who clicked both items of a pair, by products of sparse matrices in this process.

X is the matrix of clicks with one row per user and one column per item: 1 if the user clicked the item, else
0. With weights w_u of users, each element of Xᵀ diag(w) X is the sum of the weights of the users who clicked
both items. The product is computed in blocks of rows, so memory contains the pairs of only one block of
items. All numbers are integers, so sums are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from scoring.requests import ITEM_INDEX, NEIGHBOURS, SIMILARITIES, SIMILARITY_UNITS
from storage.feature_spec import USER_KEY

# Approximate maximum number of additions to compute the sums of a block of items. Each sum takes 16 bytes.
_BLOCK_ADDITIONS = 1 << 24
_NEIGHBOURS = pa.schema(
    [(ITEM_INDEX, pa.int32()), (NEIGHBOURS, pa.list_(pa.int32())), (SIMILARITIES, pa.list_(pa.int32()))]
)
_PAIRS = pa.schema([(ITEM_INDEX, pa.int32()), ("other", pa.int32()), ("users", pa.int64())])

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ClickMatrix:
    """The clicks of U users on M items as a matrix X. The items are numbered in the order of their indices.

    Attributes:
        items: (M,) int32, the item indices, ascending.
        clicks: X, (U, M) int64 sparse.
        weights: (U,) int64, the weights of the users.
    """

    items: NDArray[np.int32]
    clicks: csr_array
    weights: Ints

    @staticmethod
    def of(history: pa.Table) -> ClickMatrix:
        """Returns the matrix of a table with one row for each distinct pair of user and item.

        Args:
            history: user_key, item_index, and weight (int64), the weight of the user. Without the column
                `weight`, all weights are 1.
        """
        users = history.column(USER_KEY).combine_chunks().dictionary_encode()
        row = users.indices.to_numpy()
        items, column = np.unique(history.column(ITEM_INDEX).to_numpy(), return_inverse=True)
        weights = np.ones(len(users.dictionary), np.int64)
        if "weight" in history.column_names:
            weights[row] = history.column("weight").to_numpy()
        ones = np.ones(len(row), np.int64)
        clicks = coo_array((ones, (row, column)), shape=(len(weights), len(items))).tocsr()
        return ClickMatrix(items.astype(np.int32), clicks, weights)

    def shared(self) -> Iterator[tuple[Ints, Ints, Ints]]:
        """Yields the pairs of items with at least one user who clicked both, one block of items at a time.

        Each block is a triple of arrays of equal length: the first item's number (ascending), the second
        item's number, and the sum of the weights of the users who clicked both. Each item also forms a pair
        with itself.
        """
        of_items = self.clicks.T.tocsr()  # (M, U)
        weighted = self.clicks.copy()
        weighted.data = np.repeat(self.weights, np.diff(self.clicks.indptr))
        additions = np.cumsum(of_items @ np.diff(self.clicks.indptr).astype(np.int64))
        first = 0
        while first < len(self.items):
            done = additions[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(additions, done + _BLOCK_ADDITIONS, side="right")))
            product = (of_items[first:last] @ weighted).tocoo()
            order = np.argsort(product.coords[0], kind="stable")
            row, column = (coordinates[order].astype(np.int64) for coordinates in product.coords)
            yield row + first, column, product.data[order]
            first = last

    def norms(self) -> Ints:
        """Returns the sum of the weights of the users who clicked each item, (M,)."""
        return np.asarray(self.clicks.T @ self.weights)


def neighbour_table(history: pa.Table, most: int, shrink: float = 0.0) -> pa.Table:
    """Returns the items that are most similar to each item: item_index, neighbours, and similarities.

    The last two columns are lists of int32, ordered by the neighbour's index. Similarities are in units of
    2⁻³⁰. An item has no row if no user clicked both this item and another item. If similarities are equal,
    the smaller index is preferred.

    Args:
        history: as in `ClickMatrix.of`.
        most: maximum number of neighbours of an item.
        shrink: the shrinkage (similar_items.py), in the unit of the weights.
    """
    matrix = ClickMatrix.of(history)
    lengths = np.sqrt(matrix.norms().astype(np.float64))
    parts = [_NEIGHBOURS.empty_table()]
    for item, other, shared in matrix.shared():
        item, other, shared = (values[item != other] for values in (item, other, shared))
        size = lengths[item] * lengths[other]
        if shrink:
            size = size + shrink
        similarity = np.floor(shared / size * SIMILARITY_UNITS + 0.5).astype(np.int64)
        order = np.lexsort((other, -similarity, item))
        item, other, similarity = item[order], other[order], similarity[order]
        place = np.arange(len(item)) - np.searchsorted(item, item)
        item, other, similarity = (values[place < most] for values in (item, other, similarity))
        order = np.lexsort((other, item))
        item, other, similarity = item[order], other[order], similarity[order]
        distinct, starts = np.unique(item, return_index=True)
        offsets = pa.array(np.append(starts, len(item)).astype(np.int32))
        columns = [
            pa.array(matrix.items[distinct]),
            pa.ListArray.from_arrays(offsets, pa.array(matrix.items[other])),
            pa.ListArray.from_arrays(offsets, pa.array(similarity.astype(np.int32))),
        ]
        parts.append(pa.Table.from_arrays(columns, schema=_NEIGHBOURS))
    return pa.concat_tables(parts)


def pair_batches(clicked: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yields each unordered pair of items if a user clicked both: item_index, other, and users.

    `users` is the number of users who clicked both, and item_index is at most `other`. Each item also forms a
    pair with itself.

    Args:
        clicked: distinct pairs of user_key and item_index.
    """
    matrix = ClickMatrix.of(clicked.select([USER_KEY, ITEM_INDEX]))
    for item, other, users in matrix.shared():
        upper = item <= other
        columns = [
            pa.array(matrix.items[item[upper]]),
            pa.array(matrix.items[other[upper]]),
            pa.array(users[upper]),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=_PAIRS)
