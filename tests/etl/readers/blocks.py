"""Reads all rows of files with a reader, as plain Python rows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from conf.raw_types import EventTime, RawTable
from etl.readers.base import TableReader


@dataclass(frozen=True)
class ReadRows:
    """The rows of all files, in order.

    Attributes:
        places: (file, row number from 1) of each row.
        reasons: why the value of a row does not fit; None if all do.
        texts: the rows as texts.
        columns: the values by column.
        exact: the exact time in µs; None for rows of files without timestamps.
        blocks: number of blocks.
    """

    places: list[tuple[str, int]]
    reasons: list[str | None]
    texts: list[str]
    columns: dict[str, list[Any]]
    exact: list[int | None]
    blocks: int


def plain(values: pa.Array) -> list[Any]:
    """The values; the dictionary must have no null."""
    if not isinstance(values, pa.DictionaryArray):
        return list(values.to_pylist())
    assert values.indices.type == pa.int32()
    assert values.dictionary.null_count == 0
    return list(values.dictionary_decode().to_pylist())


def read_all(reader: TableReader, wanted: Collection[str], split_bytes: int | None = None) -> ReadRows:
    """Reads the wanted columns of all splits."""
    rows = ReadRows([], [], [], {name: [] for name in wanted}, [], 0)
    lines_before: dict[str, int] = {}
    blocks = 0
    for file_split in reader.splits(split_bytes):
        for block in reader.blocks(file_split, wanted):
            blocks += 1
            first = lines_before.get(file_split.path, 0)
            count = len(block.row_lines)
            assert block.lines == count
            assert block.row_lines.tolist() == list(range(count))
            assert not block.broken
            rows.places.extend((file_split.path, first + line + 1) for line in range(count))
            rows.reasons.extend(block.malformed.get(line) for line in range(count))
            texts = block.texts(range(count))
            assert block.texts([0, count - 1][: min(count, 2)]) == [texts[0], texts[-1]][: min(count, 2)]
            rows.texts.extend(texts)
            for name in wanted:
                rows.columns[name].extend(plain(block.columns[name]))
            rows.exact.extend([None] * count if block.exact_time is None else block.exact_time.to_pylist())
            lines_before[file_split.path] = first + count
    return ReadRows(rows.places, rows.reasons, rows.texts, rows.columns, rows.exact, blocks)


def opened(
    reader: type[TableReader], table: RawTable, paths: Collection[str], event_time: EventTime | None = None
) -> TableReader:
    """Opens files, and pickles the reader as workers get it."""
    import pickle

    copied: TableReader = pickle.loads(pickle.dumps(reader.open(table, tuple(paths), event_time)))
    return copied
