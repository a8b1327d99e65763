"""Adds up counts per value, to merge the value counts of file splits and days."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from conf.errors import InfrastructureError
from etl.native.library import Handle, library, string_addresses


class Sums:
    """Sums of counts for each value, and the last day on which the value was seen.

    A value has one sum for each of `sides` groups of days, such as the training days and the test day.
    """

    def __init__(self, sides: int = 1) -> None:
        self._sides = sides
        self._handle = Handle(library().nightrank_sums(sides), "free_sums")

    def add(
        self, values: pa.StringArray, counts: np.ndarray, side: int = 0, day: int | np.ndarray = 0
    ) -> None:
        """Adds counts of values.

        Args:
            values: n strings, none of them null.
            counts: (n,) integers.
            side: index of the group of days to which the counts belong.
            day: day on which the values were seen, or (n,) days.

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
        """Returns the n distinct values, their (n, sides) int64 sums, and their (n,) int32 last days.

        Values are in the order of their first `add`. The arrays use the memory of this object, so do not call
        `add` afterwards.
        """
        (count, size, *_), (offsets, data, sums, last, _) = self._handle.describe("summed")
        values = self._handle.strings(count, offsets, data, size)
        totals = self._handle.numbers(sums, count * self._sides, np.int64).reshape(count, self._sides)
        return values, totals, self._handle.numbers(last, count, np.int32)


def buckets_of(values: pa.StringArray, buckets: int) -> np.ndarray:
    """Returns (n,) uint32: the bucket of each of n strings, which is its hash modulo `buckets`.

    Buckets are nested: if a value is in bucket b of 2 * n buckets, it is in bucket b mod n of n buckets.

    Args:
        values: none may be null.
        buckets: number of buckets, a power of two.
    """
    indices = np.zeros(len(values), np.uint32)
    if len(values) and buckets > 1:
        offsets, data = string_addresses(values)
        library().nightrank_buckets(len(values), offsets, data, buckets, indices.ctypes.data)
    return indices
