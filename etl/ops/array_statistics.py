"""Statistics of training rows in the memory of one process. They equal those that Spark aggregates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.ops.doubles import from_doubles

_UNITS = 2.0**24  # as in etl/ops/keyed.py: sums of multiples of 6e-8 do not depend on the order of rows
_LARGEST = 10**38  # a Spark decimal has 38 digits
_EXACT = 2.0**53
_HALF_BITS = 31


@dataclass(frozen=True)
class GroupedRows:
    """Training rows that are divided into groups by a key. Rows without a key are left out.

    Attributes:
        numbers: returns a numeric raw column by name, as (n,) float64, and an (n,) bool array that is true
            for nulls. n is the number of all training rows.
        row_ids: (n,) int64, the position of each training row.
        rows: (m,) int64, the indices of the rows that have a key.
        groups: (m,) int64, the group of each of these rows.
        size: the number of groups.
    """

    numbers: Callable[[str], tuple[np.ndarray, np.ndarray]]
    row_ids: np.ndarray
    rows: np.ndarray
    groups: np.ndarray
    size: int

    def column(self, name: str) -> GroupedNumbers:
        """Returns the values of a numeric column that are not null.

        Raises:
            DataError: the rows lack this column, or a value does not fit.
        """
        values, nulls = self.numbers(name)
        return GroupedNumbers(values[self.rows], self.groups, self.size).where(~nulls[self.rows])

    def counts(self) -> np.ndarray:
        """Returns the number of rows of each group, shape (size,), int64."""
        return np.bincount(self.groups, minlength=self.size)


@dataclass(frozen=True)
class GroupedNumbers:
    """Numbers without nulls, and their groups.

    Attributes:
        values: (k,) float64.
        groups: (k,) int64.
        size: the number of groups.
    """

    values: np.ndarray
    groups: np.ndarray
    size: int

    def where(self, chosen: np.ndarray) -> GroupedNumbers:
        """Returns the numbers for which the (k,) bool array `chosen` is true."""
        return GroupedNumbers(self.values[chosen], self.groups[chosen], self.size)

    def counts(self) -> np.ndarray:
        """Returns how many numbers each group has, shape (size,), int64."""
        return np.bincount(self.groups, minlength=self.size)

    def exact_sums(self) -> pa.Array:
        """Returns the sum of the numbers of each group, float64, as `etl.ops.keyed.exact_sum` computes it.

        The sum of a group without numbers is 0. It is null if the absolute value of a number, or of the sum,
        is 5e30 or more.
        """
        units = np.rint(self.values * _UNITS)
        fits = np.abs(units) < float(_LARGEST)
        is_small = np.abs(units) < _EXACT
        whole = np.where(is_small, units, 0).astype(np.int64)
        # Each half has at most 31 bits, so the sums of fewer than 2**32 rows fit.
        high = self._add(whole >> _HALF_BITS)
        low = self._add(whole & (2**_HALF_BITS - 1))
        if is_small.all() and np.all(np.abs(high) < 2**_HALF_BITS) and np.all(low < 2**61):
            # The totals fit in 64 bits.
            return pa.array((high * 2**_HALF_BITS + low).astype(np.float64) / _UNITS)
        totals = high.astype(object) * 2**_HALF_BITS + low.astype(object)
        for index in np.flatnonzero(fits & ~is_small).tolist():
            # Spark converts a double to a decimal by its shortest notation.
            totals[self.groups[index]] += int(Decimal(repr(float(units[index]))))
        too_large = np.array([abs(total) >= _LARGEST for total in totals], bool)
        too_large |= np.bincount(self.groups[~fits], minlength=self.size) > 0
        sums = np.where(too_large, 0, totals).astype(np.float64) / _UNITS
        return from_doubles(sums, too_large)

    def least(self) -> np.ndarray:
        """Returns the least number of each group, shape (size,); infinity for a group without numbers."""
        least = np.full(self.size, np.inf)
        np.minimum.at(least, self.groups, self.values)
        return least

    def most(self) -> np.ndarray:
        """Returns the largest number of each group, shape (size,); -infinity for a group without numbers."""
        most = np.full(self.size, -np.inf)
        np.maximum.at(most, self.groups, self.values)
        return most

    def _add(self, numbers: np.ndarray) -> np.ndarray:
        sums = np.zeros(self.size, np.int64)
        np.add.at(sums, self.groups, numbers)
        return sums


def count_distinct(values: pa.Array) -> int:
    """Returns the number of distinct values. Null is not counted, and -0.0 equals 0.0."""
    present = pc.add(values, 0.0) if pa.types.is_floating(values.type) else values
    return int(pc.count_distinct(present, mode="only_valid").as_py())


def extremes(values: pa.Array) -> dict[str, Any]:
    """Returns the least (`min`) and the largest value (`max`); None if all values are null."""
    both = pc.min_max(values).as_py()
    return {"min": both["min"], "max": both["max"]}
