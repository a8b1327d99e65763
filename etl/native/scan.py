"""Converts raw bytes, which are lines of text or pages of Parquet columns, to dictionary arrays.

The scanners scan.cpp and json.cpp find the fields of lines, and return one array per field. pages.cpp decodes
dictionary-encoded pages, and returns one array per column.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from conf.errors import InfrastructureError
from device.columns import Values
from etl.native.library import Handle, library, string_addresses

# The scanner stores positions in a block as 32-bit numbers.
MAX_BLOCK_BYTES = 2**31 - 1
_OTHERS_AT_ONCE = 1 << 17  # Maximum number of JSON lines that are passed to `read_lines` at once.
_REASONS = ("", "field_count", "not_utf8")  # the library returns the index of a reason

# A function that takes n lines as strings. It returns one array of n values per field, and an array of n
# reasons. The reason is null for a line that can be split.
SplitLines = Callable[[pa.StringArray], tuple[Sequence[pa.Array], pa.Array]]


class Rejections(Mapping[int, str]):
    """Maps the indices of rejected lines or rows, ascending, to their reasons.

    An entry needs 12 bytes. A dict would need 100 bytes per entry, and a block of hostile bytes can consist
    of millions of rejected lines.

    Attributes:
        indices: (n,) int64, ascending.
        codes: (n,) int32. codes[i] is the index in `reasons` of the reason for indices[i].
        reasons: the distinct reasons.
    """

    def __init__(self, indices: np.ndarray, codes: np.ndarray, reasons: Sequence[str]) -> None:
        self.indices, self.codes, self.reasons = indices, codes, tuple(reasons)

    def __getitem__(self, index: int) -> str:
        """Returns the reason of a line or row; raises KeyError if the line or row is not rejected."""
        place = int(np.searchsorted(self.indices, index))
        if place == len(self.indices) or self.indices[place] != index:
            raise KeyError(index)
        return self.reasons[self.codes[place]]

    def __iter__(self) -> Iterator[int]:
        """Iterates over the indices."""
        return iter(self.indices.tolist())

    def __len__(self) -> int:
        """Returns the number of rejected lines or rows."""
        return len(self.indices)

    def pairs(self) -> Iterator[tuple[int, str]]:
        """Returns the pairs (index, reason), ascending. This method is faster than `items`."""
        return zip(self, (self.reasons[code] for code in self.codes.tolist()), strict=True)

    def counts(self) -> dict[str, int]:
        """Returns the number of lines or rows for each reason that occurs."""
        counts: dict[str, int] = {}
        counted = np.bincount(self.codes, minlength=len(self.reasons)).tolist()
        for reason, count in zip(self.reasons, counted, strict=True):
            if count:
                counts[reason] = counts.get(reason, 0) + count
        return counts

    def where(self, kept: np.ndarray) -> Rejections:
        """Returns the rejections for which the (n,) bool array `kept` is true."""
        return Rejections(self.indices[kept], self.codes[kept], self.reasons)


class RejectedRows:
    """Collects the rejected rows of a block, with one reason for each row.

    Args:
        rows: number of rows of the block.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._codes: np.ndarray | None = None  # (rows,) int32: 0, or 1 + the index of the reason
        self._reasons: dict[str, int] = {}

    def __bool__(self) -> bool:
        """Returns whether at least one row is rejected."""
        return self._codes is not None

    def add(self, rows: np.ndarray, reason: str, *, replace: bool = False) -> None:
        """Rejects rows for a reason.

        Rows that already have a reason keep their reason, unless `replace` is true.
        """
        if not len(rows):
            return
        if self._codes is None:
            self._codes = np.zeros(self.rows, np.int32)
        if not replace:
            rows = rows[self._codes[rows] == 0]
        self._codes[rows] = self._reasons.setdefault(reason, len(self._reasons) + 1)

    def add_all(self, rejected: Mapping[int, str]) -> None:
        """Rejects rows. The argument maps the index of each rejected row to the reason."""
        if not isinstance(rejected, Rejections):
            rejected = rejections_of(rejected.items())
        for code, reason in enumerate(rejected.reasons):
            self.add(rejected.indices[rejected.codes == code], reason)

    @property
    def good(self) -> np.ndarray:
        """Returns the indices of the rows that are not rejected, ascending."""
        return np.arange(self.rows) if self._codes is None else np.flatnonzero(self._codes == 0)

    def result(self) -> Rejections:
        """Returns the rejected rows."""
        if self._codes is None:
            return NOTHING_REJECTED
        rows = np.flatnonzero(self._codes)
        return Rejections(rows, self._codes[rows] - 1, tuple(self._reasons))


