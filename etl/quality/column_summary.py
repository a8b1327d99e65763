"""Computes the summary of a column, such as its most frequent values, from its value counts.

The profile of a day contains a summary of each column. Two summaries of a column can be added if they have no
value in common.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from operator import mul
from typing import Literal, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from etl.quality.checks import Number
from etl.workflow.feature_plan import FeaturePlan
from metrics.psi import bin_keys

TOP = 20

# Every finite double is a multiple of 2**-1074, so sums in this unit are exact in any order.
_UNIT = 2**1074


@dataclass(frozen=True)
class ColumnSummary:
    """Figures of a column, computed from all or some of its distinct values.

    A cell is the content of the column in one row. A summary that includes a value counts all cells with this
    value. So two summaries can be added if they have no value in common.

    Attributes:
        nulls, cells: number of cells that are null, and number of cells that are not null.
        distinct: number of distinct values.
        top: the 20 most frequent values, as pairs (value, number of cells), in descending order of the number
            of cells. Values with the same number of cells are in ascending order. Strings are ordered by
            their UTF-8 bytes.
        low, high: minimum and maximum of a numeric column; None for a text column.
        total: sum over the cells of a numeric column, in units of 2**-1074; 0 for a text column.
        bins: maps each bin key (metrics.psi) to the number of cells in this bin; None for a text
            column.
    """

    nulls: int = 0
    cells: int = 0
    distinct: int = 0
    top: tuple[tuple[str | Number, int], ...] = ()
    low: Number | None = None
    high: Number | None = None
    total: int = 0
    bins: Mapping[int, int] | None = None

    @property
    def mean(self) -> float | None:
        """Returns the mean of a numeric column; None for a text column, or if all cells are null."""
        return None if self.low is None else float(Fraction(self.total, self.cells * _UNIT))

    def __add__(self, other: ColumnSummary) -> ColumnSummary:
        lows = [part.low for part in (self, other) if part.low is not None]
        highs = [part.high for part in (self, other) if part.high is not None]
        bins = Counter(self.bins or {}) + Counter(other.bins or {})
        return ColumnSummary(
            nulls=self.nulls + other.nulls,
            cells=self.cells + other.cells,
            distinct=self.distinct + other.distinct,
            top=tuple(sorted((*self.top, *other.top), key=lambda entry: (-entry[1], entry[0]))[:TOP]),
            low=min(lows, default=None),
            high=max(highs, default=None),
            total=self.total + other.total,
            bins=None if self.bins is None and other.bins is None else dict(bins),
        )

    def to_json(self) -> str:
        """Returns the summary as a JSON string."""
        return json.dumps({**asdict(self), "bins": self.bins and list(self.bins.items())})

    @classmethod
    def from_json(cls, text: str) -> ColumnSummary:
        """Converts the result of `to_json` back to a summary."""
        values = json.loads(text)
        top = tuple((value, count) for value, count in values.pop("top"))
        bins = values.pop("bins")
        return cls(**values, top=top, bins=None if bins is None else dict(bins))


def summarise(values: pa.Array, counts: pa.Array, kind: Kind) -> ColumnSummary:
    """Returns the summary of n distinct values.

    Args:
        values: (n,) the values as strings. At most one value is null.
        counts: (n,) counts[i] is the number of cells with values[i].
        kind: "string", "int" or "float" (etl.quality.column_summary.CountedColumn).
    """
    nulls = 0
    if values.null_count:
        nulls = int(pc.sum(counts.filter(values.is_null())).as_py())
        valid = values.is_valid()
        values, counts = values.filter(valid), counts.filter(valid)
    if not len(values):
        return ColumnSummary(nulls=nulls)
    return summarise_values(values, counts.to_numpy(), kind) + ColumnSummary(nulls=nulls)


def summarise_values(values: pa.Array, counts: NDArray[np.int64], kind: Kind) -> ColumnSummary:
    """Returns the summary of n distinct values, without those whose count is 0.

    Args:
        values: (n,) the values as strings, without null.
        counts: (n,) counts[i] is the number of cells with values[i], which may be 0.
        kind: as for `summarise`.
    """
    distinct, cells = int(np.count_nonzero(counts)), int(counts.sum())
    if not distinct:
        return ColumnSummary()
    if kind == "string":
        places = most_frequent(values, counts)
        top = tuple(zip(values.take(pa.array(places)).to_pylist(), counts[places].tolist(), strict=True))
        return ColumnSummary(0, cells, distinct, top)
    occurring = np.flatnonzero(counts)
    typed = _numbers(values.take(pa.array(occurring)), kind)
    places = most_frequent(typed, counts[occurring])
    numbers, times = typed.to_pylist(), counts[occurring].tolist()
    top = tuple((numbers[place], times[place]) for place in places)
    keys, position = np.unique(bin_keys(np.array(numbers, np.float64)), return_inverse=True)
    in_bin = np.zeros(len(keys), np.int64)
    np.add.at(in_bin, position, np.asarray(times, np.int64))
    bins = dict(zip(keys.tolist(), in_bin.tolist(), strict=True))
    if kind == "int":
        total = sum(map(mul, numbers, times)) * _UNIT
    elif kind == "float":
        total = _exact_sum(np.array(numbers), np.asarray(times, np.int64))
    else:
        assert_never(kind)
    return ColumnSummary(0, cells, distinct, top, min(numbers), max(numbers), total, bins)


def most_frequent(values: pa.Array, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the positions of the TOP values with the largest counts, in descending order of the counts.

    Values with equal counts are in ascending order; strings are ordered by their UTF-8 bytes. Values with the
    count 0 are left out.

    Args:
        values: (n,) distinct values, without null. The function copies only values that are frequent enough
            for the result.
        counts: (n,) the count of each value.
    """
    least = 1
    if len(counts) > TOP:
        least = max(int(np.partition(counts, len(counts) - TOP)[len(counts) - TOP]), 1)
    # More than TOP values remain if several values have the count `least`.
    places = np.flatnonzero(counts >= least)
    if not len(places):
        return places
    table = pa.table({"value": values.take(pa.array(places)), "count": counts[places]})
    order = [("count", "descending"), ("value", "ascending")]
    best = pc.select_k_unstable(table, k=min(TOP, len(table)), sort_keys=order)
    return np.asarray(places[best.to_numpy()])


