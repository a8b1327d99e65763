"""(user, item) pairs: which ones a batch of users asks for, and the model inputs of both sides.

Each side of a pair is a matrix in the model's column order that holds the side's own features and zeros in the
places of the other; the sum of a user's row and an item's row is the pair's input. Adding zero is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor

from conf.errors import DataError
from conf.types import MultiHot, Scope
from scoring.inputs.requests import Encoded, require_context
from scoring.model.predictor import model_inputs
from storage.feature_spec import FeatureSpec

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Side:
    """Inputs of one side: dense (R, D) float32 and categorical (R, W) int64, zero where the other side's stand."""

    dense: Tensor
    categorical: Tensor

    def part(self, rows: slice) -> Side:
        return Side(self.dense[rows], self.categorical[rows])

    def rows(self, index: Tensor) -> Side:
        return Side(self.dense.index_select(0, index), self.categorical.index_select(0, index))

    def plus(self, other: Side) -> Side:
        return Side(self.dense + other.dense, self.categorical + other.categorical)

    def to(self, device: torch.device) -> Side:
        return Side(self.dense.to(device), self.categorical.to(device))


def side_of(rows: pa.Table, spec: FeatureSpec, multi_hot: MultiHot, scope: Scope) -> Side:
    """The features of one scope, from columns named as in the spec, one row an entity."""
    columns = {each.name: rows.column(each.name) for each in spec.scoped(scope)}
    return Side(*model_inputs(columns, spec, multi_hot, rows.num_rows))


def context_side(values: Mapping[str, Encoded], spec: FeatureSpec, multi_hot: MultiHot) -> Side:
    """One row with tonight's encoded values of the features of scope `context`.

    Raises:
        ConfigError: a context feature has no value, or a value belongs to no context feature.
    """
    require_context([each.name for each in spec.scoped("context")], values)
    return Side(*model_inputs(values, spec, multi_hot, 1))


# To gather an item's part of the model costs a CPU about half as much as to score it: a list that holds this share of all items
# is scored with all of them, and what was not asked for is left out.
_NEARLY_ALL = 2 / 3


@dataclass(frozen=True)
class Lists:
    """What some consecutive users of a batch are scored against.

    Attributes:
        everyone: (A,) users, by their place among these, who are scored against all items but those excluded.
        excluded: (user, item), (X,) each: a place in `everyone` and an item index.
        listed: (L,) users who are scored against a list.
        lengths: (L,) how long each of these lists is.
        items: (Σ lengths,) item indices, list after list.
    """

    everyone: Indices
    excluded: tuple[Indices, Indices]
    listed: Indices
    lengths: Indices
    items: Indices