def rejections_of(pairs: Iterable[tuple[int, str]]) -> Rejections:
    """Returns the rejections for pairs (index, reason) in any order. No index may occur twice."""
    ordered = sorted(pairs)
    reasons = {reason: code for code, reason in enumerate(dict.fromkeys(reason for _, reason in ordered))}
    indices = np.array([index for index, _ in ordered], np.int64)
    return Rejections(indices, np.array([reasons[reason] for _, reason in ordered], np.int32), [*reasons])


NOTHING_REJECTED = rejections_of(())


@dataclass(frozen=True)
class Scanned:
    """The result of scanning one block of lines: its n rows, and the reasons of its rejected lines.

    The scanner rejects lines with a wrong number of fields or with invalid UTF-8. Every other line is a row.

    Attributes:
        lines: number of lines of the block.
        row_lines: (n,) int64. row_lines[i] is the index of the line of row i. The indices are ascending.
        columns: maps the index of a field to a dictionary array with one string per row. An empty field is
            null. If a device scanned the block, the codes are in the memory of this device.
        counts: maps the index of a field to an int64 array. Element v is the number of rows with dictionary
            value v.
        broken: maps the index of each rejected line to the reason why the line was rejected.
        unsplit: for each row that `split_lines` could not split, maps its index to the reason.
    """

    lines: int
    row_lines: np.ndarray
    columns: Mapping[int, Values]
    counts: Mapping[int, np.ndarray]
    broken: Mapping[int, str]
    unsplit: Mapping[int, str]


# A function with the arguments of `scan`.
Scan = Callable[[bytes | memoryview, str, int, Sequence[int], bool, SplitLines], Scanned]


def scan(
    block: bytes | memoryview,
    separator: str,
    width: int,
    fields: Sequence[int],
    quoted: bool,
    split_lines: SplitLines,
) -> Scanned:
    """Scans a block of complete lines. Every line ends with LF, except that the last line may have no LF.

    Args:
        block: bytes of the lines, less than 2 GiB.
        separator: one ASCII character.
        width: number of fields that a line must have.
        fields: indices of the fields to return.
        quoted: whether fields may be enclosed in double quotes. If they may, `split_lines` splits the lines
            that contain double quotes.
        split_lines: function that takes lines as an Arrow array. It returns one array per field, and an array
            of the reasons why lines could not be split.

    Raises:
        InfrastructureError: the compiled library is missing, or memory ran out.
        ValueError: the block is too large.
    """
    text = _buffer(block)
    indices = (ctypes.c_int32 * len(fields))(*fields)
    address = library().nightrank_scan(
        text.address, text.size, ord(separator), int(quoted), width, indices, len(fields)
    )
    scanned = _handle(address, text)
    (lines, rows, broken, with_quotes), addresses = scanned.describe("rows")
    unsplit: Mapping[int, str] = {}
    if with_quotes:
        ranges = scanned.numbers(addresses[3], 3 * with_quotes, np.int64).reshape(with_quotes, 3)
        unsplit = _set_values(scanned, text, ranges, fields, split_lines)
    columns = {field: column_of(scanned, index, rows) for index, field in enumerate(fields)}
    broken_lines = scanned.numbers(addresses[1], broken, np.int64)
    reasons = scanned.numbers(addresses[2], broken, np.uint8)
    return Scanned(
        lines=lines,
        row_lines=scanned.numbers(addresses[0], rows, np.int64),
        columns={field: column for field, (column, _) in columns.items()},
        counts={field: counts for field, (_, counts) in columns.items()},
        broken=Rejections(broken_lines, reasons.astype(np.int32), _REASONS),
        unsplit=unsplit,
    )


