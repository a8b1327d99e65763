"""Files with statistics by key: tasks write parts of them, which are merged in ranges of keys.

Each task sorts the keys of its rows. Ranges of keys are chosen from a sample of the keys of all tasks. So the
files of the merged ranges are, one after the other, one sorted table, and no task needs all keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from etl.ops.array_statistics import GroupParts, concat_groups, merge_groups
from etl.ops.keyed import KEY
from storage import file_io
from storage.publish import own_path

# Rows of parts of which one task merges a range.
_RANGE_ROWS = 2_000_000
# Rows of a row group of a file of parts. A task reads only the row groups that contain keys of its range.
_GROUP_ROWS = 65_536
# Keys of the sample of each file.
_SAMPLED_KEYS = 512
# Rows of parts that a task holds before it merges them.
_HELD_ROWS = 1_000_000


@dataclass(frozen=True)
class KeyRange:
    """The keys from `first` on and before `end`, in the order of their UTF-8 bytes; None for no limit."""

    first: str | None = None
    end: str | None = None

    def overlaps(self, least: str, most: str) -> bool:
        """Returns whether keys between `least` and `most`, inclusive, may be in the range."""
        # Python compares strings by code points, which is the order of their UTF-8 bytes.
        return (self.first is None or most >= self.first) and (self.end is None or least < self.end)

    def select(self, table: pa.Table) -> pa.Table:
        """Returns the rows with a key in the range."""
        if self.first is not None:
            table = table.filter(pc.greater_equal(table[KEY], self.first))
        return table if self.end is None else table.filter(pc.less(table[KEY], self.end))


class PartsByKey:
    """Adds up the parts of one step over the batches of a task."""

    def __init__(self) -> None:
        self._keys: list[pa.Array] = []
        self._parts: list[GroupParts] = []
        self._merged_rows = 0

    def add(self, keys: pa.Array, parts: GroupParts) -> None:
        """Adds the parts of some rows. `keys` are their (parts.size,) different keys."""
        self._keys.append(keys)
        self._parts.append(parts)
        if sum(map(len, self._keys)) > 2 * self._merged_rows + _HELD_ROWS:
            self.result()

    def result(self) -> tuple[pa.Array, GroupParts] | None:
        """Returns the keys, ascending, and their parts; None if there are none."""
        if not self._keys:
            return None
        keys, parts = merge_groups(self._keys, self._parts)
        self._keys, self._parts, self._merged_rows = [keys], [parts], len(keys)
        return keys, parts


def write_parts(path: str, keys: pa.Array, parts: GroupParts) -> dict[str, Any]:
    """Writes a file of parts. Returns JSON values: its path, its number of rows, and a sample of its keys."""
    table = pa.table({KEY: keys, **parts.to_arrays()})
    written = write_sorted(path, table, _GROUP_ROWS)
    step = max(1, len(keys) // _SAMPLED_KEYS)
    return {"path": written, "rows": len(keys), "sample": keys[step // 2 :: step].to_pylist()}


def write_sorted(path: str, table: pa.Table, row_group_rows: int) -> str:
    """Writes a table to a new Parquet file, and returns the path, which is different for each attempt."""
    path = own_path(path)
    files, inner = file_io.filesystem(path)
    if file_io.is_local(path):
        files.create_dir(inner.rsplit("/", 1)[0], recursive=True)
    with files.open_output_stream(inner) as sink:
        pq.write_table(table, sink, compression="zstd", row_group_size=row_group_rows)
    return path


def choose_ranges(files: Sequence[Mapping[str, Any]]) -> list[KeyRange]:
    """Returns ranges of keys of about equal size, ascending. `files` are results of `write_parts`."""
    rows = sum(file["rows"] for file in files)
    wanted = -(-rows // _RANGE_ROWS)
    sampled = [(key, file["rows"] / len(file["sample"])) for file in files for key in file["sample"]]
    if wanted <= 1:
        return [KeyRange()]
    sampled.sort()
    until = np.cumsum([weight for _, weight in sampled])
    at = np.searchsorted(until, until[-1] * np.arange(1, wanted) / wanted)
    bounds = sorted({sampled[index][0] for index in at.tolist()})
    return [KeyRange(first, end) for first, end in pairwise([None, *bounds, None])]


def merge_parts(paths: Sequence[str], keys: KeyRange) -> tuple[pa.Array, GroupParts] | None:
    """Merges the parts of a range of keys. Returns (ascending keys, parts); None without keys."""
    merged = PartsByKey()
    for path in paths:
        for table in _read_range(path, keys):
            merged.add(table[KEY].combine_chunks(), GroupParts.from_table(table))
    return merged.result()


def _read_range(path: str, keys: KeyRange) -> Iterator[pa.Table]:
    files, inner = file_io.filesystem(path)
    with files.open_input_file(inner) as source:
        parquet = pq.ParquetFile(source)
        column = parquet.schema_arrow.get_field_index(KEY)
        groups = []
        for index in range(parquet.metadata.num_row_groups):
            statistics = parquet.metadata.row_group(index).column(column).statistics
            if (
                statistics is None
                or not statistics.has_min_max
                or keys.overlaps(statistics.min, statistics.max)
            ):
                groups.append(index)
        for start in range(0, len(groups), 16):
            table = keys.select(parquet.read_row_groups(groups[start : start + 16], use_threads=False))
            if len(table):
                yield table


def one_group(parts: Sequence[GroupParts]) -> GroupParts:
    """Merges parts that have one group each. There is at least one part."""
    together = concat_groups(parts)
    return together.regrouped(np.zeros(together.size, np.int64), 1)


def parts_to_json(parts: GroupParts) -> dict[str, Any]:
    """Returns the parts of one group as JSON values."""
    return {
        "sums": {name: values[0].tolist() for name, values in parts.sums.items()},
        "least": {name: float(values[0]) for name, values in parts.least.items()},
        "most": {name: float(values[0]) for name, values in parts.most.items()},
    }


def parts_from_json(stored: Mapping[str, Any]) -> GroupParts:
    """Returns the parts of one group from the result of `parts_to_json`."""
    return GroupParts(
        1,
        {name: np.array([values], np.int64) for name, values in stored["sums"].items()},
        {name: np.array([value], np.float64) for name, value in stored["least"].items()},
        {name: np.array([value], np.float64) for name, value in stored["most"].items()},
    )
