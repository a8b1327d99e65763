"""The inputs of a model: dense features, features that are ids, and the layout of the categorical matrix.

    categorical  (B, W) int32 or int64: one column for each feature with one id, then `max_length` columns for
                 each list of ids. A shorter list is padded with PAD_ID, which is ignored in lookups and never
                 trained.

Because lists are padded, the ids of a batch are one matrix. The loader permutes and slices the rows of this
matrix. Scoring adds a user's row to an item's row. The user's row has zeros in the item's columns, and the
item's row has zeros in the user's columns. The loader and scoring treat the columns of lists like other
columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from conf.types import MultiHot, Scope
from storage.feature_spec import Feature, FeatureSpec
from training.embeddings.table import StackedEmbedding
from training.embeddings.table_factory import TableFactory


@dataclass(frozen=True)
class Inputs:
    """The inputs of a model: D dense features, C features that are ids, W columns of ids.

    Attributes:
        num_dense: D, the number of dense features.
        cardinalities: (C,), the number of embedding rows of each feature that is an id; lists of ids come
            last.
        list_lengths: the number of columns of each list feature. List features come last.
        pooling: how the vectors of a list's ids are combined into one vector.
        names: (C,), the names of the features that are ids.
        tables: creates the tables.
        dense_scopes, embedded_scopes: (D,) and (C,), the scopes of the features.
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
        """Returns the inputs of a model whose features are those of a feature spec."""
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
        """Returns C, the number of vectors per row. The ids of a list also become one vector."""
        return len(self.cardinalities)

    def table(self, dim: int, *, by_ftrl: bool = False) -> StackedEmbedding:
        """Creates a table with `dim` numbers per row for all features that are ids.

        Args:
            dim: numbers per row.
            by_ftrl: whether FTRL trains the table. The memory per row depends on the optimizer.
        """
        return self.tables.table(
            self.cardinalities, dim, self.list_lengths, self.pooling, self.names, by_ftrl=by_ftrl
        )


def id_columns(spec: FeatureSpec, multi_hot: MultiHot) -> list[tuple[Feature, slice]]:
    """Returns, for each feature of `spec.embedded`, the feature and its columns in the categorical matrix."""
    widths = [*[1] * len(spec.categorical), *spec.list_lengths(multi_hot)]
    ends = np.cumsum([0, *widths]).tolist()
    return [
        (feature, slice(start, start + width))
        for feature, start, width in zip(spec.embedded, ends, widths, strict=False)
    ]
