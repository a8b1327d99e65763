"""Counts of values added up: what merges the value counts of slices, of days and of windows of days."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from conf.errors import InfrastructureError
from etl.native.library import Handle, library, string_addresses


class Sums:
    """Counts by value, on one side or several (the training days and today), and the last day each value was seen on."""

    def __init__(self, sides: int = 1) -> None:
        self._sides = sides
        self._handle = Handle(library().nightrank_sums(sides), "free_sums")

    def add(
        self, values: pa.StringArray, counts: np.ndarray, side: int = 0, day: int | np.ndarray = 0
    ) -> None:
        """Adds (n,) counts of n strings, none of them null, seen on one day or (n,) days each.

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
                "give the Python workers more memory",
            )

    def result(self) -> tuple[pa.StringArray, np.ndarray, np.ndarray]:
        """(n distinct values in order of arrival, (n, sides) int64 sums, (n,) int32 last days). Nothing may be added after."""
        (count, size, *_), (offsets, data, sums, last, _) = self._handle.describe("summed")
        values = self._handle.strings(count, offsets, data, size)
        found = self._handle.numbers(sums, count * self._sides, np.int64).reshape(count, self._sides)
        return values, found, self._handle.numbers(last, count, np.int32)


def buckets_of(values: pa.StringArray, buckets: int) -> np.ndarray:
    """(n,) uint32: the bucket of each of n strings, a hash modulo `buckets`, a power of two; none may be null.

    Buckets nest: a value of bucket b of 2 n is in bucket b mod n of n.
    """
    found = np.zeros(len(values), np.uint32)
    if len(values) and buckets > 1:
        offsets, data = string_addresses(values)
        library().nightrank_buckets(len(values), offsets, data, buckets, found.ctypes.data)
    return found