def _numbers(texts: pa.Array, kind: Kind) -> pa.Array:
    return texts.cast(pa.int64() if kind == "int" else pa.float64())


def _exact_sum(numbers: NDArray[np.float64], times: NDArray[np.int64]) -> int:
    """Returns the sum of numbers[i] * times[i] in units of 2**-1074.

    Numbers with the same exponent are summed together. Their significands have 53 bits. Each significand is
    divided into two halves of at most 31 bits. So for fewer than 2**31 cells, the sums of their products with
    the counts fit into 64 bits.
    """
    fractions, exponents = np.frexp(numbers)
    significands = np.ldexp(fractions, 53).astype(np.int64)
    by_exponent = np.argsort(exponents, kind="stable")
    kinds, starts = np.unique(exponents[by_exponent], return_index=True)
    few_cells = int(times.sum()) < 2**31
    total = 0
    for exponent, places in zip(kinds.tolist(), np.split(by_exponent, starts[1:]), strict=True):
        high, low = significands[places] >> 31, significands[places] & (2**31 - 1)
        # From 2**31 cells on, the sums use Python integers, which cannot overflow.
        of_places = times[places] if few_cells else times[places].astype(object)
        highs, lows = int((high * of_places).sum()), int((low * of_places).sum())
        shift = exponent - 53 + 1074
        units = (highs << 31) + lows
        # frexp normalizes subnormal numbers. The significands of these numbers then end with zeros, and only
        # these zeros are shifted out.
        total += units << shift if shift >= 0 else units >> -shift
    return total


# The code below lists the columns of the raw log whose values are counted for the profiles of days.

Kind = Literal["string", "int", "float"]
LABEL_CELLS = ""  # name of the label's column in value counts; no raw column has this name


@dataclass(frozen=True)
class CountedColumn:
    """A column of the raw log that a feature reads.

    Attributes:
        kind: "string" for categorical values, which are compared as text; "int" or "float" for numbers.
    """

    name: str
    kind: Kind

    @property
    def numeric(self) -> bool:
        """Returns whether the values are numbers."""
        return self.kind != "string"


def feature_columns(plan: FeaturePlan) -> list[CountedColumn]:
    """Returns the raw columns that features read, in the order of the configured features.

    If a dense feature reads a numeric column, its values are compared as numbers. The values of all other
    columns are compared as text.
    """
    types = plan.columns
    columns: dict[str, CountedColumn] = {}
    for group in plan.config.features:
        for name in group.columns:
            kind = types[name]
            if kind in ("int", "float", "string"):  # columns of lists have no profile
                columns.setdefault(name, CountedColumn(name, kind if group.kind == "dense" else "string"))
    return list(columns.values())


# The code below compares the values of a day with the values of the train days. It counts new values and
# frequent values.

Count = tuple[str, int, int]


@dataclass(frozen=True)
class Values:
    """The comparison of a column on a day with the same column on the train days, for all or some values.

    A cell is the content of the column in one row. Nulls are not included. A comparison that includes a value
    counts all cells with this value. So two comparisons can be added if they have no value in common.

    Attributes:
        train_cells, day_cells: number of cells on the train days, and number of cells on the day.
        train_distinct: number of distinct values on the train days.
        new_cells: number of the day's cells whose value does not occur on any train day.
        new_distinct: number of distinct values in these new cells.
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
        """Returns the comparison as a JSON string."""
        return json.dumps(self.__dict__)

    @classmethod
    def from_json(cls, text: str) -> Values:
        """Converts the result of `to_json` back to a comparison."""
        values = json.loads(text)
        lists = {name: tuple((v, t, d) for v, t, d in values.pop(name)) for name in ("top", "new_top")}
        return cls(**{**values, **lists})


def compare_counts(values: pa.Array, train: NDArray[np.int64], day: NDArray[np.int64]) -> Values:
    """Compares the values of a column on a day with its values on the train days.

    Args:
        values: (n,) distinct values, without null.
        train, day: (n,) the number of cells with each value on the train days, and on the day. Both may be 0.
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
