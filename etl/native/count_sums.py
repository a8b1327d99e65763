"""Adds up counts per value, to merge the value counts of file splits and days."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from conf.errors import InfrastructureError
from etl.native.library import Handle, library, string_addresses


class Sums:
    """Counts per value and side (for example training days and today), and the last day of each value."""

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
            side: index of the side to add to.
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
                "the distinct values of one bucket of a column do not fit a worker's memory",
                "increase the memory of the Python workers",
            )

    def result(self) -> tuple[pa.StringArray, np.ndarray, np.ndarray]:
        """(n distinct values in the order of their first `add`, (n, sides) int64 sums, (n,) int32 last days).

        The arrays use the memory of this object, so do not call `add` afterwards.
        """
        (count, size, *_), (offsets, data, sums, last, _) = self._handle.describe("summed")
        values = self._handle.strings(count, offsets, data, size)
        totals = self._handle.numbers(sums, count * self._sides, np.int64).reshape(count, self._sides)
        return values, totals, self._handle.numbers(last, count, np.int32)


def buckets_of(values: pa.StringArray, buckets: int) -> np.ndarray:
    """Returns (n,) uint32: the bucket of each of n strings, which is its hash modulo `buckets`.

    Buckets are nested: a value in bucket b of 2 n buckets is in bucket b mod n of n buckets.

    Args:
        values: none may be null.
        buckets: number of buckets, a power of two.
    """
    indices = np.zeros(len(values), np.uint32)
    if len(values) and buckets > 1:
        offsets, data = string_addresses(values)
        library().nightrank_buckets(len(values), offsets, data, buckets, indices.ctypes.data)
    return indices
