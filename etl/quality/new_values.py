"""Compares the values of a day with those of the train days: counts new values and frequent values."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etl.quality.column_summary import TOP, most_frequent

Count = tuple[str, int, int]


@dataclass(frozen=True)
class Values:
    """The comparison of a column on a day with the same column on the train days, for all or some values.

    A cell is the content of the column in one row. Nulls are not included. If a comparison includes a value,
    it includes all cells with this value. So two comparisons can be added if no value is in both.

    Attributes:
        train_cells, day_cells: number of cells on the train days, and number of cells on the day.
        train_distinct: number of different values on the train days.
        new_cells: number of the day's cells whose value does not occur on any train day.
        new_distinct: number of different values in these new cells.
        top: the most frequent values on the train days, as triples (value, number of cells on the train days,
            number of cells on the day). They are sorted by descending number of cells on the train days, then
            by value.
        new_top: the most frequent new values, as triples (value, 0, number of cells on the day). They are
            sorted by descending number of cells, then by value.
    """

    train_cells: int = 0
    day_cells: int = 0
    train_distinct: int = 0
    new_cells: int = 0
    new_distinct: int = 0
    top: tuple[Count, ...] = ()
    new_top: tuple[Count, ...] = ()

    def __add__(self, other: Values) -> Values:
        return Values(
            self.train_cells + other.train_cells,
            self.day_cells + other.day_cells,
            self.train_distinct + other.train_distinct,
            self.new_cells + other.new_cells,
            self.new_distinct + other.new_distinct,
            tuple(sorted((*self.top, *other.top), key=lambda entry: (-entry[1], entry[0]))[:TOP]),
            tuple(sorted((*self.new_top, *other.new_top), key=lambda entry: (-entry[2], entry[0]))[:TOP]),
        )

    def to_json(self) -> str:
        """Returns the comparison as a JSON text."""
        return json.dumps(self.__dict__)

    @classmethod
    def from_json(cls, text: str) -> Values:
        """Converts the result of `to_json` back to a comparison."""
        values = json.loads(text)
        lists = {name: tuple((v, t, d) for v, t, d in values.pop(name)) for name in ("top", "new_top")}
        return cls(**{**values, **lists})


def compare_counts(values: pa.Array, train: NDArray[np.int64], day: NDArray[np.int64]) -> Values:
    """Compares the values of a column on a day with those on the train days.

    Args:
        values: (n,) different values, without null.
        train, day: (n,) the numbers of cells with each value on the train days and on the day. Both may be 0.
    """
    new = np.where(train > 0, 0, day)
    return Values(
        train_cells=int(train.sum()),
        day_cells=int(day.sum()),
        train_distinct=int(np.count_nonzero(train)),
        new_cells=int(new.sum()),
        new_distinct=int(np.count_nonzero(new)),
        top=_top(values, train, train, day),
        new_top=_top(values, new, train, day),
    )


def _top(
    values: pa.Array, by: NDArray[np.int64], train: NDArray[np.int64], day: NDArray[np.int64]
) -> tuple[Count, ...]:
    places = most_frequent(values, by)
    texts = values.take(pa.array(places)).to_pylist()
    return tuple(zip(texts, train[places].tolist(), day[places].tolist(), strict=True))
