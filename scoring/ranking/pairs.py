"""Decides which (user, item) pairs to score, and builds the model inputs of users and of items.

The users and the items are called the two sides. The inputs of a side are matrices in the column order of the
model. These matrices contain the features of this side; the columns of the other side are zero. So the input
of a pair is the sum of the user's row and the item's row. The sum is exact, because adding zero does not
change a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from conf.errors import DataError
from conf.types import MultiHot, Scope
from scoring.model.launch_ahead import pinned, to_device
from scoring.model.predictor import Predictor, model_inputs
from scoring.requests import ITEM_INDEX, Encoded, require_context
from storage.feature_spec import ITEM_KEY, FeatureSpec
from storage.file_digests import open_file
from storage.read_parquet import concat_parts

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
        """Returns the inputs of the rows in this range."""
        return SideInputs(self.dense[rows], self.categorical[rows])

    def rows(self, index: Tensor) -> SideInputs:
        """Returns the inputs of the rows with these indices."""
        return SideInputs(self.dense.index_select(0, index), self.categorical.index_select(0, index))

    def plus(self, other: SideInputs) -> SideInputs:
        """Returns the sum of these inputs and `other`.

        `other` has the same shape, or one row that is added to each row.
        """
        return SideInputs(self.dense + other.dense, self.categorical + other.categorical)

    def pinned_for(self, device: torch.device) -> SideInputs:
        """Returns these inputs, copied to pinned memory if the device is a GPU, for the method `to`."""
        if device.type != "cuda":
            return self
        return SideInputs(pinned(self.dense, device), pinned(self.categorical, device))

    def to(self, device: torch.device) -> SideInputs:
        """Returns a copy on the device. The host does not wait for a copy to a GPU."""
        return SideInputs(to_device(self.dense, device), to_device(self.categorical, device))


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
        ConfigError: a context feature has no value, or a name is not a context feature.
    """
    require_context([feature.name for feature in spec.scoped("context")], values)
    return SideInputs(*model_inputs(values, spec, multi_hot, 1))


# On a CPU, gathering the item part of an item takes about half as long as scoring the item. So if a list has
# at least this share of all items, all items are scored, and scores of items that are not in the list are
# dropped.
_NEARLY_ALL = 2 / 3

_ITEM_BITS = 32  # bits for the item index in an int64 that represents a (user, item) pair


@dataclass(frozen=True)
class Lists:
    """The candidates of a range of consecutive users of a batch.

    Arrays with an element per user are on the host, and tensors with an element per pair are on the device.
    `everyone` and `listed` contain indices of users. Index 0 is the first of the consecutive users.

    Attributes:
        everyone: (A,) indices of the users who are scored against all items except the excluded items.
        excluded: two tensors of shape (X,), which describe X excluded pairs. The first tensor has indices
            into `everyone`, the second tensor has item indices.
        chosen: (B,) indices into `everyone`: the users who have a list of nearly all items.
        wanted: (B, N) bool, whether an item is in the list of a user in `chosen`. N is the number of all
            items.
        listed: (L,) indices of the users who are scored against a list of items.
        lengths: (L,) number of items in the list of each user in `listed`.
        items: (Σ lengths,) item indices of these lists, one list after the other.
    """

    everyone: Indices
    excluded: tuple[Tensor, Tensor]
    chosen: Indices
    wanted: Tensor
    listed: Indices
    lengths: Indices
    items: Tensor


