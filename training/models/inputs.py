"""The inputs of a model: dense features, features made of ids, and the layout of the categorical matrix.

    categorical  (B, W) int32 or int64: one column for each feature of one id, then `max_length` columns for
                 each list of ids. A shorter list ends in PAD_ID, which adds nothing and is never trained.

Lists are padded, so a batch is one matrix. The loader permutes and slices its rows, and scoring adds a user's
row to an item's row; neither depends on which columns are lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from conf.types import MultiHot, Scope
from storage.feature_spec import PAD_ID, Feature, FeatureSpec
from training.embeddings.table import StackedEmbedding
from training.embeddings.table_factory import TableFactory


@dataclass(frozen=True)
class Inputs:
    """The inputs of a model: D dense features, C features made of ids, W columns of ids.

    Attributes:
        num_dense: D.
        cardinalities: (C,) embedding rows of each feature made of ids, lists of ids last.
        list_lengths: columns of each list, one number for each of the last features.
        pooling: how the vectors of a list's ids become one.
        names: (C,) of the features made of ids.
        tables: creates the tables.
        dense_scopes, embedded_scopes: (D,) and (C,) scopes of the features.
    """

    num_dense: int
    cardinalities: Sequence[int]
    list_lengths: Sequence[int] = ()
    pooling: Literal["sum", "mean"] = "mean"
    names: Sequence[str] = ()
    tables: TableFactory = field(default_factory=TableFactory)
    dense_scopes: Sequence[Scope] = ()
    embedded_scopes: Sequence[Scope] = ()

    @classmethod
    def of(cls, spec: FeatureSpec, multi_hot: MultiHot, tables: TableFactory | None = None) -> Inputs:
        """The inputs of a feature spec."""
        return cls(
            len(spec.dense),
            spec.cardinalities,
            spec.list_lengths(multi_hot),
            multi_hot.pooling,
            [feature.name for feature in spec.embedded],
            tables or TableFactory(),
            [feature.scope for feature in spec.dense],
            [feature.scope for feature in spec.embedded],
        )

    @property
    def num_embedded(self) -> int:
        """C. Each feature made of ids becomes one vector, also a list of ids."""
        return len(self.cardinalities)

    def table(self, dim: int, *, by_ftrl: bool = False) -> StackedEmbedding:
        """A table of `dim` numbers a row for all features made of ids.

        Args:
            dim: numbers a row.
            by_ftrl: whether FTRL trains it. This counts for the memory of a rank.
        """
        return self.tables.table(
            self.cardinalities, dim, self.list_lengths, self.pooling, self.names, by_ftrl=by_ftrl
        )


def id_columns(spec: FeatureSpec, multi_hot: MultiHot) -> list[tuple[Feature, slice]]:
    """The columns of the categorical matrix for each feature of `spec.embedded`."""
    widths = [*[1] * len(spec.categorical), *spec.list_lengths(multi_hot)]
    ends = np.cumsum([0, *widths]).tolist()
    return [
        (feature, slice(start, start + width))
        for feature, start, width in zip(spec.embedded, ends, widths, strict=False)
    ]


def pad_lists(lists: pa.ListArray, length: int) -> NDArray[np.int32]:
    """(rows, length) int32: the first `length` ids of each list, then PAD_ID; null is as an empty list."""
    offsets = lists.offsets.to_numpy()
    starts = offsets[:-1].astype(np.int64)
    counts = np.minimum(np.diff(offsets), length)
    if lists.null_count:
        counts = np.where(lists.is_null().to_numpy(zero_copy_only=False), 0, counts)
    columns = np.arange(length)
    filled = columns < counts[:, None]  # (rows, length)
    padded = np.full((len(lists), length), PAD_ID, dtype=np.int32)
    padded[filled] = lists.values.to_numpy()[(starts[:, None] + columns)[filled]]
    return padded
