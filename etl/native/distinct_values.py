"""Finds the indices of strings in an array of distinct strings, and adds up counts of distinct values.

Workers use `Lookup` for values of vocabularies, and for keys of tables with statistics. `Sums` merges the
value counts of file splits and days: it adds up the counts of equal values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from conf.errors import InfrastructureError
from etl.native.library import VERSION, Handle, is_built, library, string_addresses

_ALIGNED = 64
_DIGEST_BYTES = 16  # size of an XXH3-128 digest in bytes


class SealedFile:
    """A new local file that ends with a digest of its bytes. Use it as a context manager."""

    def __init__(self, path: Path) -> None:
        self._file, self._hash = path.open("wb"), xxhash.xxh3_128()

    def __enter__(self) -> SealedFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if kind is None:
                self._file.write(self._hash.digest())

    @property
    def closed(self) -> bool:
        """Returns whether the file is closed. Python's interface of files requires this property."""
        return self._file.closed

    def write(self, part: bytes | pa.Buffer) -> int:
        """Appends bytes."""
        self._hash.update(part)
        return self._file.write(memoryview(part))

    def flush(self) -> None:
        """Writes buffered bytes to the file."""
        self._file.flush()


def map_sealed(path: Path) -> pa.Buffer:
    """Maps a file of the class `SealedFile` into memory. Returns its bytes without the digest.

    With a damaged hash table, a lookup could return wrong indices, read outside of the table's memory, or
    never end. So the digest of all bytes is compared with the stored digest. This takes less time than
    reading the bytes from the disk.

    Raises:
        OSError: the file cannot be mapped.
        ValueError: the digest at the end of the file is not the digest of its bytes.
    """
    with pa.memory_map(str(path)) as source:
        whole = source.read_buffer()
    content = whole.slice(0, max(whole.size - _DIGEST_BYTES, 0))
    if xxhash.xxh3_128_digest(content) != whole.slice(len(content)).to_pybytes():
        raise ValueError(f"{path} was changed after it was written, or is not complete")
    return content


@dataclass(frozen=True)
class HashTable:
    """A hash table of strings, in memory or mapped from a file that workers share.

    Attributes:
        slots, offsets, data: the arrays of the hash table (etl/native/values.h).
        seed: the seed of the hash. The process that built the table chose the seed at random.
    """

    slots: pa.Buffer
    offsets: pa.Buffer
    data: pa.Buffer
    seed: int

    @classmethod
    def of(cls, values: pa.StringArray) -> HashTable:
        """Builds the hash table of an array of distinct strings without nulls."""
        offsets, data = string_addresses(values)
        handle = Handle(library().nightrank_lookup(len(values), offsets, data), "free_lookup")
        (slots, count, size, seed), addresses = handle.describe("table")
        return cls(
            handle.buffer(addresses[0], 16 * slots),
            handle.buffer(addresses[1], 4 * (count + 1)),
            handle.buffer(addresses[2], size),
            seed,
        )

    def find(self, wanted: pa.StringArray) -> np.ndarray:
        """Returns the index of each of m strings in the hash table, shape (m,), int64.

        The index is -1 for a string that is not in the table, and undefined for null.
        """
        indices = np.empty(len(wanted), np.int64)
        offsets, data = string_addresses(wanted)
        table = (
            self.slots.address,
            self.slots.size // 16,
            self.offsets.address,
            self.data.address,
            self.seed,
        )
        library().nightrank_find(*table, len(wanted), offsets, data, indices.ctypes.data)
        return indices


class Lookup:
    """Finds the indices of strings in an array of distinct strings without nulls.

    The hash table is built when `find` is called for the first time. Without the compiled library, Arrow
    builds a hash table in every call.
    """

    def __init__(self, values: pa.StringArray, table: HashTable | None = None) -> None:
        self._values = values
        if table is not None:
            self._table = table

    def find(self, wanted: pa.StringArray) -> np.ndarray:
        """Returns the index of each of m strings, shape (m,), int64; -1 for null and for unknown strings."""
        if not len(self._values) or not len(wanted):
            return np.full(len(wanted), -1, np.int64)
        if not is_built():
            arrow_indices = pc.index_in(wanted, value_set=self._values).fill_null(-1).cast(pa.int64())
            return arrow_indices.to_numpy(zero_copy_only=False)
        indices = self._table.find(wanted)
        if wanted.null_count:
            indices[wanted.is_null().to_numpy(zero_copy_only=False)] = -1
        return indices

    @cached_property
    def _table(self) -> HashTable:
        return HashTable.of(self._values)

    def save(self, path: Path, ids: np.ndarray) -> None:
        """Writes the hash table, and the id of each of its values, to a file that `load` can read.

        `ids` is an (n,) int32 array with one id per value. This method needs the compiled library.
        """
        table = self._table
        parts = [table.slots, table.offsets, table.data, pa.py_buffer(np.ascontiguousarray(ids, np.int32))]
        with SealedFile(path) as sink:
            for part in (
                pa.py_buffer(np.array([VERSION, table.seed, *(buffer.size for buffer in parts)], np.int64)),
                *parts,
            ):
                sink.write(part)
                sink.write(bytes(-part.size % _ALIGNED))

    @classmethod
    def load(cls, path: Path) -> tuple[Lookup, np.ndarray]:
        """Maps a saved lookup (`save`) into memory. Returns the lookup, and the (n,) ids of its values.

        Raises:
            ValueError: the file is not a saved lookup, has another version of the format, or was changed
                after `save`.
        """
        whole = map_sealed(path)
        head = np.frombuffer(whole.slice(0, 48), np.int64) if whole.size >= 48 else np.zeros(6, np.int64)
        start, parts = _ALIGNED, []
        for size in head[2:].tolist():
            parts.append(whole.slice(start, size))
            start += size + -size % _ALIGNED
        if head[0] != VERSION or start != whole.size:
            raise ValueError(f"{path} is not a file that Lookup.save of version {VERSION} wrote")
        slots, offsets, data, ids = parts
        values = pa.Array.from_buffers(pa.string(), ids.size // 4, [None, offsets, data], null_count=0)
        table = HashTable(slots, offsets, data, int(head[1]))
        return cls(values, table), np.frombuffer(ids, np.int32)


# The code below merges value counts of file splits and days: it adds up the counts of each distinct value.


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
                "the distinct values of one hash bucket of a column do not fit into a worker's memory",
                "increase the memory of the Python workers",
            )

    def result(self) -> tuple[pa.StringArray, np.ndarray, np.ndarray]:
        """Returns three arrays: the distinct values, the sums of their counts, and each value's last day.

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