def _set_values(
    scanned: Handle, text: pa.Buffer, ranges: np.ndarray, fields: Sequence[int], split_lines: SplitLines
) -> dict[int, str]:
    """Splits the lines that contain double quotes, and stores their values in the scanned block.

    Args:
        scanned: the scanned block in the memory of the compiled library.
        text: the bytes of the block.
        ranges: (n, 3). For each line with double quotes: the index of its row, its start byte and its end
            byte.
        fields: indices of the fields to return.
        split_lines: function that splits lines (see `scan`).

    Returns:
        For each row that could not be split, a mapping from its index to the reason.
    """
    block = memoryview(text)
    texts = pa.array([str(block[start:end], "utf-8") for _, start, end in ranges.tolist()], pa.string())
    values, reasons = split_lines(texts)
    valid = reasons.is_null()
    is_valid = np.asarray(valid)
    rows = np.ascontiguousarray(ranges[is_valid, 0])
    for index, field in enumerate(fields):
        field_values = values[field].filter(valid).fill_null("")
        if not len(field_values):
            continue
        _give(scanned, text, index, rows, field_values)
    return dict(zip(ranges[~is_valid, 0].tolist(), reasons.drop_null().to_pylist(), strict=True))


@dataclass(frozen=True)
class ScannedJson:
    """The result of scanning one block of n JSON lines.

    Attributes:
        columns: for each name, a dictionary array with the field's JSON text in each of n lines. The text is
            null if the line lacks the field, or if the field is null. The text of a string has no quotes,
            unless the string is empty or looks like another JSON value (json.cpp).
        counts: for each name, an int64 array. Element v is the number of lines with dictionary value v.
        is_object: (n,) bool: which lines are JSON objects.
        broken: for each line that `read_lines` rejected, maps its index to the reason.
    """

    columns: Sequence[pa.DictionaryArray]
    counts: Sequence[np.ndarray]
    is_object: np.ndarray
    broken: Mapping[int, str]


# A function that takes a block of m lines. It returns three values: an (m,) bool array that is true for JSON
# objects, an array of m JSON texts (or nulls) for each wanted field, and the reason for each rejected line.
ReadJson = Callable[[bytes], tuple[np.ndarray, Sequence[pa.Array], Mapping[int, str]]]


