"""Pairs of user and item: decides which pairs to score, and builds the model inputs of users and of items.

The users and the items are called the two sides. The inputs of a side are matrices in the column order of the
model. These matrices contain the features of this side; the columns of the other side are zero. So the input
of a pair is the sum of the user's row and the item's row. The sum is exact, because adding zero does not
change a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from conf.errors import DataError
from conf.types import MultiHot, Scope
from scoring.model.predictor import Predictor, model_inputs
from scoring.requests import ITEM_INDEX, Encoded, require_context
from storage.feature_spec import ITEM_KEY, FeatureSpec
from storage.file_digests import open_file
from storage.parquet_files import concat_parts

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class SideInputs:
    """The model inputs of R users, or of R items.

    The users and the items are called the two sides. The columns of the features of the other side are zero.

    Attributes:
        dense: (R, D) float32, the dense features.
        categorical: (R, W) int64, the ids. W is the number of id columns of the model.
    """

    dense: Tensor
    categorical: Tensor

    def part(self, rows: slice) -> SideInputs:
        """Returns a SideInputs with some consecutive rows of this one."""
        return SideInputs(self.dense[rows], self.categorical[rows])

    def rows(self, index: Tensor) -> SideInputs:
        """Returns a SideInputs with the rows that have these indices."""
        return SideInputs(self.dense.index_select(0, index), self.categorical.index_select(0, index))

    def plus(self, other: SideInputs) -> SideInputs:
        """Returns the sum of these inputs and `other`.

        `other` has the same shape. Or it has one row, which is added to each row.
        """
        return SideInputs(self.dense + other.dense, self.categorical + other.categorical)

    def to(self, device: torch.device) -> SideInputs:
        """Returns a copy on the device."""
        return SideInputs(self.dense.to(device), self.categorical.to(device))


def side_of(rows: pa.Table, spec: FeatureSpec, multi_hot: MultiHot, scope: Scope) -> SideInputs:
    """Builds the model inputs of users or items from the features of one scope, such as `user` or `item`.

    `rows` has one column per feature, and one row per user or item.
    """
    columns = {feature.name: rows.column(feature.name) for feature in spec.scoped(scope)}
    return SideInputs(*model_inputs(columns, spec, multi_hot, rows.num_rows))


def context_side(values: Mapping[str, Encoded], spec: FeatureSpec, multi_hot: MultiHot) -> SideInputs:
    """Builds model inputs of one row from the encoded values of the features of scope `context`.

    All other columns are zero.

    Raises:
        ConfigError: a context feature has no value, or a value belongs to no context feature.
    """
    require_context([feature.name for feature in spec.scoped("context")], values)
    return SideInputs(*model_inputs(values, spec, multi_hot, 1))


# On a CPU, gathering the item part of an item takes about half as long as scoring the item. So if a list has
# at least this share of all items, all items are scored, and scores of items that are not in the list are
# dropped.
_NEARLY_ALL = 2 / 3


@dataclass(frozen=True)
class Lists:
    """The candidates of some consecutive users of a batch.

    In `everyone` and `listed`, an index stands for a user. Index 0 is the first of the consecutive users.

    Attributes:
        everyone: (A,) indices of the users who are scored against all items except the excluded items.
        excluded: two arrays of shape (X,), which describe X excluded pairs. The first array has indices into
            `everyone`, the second array has item indices.
        listed: (L,) indices of the users who are scored against a list of items.
        lengths: (L,) number of items in the list of each user in `listed`.
        items: (Σ lengths,) item indices of these lists, one list after the other.
    """

    everyone: Indices
    excluded: tuple[Indices, Indices]
    listed: Indices
    lengths: Indices
    items: Indices


class CandidateLists:
    """The candidates of the users of one batch.

    Args:
        users: the keys of the users, as strings.
        candidates: for each user, a list<int32> of item indices without repeats. Null means all items except
            those in `excluded`.
        excluded: for each user, a list<int32> of item indices. It is used only if `candidates` is null; if
            both are null, no item is excluded.
        num_items: N, the number of items. Item indices are in [0, N).
        keep_lists: whether users with a list are always scored against this list.
    """

    def __init__(
        self,
        users: pa.StringArray,
        candidates: pa.ListArray,
        excluded: pa.ListArray,
        num_items: int,
        *,
        keep_lists: bool = False,
    ) -> None:
        self.users = users
        self._share = _NEARLY_ALL if not keep_lists else np.inf
        self._listed, self._excluded, self._num_items = candidates, excluded, num_items
        self._position = np.zeros(num_items, dtype=np.int64)

    def most(self) -> Indices:
        """Returns an upper bound for the number of candidates of each user, shape (U,).

        The bound is the length of the user's list, or the number of items if the user has no list.
        """
        lengths = pc.list_value_length(self._listed).fill_null(self._num_items)
        return lengths.to_numpy(zero_copy_only=False).astype(np.int64)

    def of(self, users: slice) -> Lists:
        """Returns the candidates of the users in a range of the batch.

        If a user's list has at least two thirds of all items, the user is scored against all items, because
        this is faster, unless `keep_lists` is set. The scores of items that are not in the list are dropped.

        Raises:
            DataError: an item index is outside [0, N), or a list has an item twice. The message names the
                user.
        """
        everyone: list[int] = []
        excluded: list[Indices] = []
        listed: list[int] = []
        items: list[Indices] = []
        for index, user in enumerate(range(users.start, users.stop)):
            if self._listed[user].is_valid:
                wanted = self._read(user, self._listed[user], distinct=True)
                count = len(wanted)
            else:
                gone = self._read(user, self._excluded[user], distinct=False)
                wanted, count = None, self._num_items - len(gone)
            if count >= self._share * self._num_items and count:
                everyone.append(index)
                excluded.append(gone if wanted is None else self._others(wanted))
            else:
                listed.append(index)
                items.append(self._others(gone) if wanted is None else wanted)
        by_user = np.repeat(np.arange(len(excluded)), [len(indices) for indices in excluded])
        return Lists(
            np.array(everyone, dtype=np.int64),
            (by_user, _joined(excluded)),
            np.array(listed, dtype=np.int64),
            np.array([len(indices) for indices in items], dtype=np.int64),
            _joined(items),
        )

    def _read(self, user: int, listed: pa.ListScalar, *, distinct: bool) -> Indices:
        """Checks the item indices of one list and returns them. A null list is read as an empty list.

        With `distinct`, an item that occurs twice is an error.
        """
        if not listed.is_valid:
            return np.zeros(0, dtype=np.int64)
        indices = listed.values.to_numpy(zero_copy_only=False).astype(np.int64)
        if len(indices) and (indices.min() < 0 or indices.max() >= self._num_items):
            raise DataError(
                f"candidate indices of user {self.users[user]} are in [{indices.min()}, {indices.max()}], "
                f"but there are {self._num_items} candidate items",
                "the tables `candidates` and `candidate_items` belong to different runs: "
                "run build_candidates again",
            )
        if distinct:
            self._require_distinct(user, indices)
        return indices

    def _others(self, items: Indices) -> Indices:
        """Returns the indices of all items that are not in `items`, in ascending order."""
        kept = np.ones(self._num_items, dtype=bool)
        kept[items] = False
        return np.flatnonzero(kept)

    def _require_distinct(self, user: int, indices: Indices) -> None:
        """Raises DataError if a list contains an item twice.

        An array has one element per item. The check writes the position of each entry of the list into the
        element of its item. If an item occurs twice, the second position overwrites the first.
        """
        positions = np.arange(len(indices))
        self._position[indices] = positions
        if (self._position[indices] != positions).any():
            raise DataError(
                f"the candidates of user {self.users[user]} hold an item twice", "run build_candidates again"
            )


def _joined(parts: list[Indices]) -> Indices:
    """Concatenates arrays. If there are no arrays, the result is an empty array."""
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def blocks(most: Indices, max_places: int, least_users: int, most_users: int) -> Iterator[slice]:
    """Divides a batch of users into blocks. A block is a range of consecutive users.

    A block is a matrix of cells: it has one row per user, and as many columns as the longest candidate list.
    A block has at most `max_places` cells. But each block except the last one has at least `least_users`
    users, even if the number of cells then exceeds `max_places`. No block has more than `most_users` users.
    Long lists are divided later, when they are scored.

    Args:
        most: (U,) an upper bound for each user's number of candidates.
        max_places: maximum number of cells of a block.
        least_users: minimum number of users of a block.
        most_users: maximum number of users of a block.
    """
    first = 0
    while first < len(most):
        widths = np.maximum.accumulate(most[first : first + most_users])
        fitting = int(np.searchsorted(widths * np.arange(1, len(widths) + 1), max_places, side="right"))
        last = min(first + max(fitting, least_users), len(most))
        yield slice(first, last)
        first = last


# Reads the items that a worker ranks from the Parquet files of the table candidate_items.


@dataclass(frozen=True)
class Items:
    """The candidate items.

    Attributes:
        keys: (N,) the keys of the items, strings. The index of an item in this array is its item index.
        side: the model inputs of the items, with the context features filled in.
    """

    keys: pa.Array
    side: SideInputs


def read_items(files: Sequence[str], predictor: Predictor, context: Mapping[str, Encoded]) -> Items:
    """Reads the candidate items into the CPU's memory, in the order of their index.

    Args:
        files: paths of the Parquet files of candidate_items, in the order of the manifest.
        predictor: the loaded model. Only the features of this model are read.
        context: maps the name of each feature of scope `context` to its encoded value.

    Raises:
        DataError: the item indices are not 0, 1, 2, …
        ConfigError: the context values do not match the context features of the model.
    """
    spec, multi_hot = predictor.spec, predictor.multi_hot
    columns = [ITEM_INDEX, ITEM_KEY, *(feature.name for feature in spec.scoped("item"))]
    table = concat_parts(_read_parquet(path, columns) for path in files).combine_chunks()
    index = table.column(ITEM_INDEX).to_numpy()
    if not np.array_equal(index, np.arange(len(index))):
        raise DataError(
            f"{files[0]}: item_index does not count from 0 in steps of 1", "run build_candidates again"
        )
    keys = pa.array(table.column(ITEM_KEY).to_pylist(), pa.string())
    return Items(keys, side_of(table, spec, multi_hot, "item").plus(context_side(context, spec, multi_hot)))


def _read_parquet(path: str, columns: list[str]) -> pa.Table:
    """Reads the columns `columns` of one Parquet file."""
    with open_file(path) as source:
        return pq.ParquetFile(source).read(columns=columns)
