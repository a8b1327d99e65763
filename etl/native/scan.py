"""A block of lines to dictionary arrays, by the compiled scanner (native/scan.cpp)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from conf.errors import InfrastructureError
from etl.native.library import Handle, library, string_addresses

# A block's positions are 32-bit numbers.
MAX_BLOCK_BYTES = 2**31 - 1
_REASONS = {1: "field_count", 2: "not_utf8"}

# (texts of n lines) → (arrays of their fields, n reasons: why a line could not be split, null where it could)
Split = Callable[[pa.StringArray], tuple[Sequence[pa.Array], pa.Array]]


@dataclass(frozen=True)
class Scanned:
    """What a scan found in a block.

    Attributes:
        lines: how many lines it has.
        places: (n,) int64, the line of each row, ascending from 0.
        columns: place of a field in its line → dictionary array of n strings; an empty field is null.
        counts: place of a field → (values,) int64, the rows of each value of the dictionary.
        broken: line → why it is no row.
        unsplit: row that was to be split by the caller and could not be → why.
    """

    lines: int
    places: np.ndarray
    columns: Mapping[int, pa.DictionaryArray]
    counts: Mapping[int, np.ndarray]
    broken: Mapping[int, str]
    unsplit: Mapping[int, str]


def scan(
    block: bytes | memoryview, separator: str, width: int, fields: Sequence[int], quoted: bool, split: Split
) -> Scanned:
    """Scans whole lines ended by LF; the last may lack its end.

    Args:
        block: less than 2 GiB.
        separator: one ASCII character.
        width: fields a line must have.
        fields: places of the fields to return.
        quoted: whether double quotes mean something; lines with them are given to `split`.

    Raises:
        InfrastructureError: the scanner is not built, or memory ran out.
    """
    text = pa.py_buffer(block)
    if text.size > MAX_BLOCK_BYTES:
        raise ValueError(f"a block of {text.size} bytes is more than {MAX_BLOCK_BYTES}")
    places = (ctypes.c_int32 * len(fields))(*fields)
    address = library().nightrank_scan(
        text.address, text.size, ord(separator), int(quoted), width, places, len(fields)
    )
    if not address:
        raise _no_memory(text.size)
    found = Handle(address, "free")
    (lines, rows, broken, hard), at = found.describe("rows")
    unsplit: Mapping[int, str] = {}
    if hard:
        quotes = found.numbers(at[3], 3 * hard, np.int64).reshape(hard, 3)
        unsplit = _give(found, text, quotes, fields, split)
    columns = {field: _column(found, index, rows) for index, field in enumerate(fields)}
    why = found.numbers(at[2], broken, np.uint8).tolist()
    return Scanned(
        lines=lines,
        places=found.numbers(at[0], rows, np.int64),
        columns={field: column for field, (column, _) in columns.items()},
        counts={field: counts for field, (_, counts) in columns.items()},
        broken={
            line: _REASONS[reason]
            for line, reason in zip(found.numbers(at[1], broken, np.int64).tolist(), why, strict=True)
        },
        unsplit=unsplit,
    )


def _give(
    found: Handle, text: pa.Buffer, quotes: np.ndarray, fields: Sequence[int], split: Split
) -> dict[int, str]:
    """Splits the lines with quotes and hands their values to the scanner; row that could not be split → why.

    Args:
        quotes: (n, 3) row, start and end of each such line.
    """
    lines = memoryview(text)
    texts = pa.array([str(lines[start:end], "utf-8") for _, start, end in quotes.tolist()], pa.string())
    values, why = split(texts)
    whole = why.is_null()
    good = np.asarray(whole)
    rows = np.ascontiguousarray(quotes[good, 0])
    for index, field in enumerate(fields):
        given = values[field].filter(whole).fill_null("")
        if not len(given):
            continue
        offsets, data = string_addresses(given)
        taken = library().nightrank_give(found.address, index, len(rows), rows.ctypes.data, offsets, data)
        if not taken:
            raise _no_memory(text.size)
    return dict(zip(quotes[~good, 0].tolist(), why.drop_null().to_pylist(), strict=True))


def _column(found: Handle, index: int, rows: int) -> tuple[pa.DictionaryArray, np.ndarray]:
    (values, size, nulls, _), (codes, valid, offsets, data, counts) = found.describe("column", index)
    there = found.buffer(valid, (rows + 7) // 8) if nulls else None
    indices = pa.Array.from_buffers(
        pa.int32(), rows, [there, found.buffer(codes, 4 * rows)], null_count=nulls
    )
    distinct = found.strings(values, offsets, data, size)
    return pa.DictionaryArray.from_arrays(indices, distinct), found.numbers(counts, values, np.int64)


def _no_memory(size: int) -> InfrastructureError:
    return InfrastructureError(f"no memory to parse {size} bytes", "give the Python workers more memory")
