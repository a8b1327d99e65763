"""What the data report of a run date says: JSON values, as they stand in `quality/<config name>/dt=…`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from conf.types import Split

Number = int | float


@dataclass(frozen=True)
class PieceRows:
    """The good rows of one day in one split, and how many of them are clicks."""

    dt: str
    split: Split
    rows: int
    clicks: int


@dataclass(frozen=True)
class ColumnReport:
    """One raw feature column on the compared day (`nulls`, `cells`, …) and in the training window (`train_…`).

    Attributes:
        kind: `string` for names (categorical features), `int` or `float` for numbers (dense features).
        nulls, cells: cells without and with a value.
        distinct, train_distinct: number of values; for numbers, that of the window is not known.
        new_cells: the day's cells whose value the window does not have; names only.
        psi, psi_noise: population stability index (metrics.psi), and what chance alone may make it; None where one
            side has no row.
        moved: (bin that adds most to the PSI, its share in the window, its share on the day).
        top: (value, cells on the day, cells in the window or None), most frequent on the day first.
        new_top: (value, cells on the day) of the most frequent new values.
        low, high, mean: of the day's numbers.
    """

    name: str
    kind: str
    nulls: int
    cells: int
    train_nulls: int
    train_cells: int
    distinct: int
    train_distinct: int | None
    new_cells: int | None
    psi: float | None
    psi_noise: float | None
    moved: tuple[str, float, float] | None
    top: tuple[tuple[str | Number, int, int | None], ...]
    new_top: tuple[tuple[str, int], ...]
    low: Number | None
    high: Number | None
    mean: float | None

    @property
    def null_rate(self) -> float | None:
        return share(self.nulls, self.nulls + self.cells)

    @property
    def train_null_rate(self) -> float | None:
        return share(self.train_nulls, self.train_nulls + self.train_cells)

    @property
    def new_value_rate(self) -> float | None:
        """Share of the day's cells with a value whose value the training window does not have."""
        return None if self.new_cells is None else share(self.new_cells, self.cells)


@dataclass(frozen=True)
class Comparison:
    """The day `day` (its split, for a log cut inside one partition) against the training window; names no limit."""

    day: str
    cut: bool
    pieces: tuple[PieceRows, ...]
    columns: tuple[ColumnReport, ...]

    @property
    def train(self) -> list[PieceRows]:
        return [piece for piece in self.pieces if piece.split == "train"]

    @property
    def today(self) -> PieceRows:
        return next(piece for piece in self.pieces if piece.dt == self.day and piece.split == "test")

    def to_facts(self) -> dict[str, Any]:
        """JSON values, rates included for readers that are not ours."""
        rates = ("null_rate", "train_null_rate", "new_value_rate")
        return {
            "day": self.day,
            "cut": self.cut,
            "pieces": [asdict(piece) for piece in self.pieces],
            "columns": [{**asdict(c), **{rate: getattr(c, rate) for rate in rates}} for c in self.columns],
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Comparison:
        return cls(
            facts["day"],
            facts["cut"],
            tuple(PieceRows(**piece) for piece in facts["pieces"]),
            tuple(_column(column) for column in facts["columns"]),
        )


def share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _column(values: Mapping[str, Any]) -> ColumnReport:
    known = {each.name: values[each.name] for each in fields(ColumnReport)}
    return ColumnReport(
        **{
            **known,
            "moved": None if known["moved"] is None else tuple(known["moved"]),
            "top": _tuples(known["top"]),
            "new_top": _tuples(known["new_top"]),
        }
    )


def _tuples(lists: Sequence[Sequence[Any]]) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(each) for each in lists)
