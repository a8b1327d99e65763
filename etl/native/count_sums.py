"""Adds up the counts of each distinct value, to merge the value counts of file splits and days."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from conf.errors import InfrastructureError
from etl.native.library import Handle, library, string_addresses


class Sums:
    """Adds up the counts of each distinct string, and finds the last day on which the string was seen.

    A string has a separate sum for each of `sides` groups of days, such as the training days and the test
    day.
    """

    def __init__(self, sides: int = 1) -> None:
        self._sides = sides
        self._handle = Handle(library().nightrank_sums(sides), "free_sums")

    def add(
        self, values: pa.StringArray, counts: np.ndarray, side: int = 0, day: int | np.ndarray = 0
    ) -> None:
        """Adds the count of each value to the sum of this value.

        Args:
            values: n strings, none of them null.
            counts: (n,) integers. counts[i] is the number of occurrences of values[i].
            side: index of the group of days in which the values were counted.
            day: the day on which the values were seen: one day for all values, or an array with n days.

        Raises:
            InfrastructureError: memory ran out, or there are more than 2 GiB of distinct values.
        """
        if not len(values):
            return
        counts = np.ascontiguousarray(counts, np.int64)
        days = None if isinstance(day, int) else np.ascontiguousarray(day, np.int32)
        offsets, data = string_addresses(values)
        added = library().nightrank_add(
            self._handle.address,
            side,
            len(values),
            offsets,
            data,
            counts.ctypes.data,
            day if isinstance(day, int) else 0,
            None if days is None else days.ctypes.data,
        )
        if not added:
            raise InfrastructureError(
                "the distinct values of one hash bucket of a column do not fit a worker's memory",
                "increase the memory of the Python workers",
            )

    def result(self) -> tuple[pa.StringArray, np.ndarray, np.ndarray]:
        """Returns three arrays: the distinct values, the sums of their counts, and their last days.

        There is one element for each of the n distinct values, in the order in which the values were first
        added. The sums are int64 of shape (n, sides), the days are int32 of shape (n,). The arrays use the
        memory of this object, so do not call `add` afterwards.
        """
        (count, size, *_), (offsets, data, address, *_) = self._handle.describe("summed")
        values = self._handle.strings(count, offsets, data, size)
        width = 1 + self._sides
        rows = self._handle.numbers(address, count * width, np.int64).reshape(count, width)
        return values, rows[:, 1:], rows[:, 0].astype(np.int32)


def buckets_of(values: pa.StringArray, buckets: int) -> np.ndarray:
    """Returns the hash bucket of each of n strings, shape (n,), uint32.

    The bucket of a string is its hash modulo `buckets`. So if a string is in bucket b of 2 * m buckets, the
    same string is in bucket b mod m of m buckets.

    Args:
        values: n strings, none of them null.
        buckets: number of buckets, a power of two.
    """
    indices = np.zeros(len(values), np.uint32)
    if len(values) and buckets > 1:
        offsets, data = string_addresses(values)
        library().nightrank_buckets(len(values), offsets, data, buckets, indices.ctypes.data)
    return indices
