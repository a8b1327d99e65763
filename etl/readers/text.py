"""Reads text formats: `tsv`, `displays` and `csv`. Only `csv` has a header line, and quotes as in RFC 4180.

The compiled scanner (etl/native/scan.py) or a GPU (device/text_scan.py) finds the fields. This module checks
types, once per distinct value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import DataError
from conf.raw_types import LIST_TYPES, Column, EventTime, RawTable
from device.columns import DeviceColumn, DeviceColumns, Values, arrow, mixed_columns
from etl.native.scan import MAX_BLOCK_BYTES, RejectedRows, Rejections, Scan, rejections_of, scan
from etl.raw.file_columns import empty_file, header_of, positions_in
from etl.raw.file_splits import FILE_SPLIT_BYTES, FileSplit, read_blocks, split_files
from etl.raw.text_values import split_fields, typed_column
from etl.readers.base import RawBlock, TableReader, map_in_threads

_NEVER_MALFORMED = ("string", "list<string>")
# Maximum number of bytes of lines of the format `displays` that are converted to rows at once. The other
# fields of a line are repeated for each item of the line, so the rows are many times larger than the lines.
_DISPLAY_BYTES = 2**20
# A shown item: its id, and 1 if the user clicked it.
_ITEM_AND_CLICK = r"^(.+)[-:_]([01])$"


@dataclass(frozen=True)
class TextReader(TableReader):
    """Reads `tsv` and `csv`. The files of a csv table may have different headers.

    Attributes:
        positions: for each column of the table, the index of its field in a line; None for an optional column
            that the files do not have.
        width: number of fields in a line.
        of_files: positions and width of each csv file whose header differs from the first header, by path.
        scanner: the function that finds the fields of a block, on a CPU or on a GPU.
    """

    positions: tuple[int | None, ...]
    width: int
    of_files: Mapping[str, tuple[tuple[int | None, ...], int]] = field(default_factory=dict)
    scanner: Scan = scan

    @classmethod
    def open(cls, table: RawTable, paths: tuple[str, ...], event_time: EventTime | None = None) -> TextReader:
        """Reads the header lines of csv files. Empty files have none.

        Raises:
            DataError: all csv files are empty, or the header of one of them lacks a column that is not
                optional, or cannot be read.
        """
        positions: list[int | None] = list(range(len(table.columns)))
        width = len(table.columns)
        of_files: dict[str, tuple[tuple[int | None, ...], int]] = {}
        if table.format == "csv":
            of_header: dict[tuple[str, ...], tuple[tuple[int | None, ...], int]] = {}
            for path in paths:
                header = header_of(path, table)
                if header is None:
                    continue
                if tuple(header) not in of_header:
                    places, width = positions_in(header, table, [path])
                    of_header[tuple(header)] = tuple(places), width
                of_files[path] = of_header[tuple(header)]
            if not of_files:
                raise empty_file(paths[0])
            first = next(iter(of_files.values()))
            positions, width = list(first[0]), first[1]
            of_files = {path: one for path, one in of_files.items() if one != first}
        return cls(table, paths, tuple(positions), width, of_files)

    def splits(self, split_bytes: int | None = None) -> list[FileSplit]:
        """Returns ranges of bytes of the files. A compressed file is one split."""
        return split_files(self.paths, split_bytes or FILE_SPLIT_BYTES, self.table.max_expansion)

    def blocks(self, file_split: FileSplit, wanted: Collection[str]) -> Iterator[RawBlock]:
        """Yields the rows of the lines that begin in the range of bytes."""
        positions, width = self.of_files.get(file_split.path, (self.positions, self.width))
        reader = replace(self, positions=positions, width=width)
        # The header is the first line of the file.
        has_header = file_split.start == 0 and self.table.format == "csv"

        def parse(numbered: tuple[int, bytes | memoryview]) -> RawBlock:
            index, block = numbered
            return reader.parse(block, wanted, header=has_header and index == 0)

        blocks = read_blocks(file_split, encoding=self.table.encoding)
        yield from map_in_threads(enumerate(blocks), parse, file_split.threads)

    def parse(self, block: bytes | memoryview, wanted: Collection[str], header: bool) -> RawBlock:
        """Parses a block of whole lines.

        Args:
            block: lines that end with LF. The last line may lack the LF.
            wanted: the columns to return, among those of the types string and list<string>. Columns of other
                types are always parsed, to check their values.
            header: whether the first line is a header. A header is counted as a line, but not as a row or a
                rejected line.
        """
        table = self.table
        quoted, separator = table.format == "csv", table.field_separator
        places = {
            column: place
            for column, place in zip(table.columns, self.positions, strict=True)
            if column.type not in _NEVER_MALFORMED or column.name in wanted
        }
        position = {column.name: place for column, place in places.items() if place is not None}
        parsed = [column for column in places if column.name in position]
        scanned = self.scanner(
            block,
            separator,
            self.width,
            [position[column.name] for column in parsed],
            quoted,
            lambda lines: split_fields(lines, separator, self.width, quoted=True),
        )
        malformed = RejectedRows(len(scanned.row_lines))
        malformed.add_all(scanned.unsplit)
        columns: dict[str, Values] = {}
        counts: dict[str, np.ndarray] = {}
        for column in parsed:
            encoded = scanned.columns[position[column.name]]
            of_values = scanned.counts[position[column.name]]
            # the scanner already converts empty fields to null
            if column.type == "string" and len(table.null_values) == 1:
                columns[column.name], counts[column.name] = encoded, of_values
                continue
            distinct, reasons = typed_column(
                encoded.dictionary, column, table.null_values, table.time_zone, table.decimal_separator
            )
            if reasons is not None:
                codes = np.flatnonzero(reasons.is_valid().to_numpy(zero_copy_only=False))
                reason = reasons.drop_null()[0].as_py()
                malformed.add(rows_with(encoded, codes), reason)
            if column.type in LIST_TYPES:
                columns[column.name] = distinct.take(arrow(encoded).indices)
                continue
            columns[column.name] = (
                encoded.with_values(distinct)
                if isinstance(encoded, DeviceColumn)
                else without_null_values(encoded.indices, distinct)
            )
            is_value = distinct.is_valid().to_numpy(zero_copy_only=False)
            counts[column.name] = of_values[is_value] if distinct.null_count else of_values
        for column in places:
            if column.name not in position:
                columns[column.name] = _nulls_of(column, len(scanned.row_lines))
        block_ = RawBlock(
            len(block),
            scanned.lines,
            scanned.row_lines,
            mixed_columns(columns),
            counts,
            scanned.broken,
            malformed.result(),
            partial(texts_of_lines, block),
        )
        return without_first_line(block_) if header else block_


@dataclass(frozen=True)
class DisplayReader(TableReader):
    """Reads `displays`: a line has several shown items in its last field, and each of them is one row.

    The quarantine and messages contain the number of the row in the file, instead of the line's number. A
    rejected row is stored as one line, as in a `tsv` file.

    Attributes:
        rows: reader of the `tsv` lines to which the displays are converted, one line per row.
    """

    rows: TextReader

    @classmethod
    def open(
        cls, table: RawTable, paths: tuple[str, ...], event_time: EventTime | None = None
    ) -> DisplayReader:
        """Returns the reader. The files have no header, so none is read."""
        return cls(table, paths, TextReader.open(table, paths, event_time))

    def splits(self, split_bytes: int | None = None) -> list[FileSplit]:
        """Returns ranges of bytes of the files. A compressed file is one split."""
        return self.rows.splits(split_bytes)

    def blocks(self, file_split: FileSplit, wanted: Collection[str]) -> Iterator[RawBlock]:
        """Yields the rows of the displays that begin in the range of bytes.

        Raises:
            DataError: the rows of one display need more than 2 GiB.
        """

        def parse(block: bytes | memoryview) -> RawBlock:
            text = rows_of_displays(block, self.table.field_separator)
            if len(text) > MAX_BLOCK_BYTES:
                raise DataError(
                    f"{file_split.path}: the rows of one display have {len(text):,} bytes; more than 2 GiB "
                    "cannot be read",
                    "divide lines with very many items into several lines",
                )
            return self.rows.parse(text, wanted, header=False)

        blocks = read_blocks(file_split, _DISPLAY_BYTES, self.table.encoding)
        yield from map_in_threads(filter(len, blocks), parse, file_split.threads)


def rows_of_displays(block: bytes | memoryview, separator: str) -> bytes:
    """Returns one line for each shown item of the displays: the display's other fields, the item, the click.

    A line without a separator and an item without a click are copied unchanged. They have too few fields, so
    they are rejected later.

    Args:
        block: lines that end with LF. The last line may lack the LF.
        separator: the character between two fields.
    """
    lines = pa.array(bytes(block).removesuffix(b"\n").split(b"\n"), pa.large_binary())
    fields = pc.split_pattern(lines, separator.encode(), max_splits=1, reverse=True)
    counts = pc.list_value_length(fields)
    is_display = pc.equal(counts, 2)
    shown = pc.list_element(fields.filter(is_display), 1)
    words = pc.split_pattern_regex(shown, r"[ ,;|]+")
    of_line = pc.list_parent_indices(words)
    word = pc.list_flatten(words)
    is_item = pc.greater(pc.binary_length(word), 0)
    word, of_line = word.filter(is_item), of_line.filter(is_item)
    others = pc.list_element(fields.filter(is_display), 0).take(of_line)
    clicks = pc.replace_substring_regex(word, _ITEM_AND_CLICK, f"\\1{separator}\\2".encode())
    between = pa.scalar(separator.encode(), pa.large_binary())
    rows = pc.binary_join_element_wise(others, clicks, between)
    broken = lines.filter(pc.invert(is_display))
    text = b"\n".join([*rows.to_pylist(), *broken.to_pylist()])
    return text + b"\n" if text else b""


def without_first_line(block: RawBlock) -> RawBlock:
    """Returns the block with its first line removed from the rows and the rejected lines.

    The line is still counted.
    """
    rows = np.flatnonzero(block.row_lines >= 1)
    first = len(block.row_lines) - len(rows)
    columns = block.columns
    return RawBlock(
        block.bytes,
        block.lines,
        block.row_lines[rows],
        columns.slice(first, len(block.row_lines))
        if isinstance(columns, DeviceColumns)
        else {name: array.slice(first) for name, array in columns.items()},
        {},  # leave out the counts of values, because the scanner has also counted the header's values
        _without_first(block.broken, 1),
        _without_first(block.malformed, first, first),
        block.texts,
    )


def _without_first(rejected: Mapping[int, str], first: int, less: int = 0) -> Rejections:
    """Returns the rejections whose index is `first` or higher, and subtracts `less` from these indices."""
    if not isinstance(rejected, Rejections):
        rejected = rejections_of(rejected.items())
    kept = rejected.where(rejected.indices >= first)
    return Rejections(kept.indices - less, kept.codes, kept.reasons)


def texts_of_lines(block: bytes | memoryview, lines: Sequence[int]) -> list[str]:
    """Returns the texts of the lines with the indices `lines` in a block, without line ends."""
    if not lines:
        return []
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
    ends = ends if block[-1] == ord("\n") else np.append(ends, len(block))
    starts = [int(ends[line - 1]) + 1 if line else 0 for line in lines]
    return [
        bytes(block[start : int(ends[line])]).decode("utf-8", errors="replace")
        for start, line in zip(starts, lines, strict=True)
    ]


def rows_with(encoded: Values, codes: np.ndarray) -> np.ndarray:
    """Returns the indices of the rows whose dictionary code is one of `codes`, ascending.

    The code of null is the number of values in the dictionary.
    """
    marked = np.zeros(len(encoded.dictionary) + 1, bool)
    marked[codes] = True
    if isinstance(encoded, DeviceColumn):
        return encoded.rows_with(marked)
    return np.flatnonzero(
        marked[encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)]
    )


def _nulls_of(column: Column, rows: int) -> pa.Array:
    """Returns the values of an optional column that the files do not have: a null for each row."""
    values, _ = typed_column(pa.array([], pa.string()), column, [""])
    if column.type in LIST_TYPES:
        return pa.nulls(rows, values.type)
    return pa.DictionaryArray.from_arrays(pa.nulls(rows, pa.int32()), values)


def without_null_values(indices: pa.Array, values: pa.Array) -> pa.DictionaryArray:
    """Returns a dictionary array of the values at `indices`, without nulls in the dictionary.

    A row whose value is null gets a null index, because Arrow cannot unify dictionaries that contain null.
    """
    if not values.null_count:
        # The indices are valid, so they need no check.
        return pa.DictionaryArray.from_arrays(indices, values, safe=False)
    valid = np.append(values.is_valid().to_numpy(zero_copy_only=False), False)
    new_codes = np.cumsum(valid, dtype=np.int32) - 1
    codes = indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
    new_indices = pa.array(new_codes[codes].astype(np.int32), mask=~valid[codes])
    return pa.DictionaryArray.from_arrays(new_indices, values.drop_null())