class CandidateLists:
    """The candidates of the users of one batch.

    The items of all lists are one array. Items that are out of range or repeated in a list are an error. On a
    CPU, each list is checked when it is needed. On another device, `to` starts one check of all lists. `to`
    also replaces indices that are out of range, so that lookups do not fail. The caller must then check
    `wrong` before it uses a result, and call `require_right` to raise the error.

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
        self.wrong: Tensor | None = None
        self._num_items = num_items
        self._has_list = np.ones(len(users), dtype=bool)
        listed, values = _lengths(candidates), [_values(candidates)]
        if candidates.null_count:
            self._has_list = candidates.is_valid().to_numpy(zero_copy_only=False)
            gone = excluded.filter(pa.array(~self._has_list)) if self._has_list.any() else excluded
            listed[~self._has_list] = _lengths(gone)
            values.append(_values(gone))
        count = np.where(self._has_list, listed, num_items - listed)
        share = np.inf if keep_lists else _NEARLY_ALL
        self._scores_all = (count != 0) & (count >= (share * num_items if num_items else np.inf))
        # The array contains first the lists, then the excluded items of users without a list.
        in_order = np.concatenate([np.flatnonzero(self._has_list), np.flatnonzero(~self._has_list)])
        ends = np.cumsum(listed[in_order])
        self._list_starts, self._list_lengths = np.empty_like(listed), listed
        self._list_starts[in_order] = ends - listed[in_order]
        self._values = _joined(values)
        self._starts, self._lengths = self._list_starts, self._list_lengths
        self._replace_excluded()
        self._items = torch.from_numpy(self._values)

    def _replace_excluded(self) -> None:
        """Gives each user with many excluded items a list of the items that are not excluded."""
        users = np.flatnonzero(~self._has_list & ~self._scores_all)
        if not len(users):
            return
        self._starts, self._lengths = self._starts.copy(), self._lengths.copy()
        lists, end = [self._values], len(self._values)
        for user in users:
            kept = np.ones(self._num_items, dtype=bool)
            gone = self._list_of(user)
            kept[gone[(gone >= 0) & (gone < self._num_items)]] = False
            lists.append(np.flatnonzero(kept).astype(self._values.dtype))
            self._starts[user], self._lengths[user] = end, len(lists[-1])
            end += len(lists[-1])
        self._values = np.concatenate(lists)

    def to(self, device: torch.device) -> CandidateLists:
        """Copies the lists to the device, and starts their check there. Returns this object.

        The host does not wait. The check sets `wrong`, a bool tensor of shape () on the device, which is true
        if `require_right` would raise an error.

        Raises:
            DataError: there are no items, but the list of a user contains an item index.
        """
        if device.type == "cpu":
            return self
        if not self._num_items:
            self.require_right(slice(0, len(self.users)))
        self._items = to_device(self._items, device)
        outside = ((self._items < 0) | (self._items >= self._num_items)).any()
        self._items = self._items.clamp(0, max(self._num_items - 1, 0))
        listed = int(self._list_lengths[self._has_list].sum())
        lengths = to_device(torch.from_numpy(self._list_lengths[self._has_list]), device)
        of_user = repeated(lengths, listed)
        pairs = (of_user << _ITEM_BITS | self._items[:listed]).sort().values
        self.wrong = outside | (pairs[1:] == pairs[:-1]).any()
        return self

    def most(self) -> Indices:
        """Returns an upper bound for the number of candidates of each user, shape (U,).

        The bound is the length of the user's list, or the number of items if the user has no list.
        """
        return np.where(self._has_list, self._list_lengths, self._num_items)

    def of(self, users: slice) -> Lists:
        """Returns the candidates of the users in a range of the batch.

        If a user's list has at least two thirds of all items, the user is scored against all items, because
        this is faster. With `keep_lists`, the user is always scored against the list. The scores of items
        that are not in the list are dropped.

        Raises:
            DataError: the lists are on the CPU, and `require_right` finds a wrong list.
        """
        if self.wrong is None:
            self.require_right(users)
        scores_all, has_list = self._scores_all[users], self._has_list[users]
        everyone, listed = np.flatnonzero(scores_all), np.flatnonzero(~scores_all)
        has_excluded, chosen = everyone[~has_list[everyone]], everyone[has_list[everyone]]
        place = np.cumsum(scores_all) - 1  # position of each user in `everyone`
        wanted = torch.zeros(len(chosen), self._num_items, dtype=torch.bool, device=self._items.device)
        if len(chosen):
            row, item = self._pairs(users.start + chosen, np.arange(len(chosen)))
            wanted[row, item] = True
        return Lists(
            everyone,
            self._pairs(users.start + has_excluded, place[has_excluded]),
            place[chosen],
            wanted,
            listed,
            self._lengths[users][listed],
            self._of_users(users.start + listed),
        )

    def _pairs(self, users: Indices, numbers: Indices) -> tuple[Tensor, Tensor]:
        """Returns, for each entry of the users' lists, its user's element of `numbers` and its item index."""
        if not len(users):
            nobody = torch.zeros(0, dtype=torch.int64, device=self._items.device)
            return nobody, nobody
        lengths = self._lengths[users]
        device = self._items.device
        of_user = repeated(to_device(torch.from_numpy(lengths), device), int(lengths.sum()))
        return to_device(torch.from_numpy(numbers), device)[of_user], self._of_users(users).long()

    def _of_users(self, users: Indices) -> Tensor:
        """Returns the lists of these users, concatenated."""
        starts, lengths = self._starts[users], self._lengths[users]
        total = int(lengths.sum())
        if not total:
            return self._items[:0]
        if (starts[1:] == starts[:-1] + lengths[:-1]).all():
            return self._items[starts[0] : starts[0] + total]
        moved = starts - (np.cumsum(lengths) - lengths)
        both = to_device(torch.from_numpy(np.stack([lengths, moved])), self._items.device)
        index = torch.arange(total, device=self._items.device) + both[1][repeated(both[0], total)]
        return self._items[index]

    def require_right(self, users: slice) -> None:
        """Checks the lists of the users in a range of the batch.

        Raises:
            DataError: an item index is outside [0, N), or a list has an item twice. The message names the
                user.
        """
        chosen = np.arange(users.start, users.stop)
        with_list = self._has_list[users]
        parts = [self._listed_of(chosen[with_list]), self._listed_of(chosen[~with_list])]
        if any(len(part) and (part.min() < 0 or part.max() >= self._num_items) for part in parts):
            self._refuse_first(users)
        repeating = self._first_repeating(chosen[with_list], parts[0])
        if repeating is not None:
            raise self._repeats(repeating)

    def _first_repeating(self, users: Indices, items: NDArray[np.integer[Any]]) -> int | None:
        """Returns the first user whose list has an item twice.

        Args:
            users: users with a list.
            items: their lists, one after the other. All items are in range.
        """
        place = np.empty(self._num_items, dtype=np.int32)
        places = np.arange(self._list_lengths[users].max(initial=0), dtype=np.int32)
        indices, first = items.astype(np.intp), 0
        for user, length in zip(users.tolist(), self._list_lengths[users].tolist(), strict=True):
            of_user = indices[first : first + length]
            place[of_user] = places[:length]
            # If an item occurs twice, its second position has overwritten the first.
            if not np.array_equal(place.take(of_user), places[:length]):
                return int(user)
            first += length
        return None

    def _refuse_first(self, users: slice) -> None:
        """Raises DataError for the first user with a wrong list. Call it only if an index is out of range."""
        for user in range(users.start, users.stop):
            indices = self._list_of(user)
            if len(indices) and (indices.min() < 0 or indices.max() >= self._num_items):
                raise DataError(
                    f"the candidate indices of user {self.users[user]} are from {indices.min()} to "
                    f"{indices.max()}, but there are {self._num_items} candidate items",
                    "the tables `candidates` and `candidate_items` belong to different runs: "
                    "run build_candidates again",
                )
            if self._has_list[user] and len(np.unique(indices)) < len(indices):
                raise self._repeats(user)

    def _repeats(self, user: int) -> DataError:
        return DataError(
            f"the candidates of user {self.users[user]} contain an item twice", "run build_candidates again"
        )

    def _listed_of(self, users: Indices) -> NDArray[np.integer[Any]]:
        """Returns the concatenated lists of users with a list, or the excluded items of users without a list.

        For a range of users, pass either all users with a list, or all users without a list.
        """
        if not len(users):
            return self._values[:0]
        start, last = self._list_starts[users[0]], users[-1]
        return self._values[start : self._list_starts[last] + self._list_lengths[last]]

    def _list_of(self, user: int) -> NDArray[np.integer[Any]]:
        """Returns the list of a user, or the excluded items of a user without a list."""
        start = self._list_starts[user]
        return self._values[start : start + self._list_lengths[user]]


def _lengths(lists: pa.ListArray) -> Indices:
    """Returns the length of each list, 0 for null."""
    if not lists.null_count:
        return np.diff(lists.offsets.to_numpy()).astype(np.int64)
    lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return lengths.astype(np.int64)


def _values(lists: pa.ListArray) -> NDArray[np.integer[Any]]:
    """Returns the elements of all lists that are not null."""
    values = lists.flatten().to_numpy(zero_copy_only=False)
    return values if values.dtype == np.int32 else values.astype(np.int64)


def _joined(parts: list[NDArray[np.integer[Any]]]) -> NDArray[np.integer[Any]]:
    """Concatenates arrays.

    Empty arrays are left out. If only one array is left, it is copied only if it is read-only, because torch
    needs writable memory.
    """
    filled = [part for part in parts if len(part)] or parts[:1]
    joined = filled[0] if len(filled) == 1 else np.concatenate(filled)
    return joined if joined.flags.writeable else joined.copy()


def repeated(counts: Tensor, total: int) -> Tensor:
    """Returns each index i of `counts` repeated counts[i] times: (total,) int64.

    The host does not wait for a device.
    """
    return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts, output_size=total)


def blocks(most: Indices, max_places: int, least_users: int, most_users: int) -> Iterator[slice]:
    """Divides a batch of users into blocks. A block is a range of consecutive users.

    A block is a matrix of cells: it has one row per user, and as many columns as the longest candidate list.
    A block has at most `max_places` cells. Each block except the last one has at least `least_users` users,
    even if it then has more than `max_places` cells. No block has more than `most_users` users. Long lists
    are divided later, when they are scored.

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


# The code below reads the items that a worker ranks from the Parquet files of the table candidate_items.


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
    """Reads the candidate items into the CPU's memory. They are sorted by their item index.

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
            f"{files[0]}: the values of item_index are not 0, 1, 2 and so on", "run build_candidates again"
        )
    keys = pa.array(table.column(ITEM_KEY).to_pylist(), pa.string())
    return Items(keys, side_of(table, spec, multi_hot, "item").plus(context_side(context, spec, multi_hot)))


def _read_parquet(path: str, columns: list[str]) -> pa.Table:
    """Reads the columns `columns` of one Parquet file."""
    with open_file(path) as source:
        return pq.ParquetFile(source).read(columns=columns)
