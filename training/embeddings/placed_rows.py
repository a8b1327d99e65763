"""The placement of a table's rows on ranks. All ranks have the same placement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, assert_never

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
        hot: for each feature, the number of its first rows that are in the memory of the devices of their
            ranks. The other rows, the tail, are in host memory. None if all rows are on the devices.
    """

    cardinalities: tuple[int, ...]
    features: tuple[FeaturePlacement, ...]
    ranks: int = 1
    hot: tuple[int, ...] | None = None

    @property
    def exchanges(self) -> bool:
        """Returns whether some rows are not on all ranks, so that ranks must exchange rows."""
        return any(feature.kind != "replicated" for feature in self.features)

    def blocks(self, rank: int) -> tuple[RowBlock, ...]:
        """Returns the blocks of rows that a rank holds.

        Replicated rows come first, so they have the same position on all ranks. The order is that of the
        rank's matrix. With a tail, the matrix has all hot rows first; a feature's hot rows are followed here
        by its tail.
        """
        hot_place, tail_place, blocks = 0, self.first_tail, []
        for feature, first, step, rows in self._runs(rank):
            written = rank == 0 or self.features[feature].kind != "replicated"
            hot = self._hot_rows(feature, first, step, rows)
            if hot or self.hot is None:
                blocks.append(RowBlock(feature, first, step, hot, hot_place, written))
            if hot < rows:
                blocks.append(RowBlock(feature, first + hot * step, step, rows - hot, tail_place, written))
            hot_place, tail_place = hot_place + hot, tail_place + rows - hot
        return tuple(blocks)

    @cached_property
    def first_tail(self) -> int:
        """Returns the index of the first row of the tail in a rank's matrix: the same on all ranks.

        It is the largest number of hot rows of a rank.
        """
        return max(self.hot_rows_of(rank) for rank in range(self.ranks))

    def rows_of(self, rank: int) -> int:
        """Returns the number of rows of a rank's matrix."""
        return sum(rows for _, _, _, rows in self._runs(rank))

    def hot_rows_of(self, rank: int) -> int:
        """Returns how many rows of a rank's matrix are on the device; all of them if there is no tail."""
        return sum(self._hot_rows(*run) for run in self._runs(rank))

    def tail_rows_of(self, rank: int) -> int:
        """Returns how many rows of a rank's matrix are in host memory."""
        return self.rows_of(rank) - self.hot_rows_of(rank)

    def end_of(self, rank: int) -> int:
        """Returns a number that is larger than every index of a row of a rank's matrix."""
        return self.rows_of(rank) if self.hot is None else self.first_tail + self.tail_rows_of(rank)

    def _hot_rows(self, feature: int, first: int, step: int, rows: int) -> int:
        """Returns how many rows of a run are hot: its first ones, because each run is in the order of ids."""
        if self.hot is None:
            return rows
        return min(max(-(-(self.hot[feature] - first) // step), 0), rows)

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
            if feature.kind == "table_wise":
                if rank == feature.rank:
                    yield index, 0, 1, rows
            elif feature.kind == "row_wise":
                if first < rows:
                    yield index, first, self.ranks, -(-(rows - first) // self.ranks)
            elif feature.kind != "replicated":  # those come first, above
                assert_never(feature.kind)


def replicate_all(cardinalities: Sequence[int], ranks: int = 1) -> Placement:
    """Returns the placement that puts all rows on all ranks."""
    features = tuple(FeaturePlacement("replicated") for _ in cardinalities)
    return Placement(tuple(cardinalities), features, ranks)
