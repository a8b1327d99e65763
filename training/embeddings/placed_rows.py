"""The placement of a table's rows on ranks. All ranks have the same placement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from training.embeddings.rows import RowBlock


@dataclass(frozen=True)
class FeaturePlacement:
    """The ranks that hold the rows of one feature.

    Attributes:
        kind: `replicated`: all ranks hold all rows. `table_wise`: one rank holds all rows. `row_wise`: row i
            is on rank (i + rank) % ranks. Ids are ordered by frequency, so if consecutive rows were on one
            rank, that rank would hold all frequent rows.
        rank: for `table_wise`, the rank that holds the rows; for `row_wise`, the rank that holds row 0; for
            `replicated`, 0.
    """

    kind: Literal["replicated", "table_wise", "row_wise"]
    rank: int = 0


@dataclass(frozen=True)
class Placement:
    """The placement of all features of a table.

    Attributes:
        cardinalities: number of rows of each feature.
        features: the placement of each feature.
        ranks: number of ranks.
    """

    cardinalities: tuple[int, ...]
    features: tuple[FeaturePlacement, ...]
    ranks: int = 1

    @property
    def exchanges(self) -> bool:
        """Returns whether some rows are not on all ranks, so that ranks must exchange rows."""
        return any(feature.kind != "replicated" for feature in self.features)

    def blocks(self, rank: int) -> tuple[RowBlock, ...]:
        """Returns the blocks of rows that a rank holds, in the order of the rank's matrix.

        Replicated rows come first, so they have the same position on all ranks.
        """
        runs = list(self._runs(rank))
        places = accumulate((rows for _, _, _, rows in runs), initial=0)
        return tuple(
            RowBlock(
                feature, first, step, rows, place, rank == 0 or self.features[feature].kind != "replicated"
            )
            for (feature, first, step, rows), place in zip(runs, places, strict=False)
        )

    def rows_of(self, rank: int) -> int:
        """Returns the number of rows of a rank's matrix."""
        return sum(rows for _, _, _, rows in self._runs(rank))

    @property
    def replicated_rows(self) -> int:
        """Returns the number of rows that all ranks hold. They are the first rows of each rank's matrix."""
        pairs = zip(self.cardinalities, self.features, strict=True)
        return sum(rows for rows, feature in pairs if feature.kind == "replicated")

    def _runs(self, rank: int) -> Iterator[tuple[int, int, int, int]]:
        """Yields (feature, first row, step, number of rows) for each block of rows that a rank holds."""
        for index, feature in enumerate(self.features):
            if feature.kind == "replicated":
                yield index, 0, 1, self.cardinalities[index]
        for index, feature in enumerate(self.features):
            rows = self.cardinalities[index]
            first = (rank - feature.rank) % self.ranks
            if feature.kind == "table_wise" and rank == feature.rank:
                yield index, 0, 1, rows
            elif feature.kind == "row_wise" and first < rows:
                yield index, first, self.ranks, -(-(rows - first) // self.ranks)


def replicate_all(cardinalities: Sequence[int], ranks: int = 1) -> Placement:
    """Returns the placement that puts all rows on all ranks."""
    features = tuple(FeaturePlacement("replicated") for _ in cardinalities)
    return Placement(tuple(cardinalities), features, ranks)