def scan_json(block: bytes | memoryview, names: Sequence[str], read_lines: ReadJson) -> ScannedJson:
    """Scans a block of JSON lines. Every line ends with LF, except that the last line may have no LF.

    Args:
        block: bytes of the lines, less than 2 GiB.
        names: distinct names of fields. `a.b` is the field b of the object a.
        read_lines: reads the lines that the compiled scanner cannot read.

    Raises:
        InfrastructureError: the compiled library is missing, or memory ran out.
        ValueError: the block is too large.
    """
    text = _buffer(block)
    # The paths of the keys that the scanner looks for: keys of columns, and keys of the objects around them.
    paths: dict[tuple[str, ...], bool] = {}
    for name in names:
        path = tuple(name.split("."))
        for end in range(1, len(path)):
            paths.setdefault(path[:end], False)
        paths[path] = True
    places = {path: index for index, path in enumerate(paths)}
    # Keep this array until the scan ends, because the scanner reads the memory of this array.
    keys = pa.array([path[-1] for path in paths], pa.string())
    offsets, data = string_addresses(keys)
    parents = (ctypes.c_int32 * len(paths))(*(places.get(path[:-1], -1) for path in paths))
    is_column = (ctypes.c_uint8 * len(paths))(*paths.values())
    address = library().nightrank_scan_json(
        text.address, text.size, len(paths), offsets, data, parents, is_column
    )
    scanned = _handle(address, text)
    (lines, _, _, others), addresses = scanned.describe("rows")
    columns_of_scan = [path for path, wanted in paths.items() if wanted]
    of_names = [columns_of_scan.index(tuple(name.split("."))) for name in names]
    is_object = np.ones(lines, bool)
    broken: dict[int, str] = {}
    all_ranges = scanned.numbers(addresses[3], 3 * others, np.int64).reshape(others, 3)
    whole = memoryview(text)
    for first in range(0, others, _OTHERS_AT_ONCE):
        ranges = all_ranges[first : first + _OTHERS_AT_ONCE]
        left = b"".join(bytes(whole[start:end]) + b"\n" for _, start, end in ranges.tolist())
        are_objects, values, reasons = read_lines(left)
        rows = np.ascontiguousarray(ranges[:, 0])
        is_object[rows] = are_objects
        broken |= {int(rows[line]): reason for line, reason in reasons.items()}
        for index, of_name in zip(of_names, values, strict=True):
            valid = of_name.is_valid().to_numpy(zero_copy_only=False)
            if valid.any():
                _give(scanned, text, index, np.ascontiguousarray(rows[valid]), of_name.drop_null())
    counted = [column_of(scanned, index, lines) for index in of_names]
    columns, counts = [column for column, _ in counted], [of_values for _, of_values in counted]
    return ScannedJson(columns, counts, is_object, broken)


def merge_dictionaries(chunks: Sequence[pa.DictionaryArray]) -> tuple[pa.DictionaryArray, np.ndarray]:
    """Concatenates dictionary arrays of strings, and counts their values.

    Args:
        chunks: arrays with int32 indices and dictionaries of strings.

    Returns:
        An array with one dictionary, and the number of rows with each of its values, int64. An empty string
        is null.

    Raises:
        InfrastructureError: the compiled library is missing, or memory ran out.
        ValueError: an index is out of range for its dictionary.
    """
    distinct = [chunk.dictionary.fill_null("") for chunk in chunks]
    values, rows = sum(map(len, distinct)), sum(map(len, chunks))
    size = sum(part.nbytes for part in distinct)
    merged = Handle(library().nightrank_merged(values, size, rows), "free")
    for chunk, of_chunk in zip(chunks, distinct, strict=True):
        offsets, data = string_addresses(of_chunk)
        indices = chunk.indices
        valid, codes = indices.buffers()
        added = library().nightrank_merge(
            merged.address,
            len(of_chunk),
            offsets,
            data,
            len(indices),
            codes.address + 4 * indices.offset if codes is not None else None,
            valid.address if valid is not None else None,
            indices.offset,
        )
        if added == 0:
            raise _no_memory(size)
        if added != 1:
            raise ValueError("a code of a dictionary array has no value in its dictionary")
    return column_of(merged, 0, rows)


def _buffer(block: bytes | memoryview) -> pa.Buffer:
    text = pa.py_buffer(block)
    if text.size > MAX_BLOCK_BYTES:
        raise ValueError(f"a block of {text.size} bytes is larger than the maximum of {MAX_BLOCK_BYTES}")
    return text


def _handle(address: int | None, text: pa.Buffer) -> Handle:
    if not address:
        raise _no_memory(text.size)
    return Handle(address, "free")


def _give(scanned: Handle, text: pa.Buffer, index: int, rows: np.ndarray, values: pa.StringArray) -> None:
    """Stores the values of some rows in a column of a scanned block."""
    offsets, data = string_addresses(values)
    address = scanned.address
    if not library().nightrank_give(address, index, len(rows), rows.ctypes.data, offsets, data):
        raise _no_memory(text.size)


