"""The statistics of the training rows that operators can request, and the base class for new statistics.

The attribute `needs` of an operator names the kind of statistics that its method `fit` receives. A fit
computes the statistics of all operators in rounds (etl/fit/rounds.py). It uses the value counts of the
training days if they suffice, and reads the training rows otherwise. An operator never reads rows itself.

If the rows are in the memory of one process, statistics are computed from arrays. The results equal those of
Spark's aggregates. Statistics by key are computed in parts (`GroupParts`), which are merged key by key. Parts
consist of integers, minima and maxima, so the result does not depend on how the rows are divided into parts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.ops.arrays import from_doubles

# The kinds of statistics that an operator may need:
# - moments: the exact mean and standard deviation.
# - aggregates: the result of `Operator.aggregates`.
# - quantiles: the exact quantiles for `Operator.probabilities`.
# - mergeable: the result of `Operator.statistic`.
# - counts: a vocabulary.
# - groups: a table with statistics by key, which `Operator.groups` computes.
# - external: the rows of an external table.
Need = Literal["nothing", "moments", "aggregates", "quantiles", "mergeable", "counts", "groups", "external"]


@dataclass(frozen=True)
class Moments:
    """The exact mean and standard deviation of a numeric column over the training rows, without nulls.

    Attributes:
        rows: number of values that are not null.
        mean: the mean of these values.
        std: the population standard deviation of these values. The divisor of the variance is `rows`, not
            `rows` - 1.
    """

    rows: int
    mean: float
    std: float


@dataclass(frozen=True)
class Statistics:
    """The statistics of the training rows that one step needs for its fit.

    `Operator.needs` says which statistics these are. Attributes for other statistics have their default
    values.

    Attributes:
        quantiles: maps each probability to its quantile: the smallest value v such that at least this share
            of the values is <= v. Empty if all values are null.
        merged: the result of the operator's MergeableStatistic.
        table: name of the published table with the step's vocabulary or statistics by key.
        cardinality: number of embedding rows for the ids of the step, including reserved ids.
        facts: additional JSON values, such as the values that `Operator.facts` computes.
    """

    moments: Moments | None = None
    aggregates: Mapping[str, Any] = field(default_factory=dict)
    quantiles: Mapping[float, float] = field(default_factory=dict)
    merged: Any = None
    table: str | None = None
    cardinality: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


class MergeableStatistic(ABC):
    """A statistic of one column that an operator defines. It is computed in parts, which are then merged.

    The operator sets `needs = "mergeable"` and returns an object of this class from `Operator.statistic`.
    The operator's method `fit` reads the result from `Statistics.merged`. The statistic does not have to be
    registered.

    There are two ways to compute the statistic:

    * From value counts: one task per statistic reads the files of counts one after the other, computes a
      state for each (`measure`), and merges the states. These tasks read no rows, and need no JVM. If there
      are only blocks of rows, their values are counted first.
    * From frames of rows: Python tasks of Spark compute the states of Arrow batches (`mapInArrow`). One pass
      over the rows serves all mergeable statistics of a round. Each task merges the states of its batches.
      Then one task per statistic merges the states of all tasks, so the driver receives one state for each
      statistic. On a GPU cluster, Spark copies the columns from the GPU to Python workers.

    Rules for a subclass:

    * Objects are pickled. Use a frozen dataclass whose fields can be pickled.
    * A state is `bytes`, which has at most `max_bytes` bytes, however many values it covers. A larger state
      stops the job with a DataError.
    * `merge` must be associative and commutative. `measure` must agree with `merge`: the state of two batches
      together must have the same bytes as the merged states of the two batches. A value with the count n must
      have the same effect as n equal values. Then the result does not depend on the order of values, on
      batches, partitions or machines, or on the source of the statistics. Add integers, compute minima and
      maxima, or unite sorted sets. Do not add floating-point numbers, because the sum depends on their order.
    * The state must not depend on a clock, on random numbers or on Python's `hash`.

    Attributes:
        max_bytes: maximum number of bytes of a state.
    """

    max_bytes: ClassVar[int] = 2**16

    @abstractmethod
    def measure(self, values: pa.Array, counts: np.ndarray) -> bytes:
        """Returns the state of n values; n may be 0.

        Args:
            values: (n,) values without null, as int64, double or string. For a column of lists, these are the
                elements of the lists. A value may occur more than once.
            counts: (n,) int64, the number of occurrences of each value, at least 1.
        """

    @abstractmethod
    def merge(self, first: bytes, second: bytes) -> bytes:
        """Merges the states of two sets of values into the state of both sets together."""

    @abstractmethod
    def result(self, state: bytes) -> Any:
        """Returns the statistic as a JSON value: a number, string, list or dictionary with string keys."""


# The code below computes statistics of training rows that are in the memory of one process.

_UNITS = 2.0**24  # As in etl/ops/keyed.py: sums of multiples of 6e-8 do not depend on the order of rows.
_LARGEST = 10**38  # A Spark decimal has 38 digits.
_EXACT = 2.0**53
_HALF_BITS = 31
_HALF = 2**_HALF_BITS - 1
# An exact sum is stored in several integers, called limbs. A sum has _FEW_LIMBS limbs if all numbers are
# below 2**53 units of 1 / _UNITS. If some numbers have up to 38 digits, it has _ALL_LIMBS limbs.
_FEW_LIMBS, _ALL_LIMBS = 2, 5
# Up to this number of 31-bit integers can be added as doubles without rounding.
_ROWS_ADDED_AS_DOUBLES = 2**22


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
            DataError: the rows lack this column, or a value is not a number.
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

    def sums(self) -> np.ndarray:
        """Returns the exact sum of the numbers of each group. Results for different rows can be added.

        The result has the shape (size, 1 + limbs), int64. Column 0 counts the numbers that are too large for
        a sum: their absolute value is 5e30 or more. The sum, in units of 2**-24, is the sum of limb[i] *
        2**(31 * i). There are 2 limbs, or 5 if a number has more than 53 bits. The sums of fewer than 2**32
        rows do not overflow.
        """
        units = np.rint(self.values * _UNITS)
        fits = np.abs(units) < float(_LARGEST)
        is_small = np.abs(units) < _EXACT
        whole = np.where(is_small, units, 0).astype(np.int64)
        limbs = [self._add(whole & _HALF, self.groups), self._add(whole >> _HALF_BITS, self.groups)]
        large = np.flatnonzero(fits & ~is_small)
        if len(large):
            groups = self.groups[large]
            parts = [self._add(part, groups) for part in _limbs_of_large(units[large])]
            none = np.zeros(self.size, np.int64)
            limbs = [a + b for a, b in zip([*limbs, none, none, none], parts, strict=True)]
        unfit = np.bincount(self.groups[~fits], minlength=self.size)
        return np.stack([unfit, *limbs], axis=1)

    def exact_sums(self) -> pa.Array:
        """Returns the sum of the numbers of each group, float64, as `etl.ops.keyed.exact_sum` computes it.

        The sum of a group without numbers is 0. A sum is null if its absolute value, or the absolute value of
        one of its numbers, is 5e30 or more.
        """
        return doubles_of_sums(self.sums())

    def least(self) -> np.ndarray:
        """Returns the smallest number of each group, shape (size,); infinity for a group without numbers."""
        least = np.full(self.size, np.inf)
        np.minimum.at(least, self.groups, self.values)
        return least

    def most(self) -> np.ndarray:
        """Returns the largest number of each group, shape (size,); -infinity for a group without numbers."""
        most = np.full(self.size, -np.inf)
        np.maximum.at(most, self.groups, self.values)
        return most

    def _add(self, numbers: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Returns the sums by group of (k,) integers, which have at most 31 bits."""
        if len(numbers) <= _ROWS_ADDED_AS_DOUBLES:
            return np.bincount(groups, numbers, self.size).astype(np.int64)
        sums = np.zeros(self.size, np.int64)
        np.add.at(sums, groups, numbers)
        return sums