class CandidateLists:
    """The candidates of the users of one batch.

    Args:
        users: string, the user's key.
        candidates: list<int32> a user, item indices without repeats; null asks for every item but `excluded`.
        excluded: list<int32> a user, read where `candidates` is null; null excludes nothing.
        num_items: N; indices lie in [0, N).
    """

    def __init__(
        self, users: pa.StringArray, candidates: pa.ListArray, excluded: pa.ListArray, num_items: int
    ) -> None:
        self.users = users
        self._listed, self._excluded, self._num_items = candidates, excluded, num_items
        self._place = np.zeros(num_items, dtype=np.int64)

    def most(self) -> Indices:
        """(U,) how many candidates each user has at most: known before any list is read."""
        lengths = pc.list_value_length(self._listed).fill_null(self._num_items)
        return lengths.to_numpy(zero_copy_only=False).astype(np.int64)

    def of(self, users: slice) -> Lists:
        """The lists of some users, by whichever is less to score: all items, or those asked for.

        Raises:
            DataError: an index lies outside [0, N), or a list holds an item twice; names the user.
        """
        everyone: list[int] = []
        excluded: list[Indices] = []
        listed: list[int] = []
        items: list[Indices] = []
        for place, user in enumerate(range(users.start, users.stop)):
            if self._listed[user].is_valid:
                asked = self._read(user, self._listed[user], distinct=True)
                count = len(asked)
            else:
                gone = self._read(user, self._excluded[user], distinct=False)
                asked, count = None, self._num_items - len(gone)
            if count >= _NEARLY_ALL * self._num_items and count:
                everyone.append(place)
                excluded.append(gone if asked is None else self._others(asked))
            else:
                listed.append(place)
                items.append(self._others(gone) if asked is None else asked)
        by_user = np.repeat(np.arange(len(excluded)), [len(each) for each in excluded])
        return Lists(
            np.array(everyone, dtype=np.int64),
            (by_user, _joined(excluded)),
            np.array(listed, dtype=np.int64),
            np.array([len(each) for each in items], dtype=np.int64),
            _joined(items),
        )

    def _read(self, user: int, listed: pa.ListScalar, *, distinct: bool) -> Indices:
        if not listed.is_valid:
            return np.zeros(0, dtype=np.int64)
        indices = listed.values.to_numpy(zero_copy_only=False).astype(np.int64)
        if len(indices) and (indices.min() < 0 or indices.max() >= self._num_items):
            raise DataError(
                f"candidate indices of user {self.users[user]} lie in [{indices.min()}, {indices.max()}], "
                f"there are {self._num_items} candidate items",
                "candidates and candidate_items belong to different runs: run build_candidates again",
            )
        if distinct:
            self._require_distinct(user, indices)
        return indices

    def _others(self, items: Indices) -> Indices:
        """All items but these, ascending."""
        kept = np.ones(self._num_items, dtype=bool)
        kept[items] = False
        return np.flatnonzero(kept)

    def _require_distinct(self, user: int, indices: Indices) -> None:
        """An item's last place in the list is its only one; a place is read back only where this list wrote it."""
        places = np.arange(len(indices))
        self._place[indices] = places
        if (self._place[indices] != places).any():
            raise DataError(
                f"the candidates of user {self.users[user]} hold an item twice", "run build_candidates again"
            )


def _joined(parts: list[Indices]) -> Indices:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def blocks(most: Indices, max_places: int, least_users: int, most_users: int) -> Iterator[slice]:
    """Cuts a batch into runs of consecutive users whose number × longest list is at most `max_places`.

    Runs hold `least_users` even so, but for the last, and `most_users` at most: longer lists are cut when they are scored.
    """
    first = 0
    while first < len(most):
        widths = np.maximum.accumulate(most[first : first + most_users])
        fitting = int(np.searchsorted(widths * np.arange(1, len(widths) + 1), max_places, side="right"))
        last = min(first + max(fitting, least_users), len(most))
        yield slice(first, last)
        first = last


@dataclass(frozen=True)
class Pieces:
    """Parts of several lists, of equal width; the last one of a list may be partly empty.

    Attributes:
        list: (T,) which list each piece is of.
        place: (T,) where in its list it stands, in pieces.
        items: (T, width) item indices; 0 in empty places.
        filled: (T, width) whether a place holds an item.
    """

    list: Indices
    place: Indices
    items: Indices
    filled: NDArray[np.bool_]

    @classmethod
    def of(cls, lengths: Indices, starts: Indices, items: Indices) -> Pieces:
        """The lists items[start : start + length], in pieces as wide as is possible with few empty places."""
        width = piece_width(lengths)
        counts = -(-lengths // width)
        of_list = np.repeat(np.arange(len(lengths)), counts)
        place = np.arange(len(of_list)) - np.repeat(np.cumsum(counts) - counts, counts)
        within = place[:, None] * width + np.arange(width)  # (T, width)
        filled = within < lengths[of_list, None]
        return cls(
            of_list,
            place,
            np.where(filled, items.take(starts[of_list, None] + within, mode="clip"), 0),
            filled,
        )


_PIECE_WIDTHS = (256, 128, 64, 32, 16, 8, 4, 2)
# Empty places are scored in vain: at most this share of those that hold an item.
_EMPTY_SHARE = 0.125


def piece_width(lengths: Indices) -> int:
    """The largest power of two, up to 256, that cuts the lists into pieces with at most an eighth more places than items."""
    total = int(lengths.sum())
    for width in _PIECE_WIDTHS:
        if int((-(-lengths // width)).sum()) * width <= (1 + _EMPTY_SHARE) * total:
            return width
    return 1