def column_of(
    scanned: Handle, index: int, rows: int, kind: pa.DataType | None = None
) -> tuple[pa.DictionaryArray, np.ndarray]:
    """Returns a column of a scanned block, and the number of rows with each value of its dictionary, int64.

    Args:
        scanned: the block in the memory of the compiled library.
        index: the index of the column.
        rows: number of rows of the block.
        kind: the Arrow type of the values; None if they are strings.
    """
    (values, size, nulls, _), (codes, valid, offsets, data, counts) = scanned.describe("column", index)
    validity = scanned.buffer(valid, (rows + 7) // 8) if nulls else None
    indices = pa.Array.from_buffers(
        pa.int32(), rows, [validity, scanned.buffer(codes, 4 * rows)], null_count=nulls
    )
    if kind is None or pa.types.is_string(kind):
        distinct = scanned.strings(values, offsets, data, size)
    else:
        distinct = pa.Array.from_buffers(kind, values, [None, scanned.buffer(data, size)], null_count=0)
    # The codes are not checked, because the library computes only valid codes.
    column = pa.DictionaryArray.from_arrays(indices, distinct, safe=False)
    return column, scanned.numbers(counts, values, np.int64)


def _no_memory(size: int) -> InfrastructureError:
    return InfrastructureError(
        f"there is no memory to parse a block of {size} bytes",
        "increase the memory of the Python workers",
    )


# The code below decodes the dictionary-encoded pages of one Parquet column with pages.cpp.

# Number of bytes of a value in a page. A string has a variable size: its length is stored before its bytes.
_WIDTHS = {pa.string(): 0, pa.int32(): 4, pa.int64(): 8}
KINDS = frozenset(_WIDTHS)


class DamagedPageError(Exception):
    """A page ends too early, or refers to a value that does not exist."""


class PagedColumn:
    """Decodes the column chunks of a column. Each page is added to the chunk that was begun last."""

    def __init__(self, kind: pa.DataType, values: int, size: int, rows: int) -> None:
        """Prepares a column without rows.

        Args:
            kind: the type of the values, one of KINDS.
            values, size: number of values of all chunks together, and number of their bytes. Both may be
                estimates.
            rows: number of rows of all chunks together.
        """
        self._kind, self._rows = kind, 0
        self._pages = Handle(library().nightrank_pages(values, size, rows), "free")

    def begin_chunk(self, count: int, page: pa.Buffer) -> None:
        """Begins a chunk with its dictionary page, which has `count` values in the encoding PLAIN.

        Raises:
            DamagedPageError: the page has fewer values.
            InfrastructureError: memory ran out.
        """
        width = _WIDTHS[self._kind]
        _check(library().nightrank_begin_chunk(self._pages.address, count, width, page.address, page.size))

    def add_page(self, rows: int, levels: pa.Buffer | None, indices: pa.Buffer) -> None:
        """Adds the rows of a page to the last chunk that was begun.

        Args:
            rows: number of rows.
            levels: the definition level of each row (0 for null, 1 for a value), encoded as runs; None if no
                row is null.
            indices: one byte with the number of bits of an index, and then the index of each value, encoded
                as runs.

        Raises:
            DamagedPageError: the page has fewer rows, or an index refers to a value that does not exist.
            InfrastructureError: memory ran out.
        """
        level_bytes = (levels.address, levels.size) if levels is not None else (None, 0)
        address = self._pages.address
        _check(library().nightrank_add_page(address, rows, *level_bytes, indices.address, indices.size))
        self._rows += rows

    def result(self) -> tuple[pa.DictionaryArray, np.ndarray]:
        """Returns the n rows as an array with one dictionary, and the number of rows with each of its values.

        An empty string is null. The dictionary may have values without rows. After this call, no page may be
        added.
        """
        library().nightrank_end_pages(self._pages.address)
        return column_of(self._pages, 0, self._rows, self._kind)


def _check(outcome: int) -> None:
    if outcome == 0:
        raise InfrastructureError(
            "there is no memory to decode a page of a Parquet file",
            "increase the memory of the Python workers",
        )
    if outcome != 1:
        raise DamagedPageError