def _limbs_of_large(units: np.ndarray) -> list[np.ndarray]:
    """Returns the 5 limbs of (k,) doubles. The doubles are whole numbers below 1e38.

    Spark converts a double to a decimal by way of the shortest string that represents the double. Arrow
    writes the same string, so parsing this string gives the same decimal.
    """
    decimals = pa.array(units).cast(pa.string()).cast(pa.decimal128(38, 0))
    words = np.frombuffer(decimals.buffers()[1], np.int64, 2 * len(units)).reshape(-1, 2)  # (k, low and high)
    low, high = words[:, 0].view(np.uint64), words[:, 1]
    return [
        (low & np.uint64(_HALF)).astype(np.int64),
        (low >> np.uint64(31)).astype(np.int64) & _HALF,
        (low >> np.uint64(62)).astype(np.int64) | ((high & (2**29 - 1)) << 2),
        (high >> 29) & _HALF,
        high >> 60,
    ]


def doubles_of_sums(sums: np.ndarray) -> pa.Array:
    """Converts results of `GroupedNumbers.sums` to float64. Each sum is rounded once.

    A sum is null if one of its numbers was too large, or if its absolute value is 5e30 or more.

    Args:
        sums: (size, 1 + limbs) int64.
    """
    unfit, limbs = sums[:, 0] > 0, _normalised(sums[:, 1:])
    negative = limbs[:, -1] < 0
    limbs = _normalised(np.where(negative[:, None], -limbs, limbs))
    # A sum of 2**127 or more has more than 38 digits. Smaller sums fit into two words of 64 bits.
    too_large = unfit | (limbs[:, 4] >= 8)
    words = np.where(too_large[:, None], 0, limbs).astype(np.uint64)
    low = words[:, 0] | (words[:, 1] << np.uint64(31)) | (words[:, 2] << np.uint64(62))
    high = (words[:, 2] >> np.uint64(2)) | (words[:, 3] << np.uint64(29)) | (words[:, 4] << np.uint64(60))
    most_high, most_low = np.uint64(_LARGEST >> 64), np.uint64(_LARGEST & (2**64 - 1))
    too_large |= (high > most_high) | ((high == most_high) & (low >= most_low))
    # The first 64 bits become a double. If any lower bit is set, the last of the 64 bits is set too. So the
    # double is rounded correctly.
    shift = np.frexp(high.astype(np.float64))[1].astype(np.uint64)
    shifts = shift > 0
    left = np.where(shifts, np.uint64(64) - shift, np.uint64(0))
    top = np.where(shifts, (high << left) | (low >> np.where(shifts, shift, np.uint64(0))), low)
    top |= (shifts & ((low << left) != 0)).astype(np.uint64)
    magnitudes = np.ldexp(top.astype(np.float64), shift.astype(np.int64)) / _UNITS
    return from_doubles(np.where(too_large, 0.0, np.where(negative, -magnitudes, magnitudes)), too_large)


