"""What enters a model: how many dense features, which ids, and how the ids stand in the categorical matrix.

    categorical  (B, W) int32 or int64: a column for each feature of one id, then for each list of ids as many columns as ids of it
                 count; a shorter list ends in PAD_ID, which adds nothing and is never trained.

A list is padded, not jagged, so that a batch stays one matrix: the loader permutes and slices it, and scoring adds a
user's row to an item's row, without knowing of lists.
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
    """The inputs of a model. D dense features, C features made of ids, W columns of ids.

    Attributes:
        num_dense: D.
        cardinalities: (C,) embedding rows of each feature made of ids, lists of ids last.
        list_lengths: ids that count of each list; one number for each of the last features.
        pooling: how the vectors of a list's ids become one.
        names: (C,) what the features are called in the log.
        keeping: how tables are stored and trained, and on which ranks.
        dense_scopes, embedded_scopes: (D,) and (C,) on which side each feature lives.
    """

    num_dense: int
    cardinalities: Sequence[int]
    list_lengths: Sequence[int] = ()
    pooling: Literal["sum", "mean"] = "mean"
    names: Sequence[str] = ()
    keeping: TableFactory = field(default_factory=TableFactory)
    dense_scopes: Sequence[Scope] = ()
    embedded_scopes: Sequence[Scope] = ()

    @classmethod
    def of(cls, spec: FeatureSpec, multi_hot: MultiHot, keeping: TableFactory | None = None) -> Inputs:
        return cls(
            len(spec.dense),
            spec.cardinalities,
            spec.list_lengths(multi_hot),
            multi_hot.pooling,
            [each.name for each in spec.embedded],
            keeping or TableFactory(),
            [each.scope for each in spec.dense],
            [each.scope for each in spec.embedded],
        )

    @property
    def num_embedded(self) -> int:
        """C: each feature made of ids becomes one vector, whether it is one id or a list."""
        return len(self.cardinalities)

    def table(self, dim: int, *, by_ftrl: bool = False) -> StackedEmbedding:
        """A table of `dim` numbers a row for all features made of ids; its rows lie where `keeping` says.

        Args:
            by_ftrl: whether FTRL trains it, whose state takes memory of its own.
        """
        return self.keeping.table(
            self.cardinalities, dim, self.list_lengths, self.pooling, self.names, by_ftrl=by_ftrl
        )


def id_columns(spec: FeatureSpec, multi_hot: MultiHot) -> list[tuple[Feature, slice]]:
    """Where each feature of `spec.embedded` stands among the columns of the categorical matrix."""
    widths = [*[1] * len(spec.categorical), *spec.list_lengths(multi_hot)]
    ends = np.cumsum([0, *widths]).tolist()
    return [
        (feature, slice(start, start + width))
        for feature, start, width in zip(spec.embedded, ends, widths, strict=False)
    ]


def pad_lists(lists: pa.ListArray, length: int) -> NDArray[np.int32]:
    """(rows, length) the first `length` ids of each list, then PAD_ID; int32. A null list counts as an empty one."""
    offsets = lists.offsets.to_numpy()
    starts = offsets[:-1].astype(np.int64)
    held = np.minimum(np.diff(offsets), length)
    if lists.null_count:
        held = np.where(lists.is_null().to_numpy(zero_copy_only=False), 0, held)
    places = np.arange(length)
    filled = places < held[:, None]  # (rows, length)
    padded = np.full((len(lists), length), PAD_ID, dtype=np.int32)
    padded[filled] = lists.values.to_numpy()[(starts[:, None] + places)[filled]]
    return padded
