"""Types of the data report of a run date, and their conversion to and from the JSON that is published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from conf.types import Split
from metrics.psi import above_noise

Number = int | float


@dataclass(frozen=True)
class PieceRows:
    """The number of valid rows of one day in one split, and the number of clicks among these rows."""

    dt: str
    split: Split
    rows: int
    clicks: int


@dataclass(frozen=True)
class ClickRates:
    """The share of rows that are clicks, on the compared day and on the train days."""

    today: float
    train: float

    @property
    def change(self) -> float:
        """Returns the absolute value of the relative change from the train days to the compared day."""
        return abs(self.today / self.train - 1)


@dataclass(frozen=True)
class ColumnReport:
    """Figures of one raw feature column on the compared day and on the train days.

    A cell is the content of the column in one row. Attributes whose names begin with `train_` are about the
    train days.

    Attributes:
        kind: `string` for columns of categorical features, `int` or `float` for columns of dense features.
        nulls, cells: number of cells that are null, and number of cells that are not null.
        distinct, train_distinct: number of different values; `train_distinct` is None for a numeric column.
        new_cells: number of the day's cells whose value does not occur on any train day; None for a numeric
            column.
        psi, psi_noise: the population stability index (PSI) between the train days and the day, and the PSI
            that chance alone may cause (metrics.psi). Both are None if the day or the train days have no row.
        moved: the histogram bin that contributes most to the PSI, as (name of the bin, its share of the rows
            on the train days, its share of the rows on the day). None if there is no PSI.
        top: the most frequent values of the day, as (value, number of cells on the day, number of cells on
            the train days). The last number is None if it was not computed.
        new_top: the most frequent values that do not occur on any train day, as (value, number of cells on
            the day).
        low, high, mean: minimum, maximum and mean of the day's numbers; None for a text column.
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
        """Returns the share of null cells on the day."""
        return share(self.nulls, self.nulls + self.cells)

    @property
    def train_null_rate(self) -> float | None:
        """Returns the share of null cells on the train days."""
        return share(self.train_nulls, self.train_nulls + self.train_cells)

    @property
    def new_value_rate(self) -> float | None:
        """Returns the share of new cells among the day's cells that are not null.

        A cell is new if its value does not occur on any train day.
        """
        return None if self.new_cells is None else share(self.new_cells, self.cells)

    @property
    def psi_above_noise(self) -> float | None:
        """Returns the PSI, or 0 if chance alone may cause such a PSI; None if there is no PSI."""
        return None if self.psi is None else above_noise(self.psi, self.psi_noise or 0.0)


@dataclass(frozen=True)
class Comparison:
    """The comparison of a day with the train days.

    If one partition of the log is divided into splits, its test split is compared with its train split.

    Attributes:
        day: the compared day, an ISO date.
        cut: True if one partition of the log is divided into splits.
        pieces: the number of rows and the number of clicks of each day and split.
        columns: the comparison of each raw feature column.
    """

    day: str
    cut: bool
    pieces: tuple[PieceRows, ...]
    columns: tuple[ColumnReport, ...]

    @property
    def train(self) -> list[PieceRows]:
        """Returns the number of rows and the number of clicks of each train day."""
        return [piece for piece in self.pieces if piece.split == "train"]

    @property
    def today(self) -> PieceRows:
        """Returns the number of rows and the number of clicks of the compared day."""
        return next(piece for piece in self.pieces if piece.dt == self.day and piece.split == "test")

    @property
    def only_clicks(self) -> bool:
        """Returns whether every row of the log is a click, because the log records only choices."""
        return any(piece.rows for piece in self.pieces) and all(p.clicks == p.rows for p in self.pieces)

    @property
    def click_rates(self) -> ClickRates | None:
        """Returns the click rates of the day and of the train days.

        The result is None if the day has no row, if no train day has a click, or if all rows are clicks.
        """
        if self.only_clicks:
            return None
        today = share(self.today.clicks, self.today.rows)
        train = share(sum(day.clicks for day in self.train), sum(day.rows for day in self.train))
        return None if today is None or not train else ClickRates(today, train)

    def to_facts(self) -> dict[str, Any]:
        """Returns the comparison as JSON values.

        Rates such as `null_rate` are included, so that other programs need not compute them.
        """
        rates = ("null_rate", "train_null_rate", "new_value_rate")
        return {
            "day": self.day,
            "cut": self.cut,
            "pieces": [asdict(piece) for piece in self.pieces],
            "columns": [{**asdict(c), **{rate: getattr(c, rate) for rate in rates}} for c in self.columns],
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Comparison:
        """Converts the result of `to_facts` back to a comparison."""
        return cls(
            facts["day"],
            facts["cut"],
            tuple(PieceRows(**piece) for piece in facts["pieces"]),
            tuple(_column(column) for column in facts["columns"]),
        )


def share(part: int, whole: int) -> float | None:
    """Returns part / whole; None if `whole` is 0."""
    return part / whole if whole else None


def _column(values: Mapping[str, Any]) -> ColumnReport:
    known = {field.name: values[field.name] for field in fields(ColumnReport)}
    return ColumnReport(
        **{
            **known,
            "moved": None if known["moved"] is None else tuple(known["moved"]),
            "top": _tuples(known["top"]),
            "new_top": _tuples(known["new_top"]),
        }
    )


def _tuples(lists: Sequence[Sequence[Any]]) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(values) for values in lists)