def _normalised(limbs: np.ndarray) -> np.ndarray:
    """Returns sums as (size, 5) integers (limbs). The first four of each have 31 bits and no sign."""
    wide = np.zeros((len(limbs), _ALL_LIMBS), np.int64)
    wide[:, : limbs.shape[1]] = limbs
    for index in range(_ALL_LIMBS - 1):
        wide[:, index + 1] += wide[:, index] >> _HALF_BITS
        wide[:, index] &= _HALF
    return wide


@dataclass(frozen=True)
class GroupParts:
    """Statistics of some training rows by group. They can be merged with statistics of other training rows.

    Attributes:
        size: the number of groups.
        sums: maps names to arrays (size, k) int64, which are added when parts are merged. k may differ
            between parts; missing columns count as 0. An array contains either numbers of rows (k = 1) or the
            result of `GroupedNumbers.sums`.
        least: maps names to arrays (size,) float64. Merging takes the minimum of each group.
        most: maps names to arrays (size,) float64. Merging takes the maximum of each group.
    """

    size: int
    sums: Mapping[str, np.ndarray]
    least: Mapping[str, np.ndarray] = field(default_factory=dict)
    most: Mapping[str, np.ndarray] = field(default_factory=dict)

    def count(self, name: str) -> np.ndarray:
        """Returns the counts in `sums[name]`, shape (size,), int64. The array must have one column."""
        return np.ascontiguousarray(self.sums[name][:, 0])

    def regrouped(self, groups: np.ndarray, size: int) -> GroupParts:
        """Merges groups: group i becomes part of the new group `groups[i]`.

        None of the `size` new groups is empty.
        """
        order = np.argsort(groups, kind="stable")
        starts = np.searchsorted(groups[order], np.arange(size))
        if not size:
            return GroupParts(0, *({n: v[:0] for n, v in kind.items()} for kind in self._kinds()))
        return GroupParts(
            size,
            {name: np.add.reduceat(values[order], starts) for name, values in self.sums.items()},
            {name: np.minimum.reduceat(values[order], starts) for name, values in self.least.items()},
            {name: np.maximum.reduceat(values[order], starts) for name, values in self.most.items()},
        )

    def to_arrays(self) -> dict[str, pa.Array]:
        """Returns the statistics as columns: arrays of `size` values, by name."""
        arrays = {f"s/{n}/{i}": pa.array(v[:, i]) for n, v in self.sums.items() for i in range(v.shape[1])}
        arrays |= {f"l/{name}": pa.array(values) for name, values in self.least.items()}
        return arrays | {f"m/{name}": pa.array(values) for name, values in self.most.items()}

    @classmethod
    def from_table(cls, table: pa.Table) -> GroupParts:
        """Creates the object from a table with the columns of `to_arrays`. Other columns are ignored."""
        numbers = {name: table[name].to_numpy() for name in table.column_names if name[1:2] == "/"}
        sums: dict[str, list[np.ndarray]] = {}
        for column in (name for name in numbers if name.startswith("s/")):
            sums.setdefault(column[2:].rpartition("/")[0], []).append(numbers[column])
        return cls(
            len(table),
            {name: np.stack(columns, axis=1) for name, columns in sums.items()},
            {name[2:]: values for name, values in numbers.items() if name.startswith("l/")},
            {name[2:]: values for name, values in numbers.items() if name.startswith("m/")},
        )

    def _kinds(self) -> tuple[Mapping[str, np.ndarray], ...]:
        return self.sums, self.least, self.most


