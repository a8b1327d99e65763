"""Which rank holds which rows of a table: a plain value, the same on every rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from training.embeddings.rows import RowBlock


@dataclass(frozen=True)
class Home:
    """Where the rows of one feature are.

    Attributes:
        kind: on all ranks (`replicated`), on one (`table_wise`), or row i on rank (i + rank) % ranks (`row_wise`). Ids are
            ordered by frequency: neighbouring rows on one rank would be all the hot ones.
        rank: the one that has the table; of rows that are spread, the one that has row 0. 0 where all have them.
    """

    kind: Literal["replicated", "table_wise", "row_wise"]
    rank: int = 0


@dataclass(frozen=True)
class Placement:
    """The homes of a table's features, and what follows for each rank.

    Attributes:
        cardinalities: rows of each feature.
        homes: one for each feature.
        ranks: R.
    """

    cardinalities: tuple[int, ...]
    homes: tuple[Home, ...]
    ranks: int = 1

    @property
    def exchanges(self) -> bool:
        """Whether any rows are on some ranks only."""
        return any(home.kind != "replicated" for home in self.homes)

    def blocks(self, rank: int) -> tuple[RowBlock, ...]:
        """The rows that a rank holds, in their order in its matrix: first those that all ranks hold, at equal places."""
        held = list(self._held(rank))
        places = accumulate((rows for _, _, _, rows in held), initial=0)
        return tuple(
            RowBlock(feature, first, step, rows, place, rank == 0 or self.homes[feature].kind != "replicated")
            for (feature, first, step, rows), place in zip(held, places, strict=False)
        )

    def rows_of(self, rank: int) -> int:
        """Rows of a rank's matrix."""
        return sum(rows for _, _, _, rows in self._held(rank))

    @property
    def replicated_rows(self) -> int:
        """Rows that every rank holds, at the beginning of its matrix."""
        pairs = zip(self.cardinalities, self.homes, strict=True)
        return sum(rows for rows, home in pairs if home.kind == "replicated")

    def _held(self, rank: int) -> Iterator[tuple[int, int, int, int]]:
        """(feature, first row, step, rows) of what a rank holds."""
        for feature, home in enumerate(self.homes):
            if home.kind == "replicated":
                yield feature, 0, 1, self.cardinalities[feature]
        for feature, home in enumerate(self.homes):
            rows = self.cardinalities[feature]
            first = (rank - home.rank) % self.ranks
            if home.kind == "table_wise" and rank == home.rank:
                yield feature, 0, 1, rows
            elif home.kind == "row_wise" and first < rows:
                yield feature, first, self.ranks, -(-(rows - first) // self.ranks)


def everywhere(cardinalities: Sequence[int], ranks: int = 1) -> Placement:
    """All rows on every rank."""
    return Placement(tuple(cardinalities), tuple(Home("replicated") for _ in cardinalities), ranks)
