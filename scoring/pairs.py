"""(user, item) pairs: which ones a batch of users asks for, and their model input, assembled on the device by index.

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
from conf.feature_spec import FeatureSpec
from conf.types import MultiHot, Scope
from scoring.contract import Encoded, require_context
from scoring.predictor import model_inputs

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Side:
    """Inputs of one side: dense (R, D) float32 and categorical (R, W) int64, zero where the other side's stand."""

    dense: Tensor
    categorical: Tensor

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


@dataclass(frozen=True)
class CandidateLists:
    """The candidates of the users of one batch.

    Attributes:
        candidates: list<int32> a user, item indices without repeats; null asks for every item but `excluded`.
        excluded: list<int32> a user, read where `candidates` is null; null excludes nothing.
        users: string, the user's key.
        num_items: N; indices lie in [0, N).
    """

    users: pa.StringArray
    candidates: pa.ListArray
    excluded: pa.ListArray
    num_items: int

    def most(self) -> Indices:
        """(U,) how many candidates each user has at most: known before any list is made."""
        lengths = pc.list_value_length(self.candidates).fill_null(self.num_items)
        return lengths.to_numpy(zero_copy_only=False).astype(np.int64)

    def of(self, user: int) -> Indices:
        """Item indices of one user of the batch.

        Raises:
            DataError: an index lies outside [0, N).
        """
        listed = self.candidates[user]
        if listed.is_valid:
            return self._checked(user, listed)
        excluded = self.excluded[user]
        if not excluded.is_valid:
            return np.arange(self.num_items)
        kept = np.ones(self.num_items, dtype=bool)
        kept[self._checked(user, excluded)] = False
        return np.flatnonzero(kept)

    def _checked(self, user: int, listed: pa.ListScalar) -> Indices:
        indices = listed.values.to_numpy(zero_copy_only=False).astype(np.int64)
        if len(indices) and (indices.min() < 0 or indices.max() >= self.num_items):
            raise DataError(
                f"candidate indices of user {self.users[user]} lie in [{indices.min()}, {indices.max()}], "
                f"there are {self.num_items} candidate items",
                "candidates and candidate_items belong to different runs: run build_candidates again",
            )
        return indices


@dataclass(frozen=True)
class Block:
    """Consecutive users of a batch with all their candidates: `item` (P,) holds list after list, of `lengths` (U,)."""

    first_user: int
    lengths: Indices
    item: Indices

    @property
    def user(self) -> Indices:
        """(P,) row of the batch each pair's user stands in."""
        return np.repeat(np.arange(self.first_user, self.first_user + len(self.lengths)), self.lengths)

    @property
    def place(self) -> Indices:
        """(P,) place of each pair in its user's list, from 0."""
        starts = np.cumsum(self.lengths) - self.lengths
        return np.arange(len(self.item)) - np.repeat(starts, self.lengths)


def blocks(lists: CandidateLists, max_places: int) -> Iterator[Block]:
    """Cuts a batch into blocks whose users × longest list is at most `max_places`; a single user is never cut."""
    most = lists.most()
    first = 0
    while first < len(most):
        widths = np.maximum.accumulate(most[first:])
        fitting = int(np.searchsorted(widths * np.arange(1, len(widths) + 1), max_places, side="right"))
        last = first + max(fitting, 1)
        chosen = [lists.of(user) for user in range(first, last)]
        yield Block(first, np.array([len(each) for each in chosen]), np.concatenate(chosen))
        first = last