def concat_groups(parts: Sequence[GroupParts]) -> GroupParts:
    """Returns the groups of all parts, one after the other. `parts` must not be empty."""
    first = parts[0]

    def joined(name: str) -> np.ndarray:
        arrays = [part.sums[name] for part in parts]
        width = max(array.shape[1] for array in arrays)
        return np.concatenate([np.pad(array, ((0, 0), (0, width - array.shape[1]))) for array in arrays])

    return GroupParts(
        sum(part.size for part in parts),
        {name: joined(name) for name in first.sums},
        {name: np.concatenate([part.least[name] for part in parts]) for name in first.least},
        {name: np.concatenate([part.most[name] for part in parts]) for name in first.most},
    )


def merge_groups(keys: Sequence[pa.Array], parts: Sequence[GroupParts]) -> tuple[pa.Array, GroupParts]:
    """Merges parts by key. Returns the (size,) distinct keys, ascending by their bytes, and the merged part.

    `keys` has one array of strings without nulls for each part.
    """
    coded = pa.concat_arrays(keys).dictionary_encode()
    order = pc.sort_indices(coded.dictionary)
    position = np.empty(len(order), np.int64)
    position[order.to_numpy()] = np.arange(len(order))
    merged = concat_groups(parts).regrouped(position[coded.indices.to_numpy()], len(order))
    return coded.dictionary.take(order), merged


def count_distinct(values: pa.Array) -> int:
    """Returns the number of distinct values. Null is not counted, and -0.0 equals 0.0."""
    present = pc.add(values, 0.0) if pa.types.is_floating(values.type) else values
    return int(pc.count_distinct(present, mode="only_valid").as_py())


def extremes(values: pa.Array) -> dict[str, Any]:
    """Returns the smallest (`min`) and the largest value (`max`); None if all values are null."""
    both = pc.min_max(values).as_py()
    return {"min": both["min"], "max": both["max"]}


def merge_extremes(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the smallest and the largest value of two parts together, from the results of `extremes`."""
    merged = {}
    for name, choose in (("min", min), ("max", max)):
        present = [part[name] for part in (first, second) if part[name] is not None]
        merged[name] = choose(present, default=None)
    return merged
