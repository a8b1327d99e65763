"""Reads Parquet files, and verifies the checksums of their pages. A file split is a range of row groups.

pyarrow 14 does not verify checksums. So this module parses the headers of pages, which are written in
Thrift's compact protocol. It compares the CRC-32 in a header with the content of the page.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from conf.errors import DataError
from conf.raw_types import LIST_TYPES, Column, EventTime, RawTable
from conf.time_notation import UTC
from etl.native.library import is_built
from etl.native.scan import KINDS, DamagedPageError, PagedColumn, merge_dictionaries
from etl.raw.file_columns import (
    empty_file,
    has_column,
    leaves_of,
    parquet_metadata,
    read_footer,
    require_columns,
    stored_columns,
)
from etl.raw.file_splits import FILE_SPLIT_BYTES, FileSplit
from etl.raw.text_values import EXACT_BELOW
from etl.readers.arrow_blocks import row_texts
from etl.readers.arrow_values import (
    NoTextError,
    convert,
    instants,
    malformed_rows,
    null_values,
    one_array,
    reason_of,
    require_type,
    time_zone_of,
)
from etl.readers.base import RawBlock, TableReader
from storage import file_io
from storage.file_digests import open_file

# The declared types of columns for which etl.raw.file_columns has rules.
_PLAIN_TYPES = ("int", "float", "string")
# Number of bytes that a dictionary code or a number takes in memory, even if the file stores fewer.
_VALUE_BYTES = 4
# A row group that is larger than this multiple of a split is read as several blocks.
_BLOCK_SPLITS = 4
_TEXTS = pa.dictionary(pa.int32(), pa.string())
# The encodings of values and levels from which Arrow can read a string column as a dictionary array.
_DICTIONARY_ENCODINGS = frozenset(("PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE", "BIT_PACKED"))
# The values of a column, and the number of rows with each value of its dictionary, int64.
_CountedValues = tuple[pa.DictionaryArray, np.ndarray]
_WRAP_US = 2**64 // 1000
_INT96 = pa.timestamp("us", UTC)
_INT96_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True)
class _StoredColumn:
    """How a file stores a column of the table.

    Attributes:
        is_stored: whether the file has the column. If not, its values are null.
        is_checked: whether values must be checked, because some may not fit the declared type.
        is_int96: whether the column has timestamps of 96 bits.
    """

    is_stored: bool
    is_checked: bool = False
    is_int96: bool = False


@dataclass(frozen=True)
class _File:
    """The footer of a file.

    Attributes:
        path: the path of the file.
        columns: how the file stores each column of the table.
        group_rows: number of rows of each row group.
        group_bytes: for each row group, about how many bytes the listed columns need in memory.
    """

    path: str
    columns: tuple[_StoredColumn, ...]
    group_rows: tuple[int, ...]
    group_bytes: tuple[int, ...]


@dataclass(frozen=True)
class ParquetReader(TableReader):
    """Reads files of the format `parquet`, and copies of the tables in Spark's catalogue.

    Attributes:
        files: the footers of the files that are not empty.
        event_time: the section `log.event_time`; None for a table without times.
    """

    files: tuple[_File, ...]
    event_time: EventTime | None

    @classmethod
    def open(
        cls, table: RawTable, paths: tuple[str, ...], event_time: EventTime | None = None
    ) -> ParquetReader:
        """Reads the footers of all files that are not empty, and checks the listed columns.

        Raises:
            DataError: a file is damaged, lacks a column, or has a column of a type that cannot be read.
            ConfigError: the Parquet type of a column does not fit its declared type.
        """
        files = []
        same: dict[tuple[_StoredColumn, ...], tuple[_StoredColumn, ...]] = {}
        for path in paths:
            footer = read_footer(path)
            if footer is None:
                continue
            columns = _columns_of(path, footer, table, event_time)
            sizes = _group_bytes(footer, table)
            rows = tuple(footer.row_group(group).num_rows for group in range(footer.num_row_groups))
            files.append(_File(path, same.setdefault(columns, columns), rows, sizes))
        if not files:
            raise empty_file(paths[0])
        return cls(table, paths, tuple(files), event_time)

    def splits(self, split_bytes: int | None = None) -> list[FileSplit]:
        """Returns ranges of row groups. A file without rows has one split, which has no row group.

        `end` is None if the only row group of the split is so large that it is read as several blocks.
        """
        most = split_bytes or FILE_SPLIT_BYTES
        splits = []
        for file in self.files:
            start, size = 0, 0
            for group, group_bytes in enumerate(file.group_bytes):
                if group > start and size + group_bytes > most:
                    splits.append(self._split(file, start, group, most))
                    start, size = group, 0
                size += group_bytes
            splits.append(self._split(file, start, len(file.group_bytes), most))
        return splits

    @staticmethod
    def _split(file: _File, start: int, end: int, most: int) -> FileSplit:
        size = sum(file.group_bytes[start:end])
        is_large = end - start == 1 and size > _BLOCK_SPLITS * most
        return FileSplit(file.path, start, None if is_large else end, size)

    def blocks(self, file_split: FileSplit, wanted: Collection[str]) -> Iterator[RawBlock]:
        """Yields the rows of some row groups as one block, or of a large row group as several blocks.

        Raises:
            DataError: the file is damaged, or a value in a string column cannot be written exactly as text
                (see NoTextError).
        """
        file = next(one for one in self.files if one.path == file_split.path)
        first_row = sum(file.group_rows[: file_split.start])
        is_time = self.event_time.column if self.event_time else None
        needed = {
            column.name: (column, stored)
            for column, stored in zip(self.table.columns, file.columns, strict=True)
            if column.name in wanted or column.name == is_time or stored.is_checked
        }
        names = [column.source_name for column, stored in needed.values() if stored.is_stored]
        offset = 0
        for rows, paged in _read(file, file_split, names, counted=True):
            yield self._block(file, file_split, rows, paged, needed, {*wanted, is_time}, first_row, offset)
            offset += len(rows)

    def _block(
        self,
        file: _File,
        file_split: FileSplit,
        rows: pa.Table,
        paged: Mapping[str, _CountedValues],
        needed: Mapping[str, tuple[Column, _StoredColumn]],
        returned: Collection[str | None],
        first_row: int,
        offset: int,
    ) -> RawBlock:
        """Returns a block of n rows.

        Args:
            file, file_split: the file, and the split of the rows.
            rows: the values of those columns in `needed` that the file stores and that are not in `paged`.
            paged: maps the name of a column in the file to its values and the number of rows with each value.
            needed: the columns that are returned or checked, and how the file stores them.
            returned: the names of the columns of the block.
            first_row: the first row of the split, as an index into the rows of the file.
            offset: the first row of the block, as an index into the rows of the split.
        """
        columns: dict[str, pa.Array] = {}
        counts: dict[str, np.ndarray] = {}
        malformed: dict[int, str] = {}
        exact_time = None
        for column, stored in needed.values():
            if not stored.is_stored:
                columns[column.name] = null_values(column, len(rows))
                continue
            of_values: np.ndarray | None
            if column.source_name in paged:
                values, of_values = paged[column.source_name]
            else:
                values, of_values = _counted(_stored_values(rows, column, stored))
            unit = self._unit(column)
            time_zone = time_zone_of(self.table)
            if unit is not None and pa.types.is_timestamp(values.type):
                exact_time = instants(values, "us", time_zone)
            try:
                if column.name in returned:
                    converted = convert(values, column, unit, time_zone)
                    columns[column.name] = converted.values
                    if column.type in LIST_TYPES:
                        of_values = None  # lists have no dictionary, even if the file stores them as texts
                    if of_values is not None and len(converted.values.dictionary) == len(of_values):
                        counts[column.name] = of_values
                    bad = converted.malformed
                else:
                    bad = malformed_rows(values, column, time_zone)
            except NoTextError as error:
                raise error.error(file.path, first_row + offset) from None
            for row in bad.tolist():
                malformed.setdefault(row, reason_of(column))
        return RawBlock(
            bytes=int(rows.nbytes) + sum(values.nbytes for values, _ in paged.values()),
            lines=len(rows),
            row_lines=np.arange(len(rows), dtype=np.int64),
            columns=columns,
            counts=counts,
            broken={},
            malformed=malformed,
            texts=partial(self._texts, file, file_split, offset, rows),
            exact_time=exact_time,
        )

    def _unit(self, column: Column) -> str | None:
        """Returns the unit of the event time if `column` is the event time and has integers."""
        event_time = self.event_time
        is_time = event_time is not None and column.name == event_time.column and column.type == "int"
        return event_time.unit if event_time is not None and is_time else None

    def _texts(
        self, file: _File, file_split: FileSplit, offset: int, rows: pa.Table, lines: Sequence[int]
    ) -> list[str]:
        """Returns some rows of a block as JSON. Columns that the block lacks are read from the file.

        Args:
            file, file_split: the file, and the split of the rows.
            offset: the first row of the block, as an index into the rows of the split.
            rows: the columns that were read for the block.
            lines: indices of rows of the block, ascending.
        """
        if not lines:
            return []
        taken = rows.take(pa.array(lines, pa.int64()))
        others = [
            column.source_name
            for column, stored in zip(self.table.columns, file.columns, strict=True)
            if stored.is_stored and column.source_name not in rows.column_names
        ]
        if others:
            read = (part for part, _ in _read(file, file_split, others))
            parts = _rows_at(read, np.asarray(lines, np.int64) + offset)
            for name, values in zip(parts.column_names, parts.columns, strict=True):
                taken = taken.append_column(name, values)
        return row_texts(self._shown_columns(file, taken), len(taken))

    def _shown_columns(self, file: _File, rows: pa.Table) -> dict[str, pa.ChunkedArray]:
        """Returns the columns to show as JSON; 96-bit timestamps are texts in Spark's format."""
        shown = {}
        for column, stored in zip(self.table.columns, file.columns, strict=True):
            if not stored.is_stored:
                continue
            values = _stored_values(rows, column, stored)
            if stored.is_int96:
                milliseconds = instants(values, "ms").cast(pa.timestamp("ms"))
                values = pa.chunked_array([pc.strftime(milliseconds, _INT96_FORMAT)])
            shown[column.source_name] = values
        return shown


def _read(
    file: _File, file_split: FileSplit, names: Sequence[str], counted: bool = False
) -> Iterator[tuple[pa.Table, dict[str, _CountedValues]]]:
    """Yields the rows of a file split, with the columns `names` of the file.

    Each result is a table and a dict. If `counted` is set, the dict contains the columns whose pages this
    module can decode, and the number of rows with each of their values. The table contains all other columns.
    If there are none, it has one column of nulls.
    """
    start, end = file_split.start, file_split.end
    groups = [start] if end is None else list(range(start, end))
    # The columns of a row group without rows may have no pages.
    groups = [group for group in groups if file.group_rows[group]]
    count = sum(file.group_rows[group] for group in groups)
    if not count:
        return
    if not names:
        yield pa.table({"": pa.nulls(count)}), {}
        return
    # the file may be on an object store, because copies of catalogue tables are stored in the lake
    with open_file(file.path) as source:
        try:
            footer = parquet_metadata(source)
            paged = read_paged(source, footer, groups, names) if counted and end is not None else {}
            names = [name for name in names if name not in paged]
            if not names:
                yield pa.table({"": pa.nulls(count)}), paged
                return
            parquet = pq.ParquetFile(
                source,
                metadata=footer,
                # pyarrow ignores `read_dictionary` for columns that do not contain strings, so these columns
                # need not be left out.
                read_dictionary=_with_dictionaries(footer, groups, names),
                pre_buffer=not file_io.is_local(file.path),
                coerce_int96_timestamp_unit="us",
            )
            verify_pages(source, footer, groups, names)
            if end is not None:
                yield parquet.read_row_groups(groups, columns=names, use_threads=False), paged
                return
            most = max(1, count * FILE_SPLIT_BYTES // max(1, file.group_bytes[start]))
            for batch in parquet.iter_batches(most, groups, columns=names, use_threads=False):
                yield pa.Table.from_batches([batch]), {}
        except (pa.ArrowException, OSError, WrongPageError) as error:
            raise DataError(
                f"{file.path}: the rows of the row groups {groups} are damaged: {error}",
                "deliver the file again",
            ) from error


def _with_dictionaries(footer: pq.FileMetaData, groups: Sequence[int], names: Sequence[str]) -> list[str]:
    """Returns those of the columns `names` whose encodings Arrow can read as dictionary arrays.

    For example, version 2 of Parquet has encodings of strings that Arrow can read only as plain arrays.
    """
    indices = [index for index in range(footer.num_columns) if footer.schema.column(index).path in names]
    chunks = [footer.row_group(group).column(index) for group in groups for index in indices]
    others = {
        chunk.path_in_schema for chunk in chunks if not _DICTIONARY_ENCODINGS.issuperset(chunk.encodings)
    }
    return sorted({chunk.path_in_schema for chunk in chunks} - others)


def _rows_at(parts: Iterator[pa.Table], wanted: np.ndarray) -> pa.Table:
    """Returns the rows with the indices `wanted`, (n,) int64 ascending.

    An index counts the rows of all `parts`, one part after the other.
    """
    taken = []
    first = 0
    for rows in parts:
        low, high = np.searchsorted(wanted, [first, first + len(rows)])
        taken.append(rows.take(pa.array(wanted[low:high] - first)))
        first += len(rows)
    return pa.concat_tables(taken)


def _stored_values(rows: pa.Table, column: Column, stored: _StoredColumn) -> pa.ChunkedArray:
    """Returns the values of a column as they are stored.

    Timestamps of 96 bits are instants, so their type has the time zone UTC. Arrow reads them without a zone.

    Some writers store a time before 1970 in 96 bits as a day and a negative number of nanoseconds of the day.
    Arrow reads this number as unsigned, so it returns a time that is 2⁶⁴ ns too late (in the years 2262 to
    2554). This function corrects such times.
    """
    values = rows.column(column.source_name)
    if not stored.is_int96:
        return values
    microseconds = one_array(values).cast(pa.int64())
    is_late = pc.and_(pc.greater(microseconds, _WRAP_US // 2), pc.less_equal(microseconds, _WRAP_US))
    corrected = pc.if_else(is_late, pc.subtract(microseconds, _WRAP_US), microseconds)
    return pa.chunked_array([corrected.cast(_INT96)])


def _counted(values: pa.ChunkedArray) -> tuple[pa.ChunkedArray | pa.Array, np.ndarray | None]:
    """Merges the dictionaries of the chunks of a string column, and counts the rows with each value.

    Returns other columns unchanged, with None as counts.
    """
    if values.num_chunks < 2 or values.type != _TEXTS or not is_built():
        return values, None
    return merge_dictionaries(values.chunks)


def _columns_of(
    path: str, footer: pq.FileMetaData, table: RawTable, event_time: EventTime | None
) -> tuple[_StoredColumn, ...]:
    """Returns how a file stores each column of a table. Raises an error if a column cannot be read."""
    require_columns(path, footer, table)
    plain = [column for column in table.columns if column.type in _PLAIN_TYPES]
    stored = stored_columns(path, footer, table.model_copy(update={"columns": plain}), event_time)
    by_name = {column.name: one for column, one in zip(plain, stored, strict=True)}
    columns = []
    for column in table.columns:
        one = by_name.get(column.name)
        if one is not None:
            is_checked = not one.unit and _is_checked(column, one.kind)
            columns.append(_StoredColumn(one.kind is not None, is_checked, one.unit == "int96"))
        elif not has_column(path, footer, column):
            columns.append(_StoredColumn(False))
        else:
            is_time = event_time is not None and column.name == event_time.column
            kind = footer.schema.to_arrow_schema().field(column.source_name).type
            require_type(path, column, kind, is_time)
            is_int96 = any(leaf.physical_type == "INT96" for _, leaf in leaves_of(footer, column))
            columns.append(_StoredColumn(True, True, is_int96))
    return tuple(columns)


def _is_checked(column: Column, stored: str | None) -> bool:
    """Returns whether a column may have values that do not fit its declared type.

    `stored` is the type of the column in the file; None if the file does not have the column.
    """
    if stored is None:
        return False
    if column.type == "string":
        return stored in (*EXACT_BELOW, "binary") or stored.startswith("decimal")
    return stored not in ("boolean", "int", "bigint")


def _group_bytes(footer: pq.FileMetaData, table: RawTable) -> tuple[int, ...]:
    """Returns about how many bytes the listed columns need in memory, for each row group."""
    indices = [index for column in table.columns for index, _ in leaves_of(footer, column)]
    sizes = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        least = _VALUE_BYTES * group.num_rows
        sizes.append(sum(max(least, group.column(index).total_uncompressed_size) for index in indices))
    return tuple(sizes)


# The code below reads columns whose pages are all dictionary-encoded, without Arrow.
#
# Such a column chunk has one page with its distinct values, and pages with the index of each row's value.
# Arrow would create an array for each chunk. The dictionaries would then have to be merged, and the rows with
# each value counted. The compiled library does all this in one pass over the pages (etl/native/pages.cpp).
# Most columns of a log are stored in this way. Arrow reads all other columns: nested columns, and columns
# with other kinds of pages.

_CODECS = {"SNAPPY": "snappy", "GZIP": "gzip", "ZSTD": "zstd", "UNCOMPRESSED": None}
# Fields of a page header, as identifiers from parquet.thrift, and some values of these fields.
_TYPE, _BYTES = (1,), (2,)
_DATA, _VALUES, _DATA_2 = 0, 2, 3
_COUNT, _ENCODING = (
    {_DATA: (5, 1), _VALUES: (7, 1), _DATA_2: (8, 1)},
    {_DATA: (5, 2), _VALUES: (7, 2), _DATA_2: (8, 4)},
)
_LEVEL_ENCODING, _LEVEL_BYTES, _IS_COMPRESSED = (5, 3), (8, 5), (8, 7)
_PLAIN, _OLD_DICTIONARY, _RUNS, _DICTIONARY = 0, 2, 3, 8
_LENGTH_BYTES = 4  # Size of the field before the definition levels, which contains their length in bytes.
_LEAST_BYTES = 4  # Size of the smallest stored values: 4-byte numbers, and empty texts with their length.


@dataclass(frozen=True)
class _Page:
    """A decompressed page.

    Attributes:
        count: number of values of a dictionary page, or number of rows of a data page.
        levels: the definition levels, which mark null rows; None if no row can be null.
        body: the values of a dictionary page, or the encoded indices of a data page.
    """

    count: int
    levels: pa.Buffer | None
    body: pa.Buffer


def read_paged(
    source: pa.NativeFile, footer: pq.FileMetaData, groups: Sequence[int], names: Sequence[str]
) -> dict[str, tuple[pa.DictionaryArray, np.ndarray]]:
    """Reads the columns whose pages are all dictionary-encoded, and verifies the checksums of these pages.

    Args:
        source: the open file.
        footer: the footer of the file.
        groups: indices of row groups, at least one.
        names: the names of the columns in the file.

    Returns:
        For each column that was read: its n values, and the number of rows with each value of its dictionary,
        int64. An empty text is null. Without the compiled library, no column is read.

    Raises:
        WrongPageError: a page is damaged.
        OSError: a page cannot be read or decompressed.
    """
    read = {}
    for index, kind in _kinds(footer, names).items() if is_built() else ():
        name = footer.schema.column(index).path
        try:
            column = _read_column(source, footer, groups, index, kind)
        except DamagedPageError:
            raise WrongPageError(f"a page of the column {name!r} cannot be decoded") from None
        if column is not None:
            read[name] = column.result()
    return read


def _kinds(footer: pq.FileMetaData, names: Sequence[str]) -> dict[int, pa.DataType]:
    """Returns the types of the columns that this module may read, by the columns' indices in the file."""
    schema, wanted = footer.schema.to_arrow_schema(), frozenset(names)
    kinds = {}
    for index in range(footer.num_columns):
        column = footer.schema.column(index)
        if column.path not in wanted or column.max_repetition_level or column.max_definition_level > 1:
            continue
        places = schema.get_all_field_indices(column.path)
        if len(places) == 1 and schema.field(places[0]).type in KINDS:
            kinds[index] = schema.field(places[0]).type
    return kinds


def _read_column(
    source: pa.NativeFile, footer: pq.FileMetaData, groups: Sequence[int], index: int, kind: pa.DataType
) -> PagedColumn | None:
    """Returns a column of some row groups; None if this module cannot read one of its pages."""
    nullable = footer.schema.column(index).max_definition_level == 1
    chunks: list[list[_Page]] = []
    rows = 0
    for group in groups:
        row_group = footer.row_group(group)
        chunk = row_group.column(index)
        if not chunk.has_dictionary_page or chunk.compression not in _CODECS:
            return None
        pages = _pages(memoryview(chunk_bytes(source, chunk)), chunk, nullable)
        if pages is None:
            return None
        if sum(page.count for page in pages[1:]) != row_group.num_rows:
            raise WrongPageError(
                f"the pages of the column {chunk.path_in_schema!r} do not have as many rows as the row group"
            )
        chunks.append(pages)
        rows += row_group.num_rows
    values = sum(pages[0].count for pages in chunks)
    column = PagedColumn(kind, values, sum(pages[0].body.size for pages in chunks), rows)
    for dictionary, *pages in chunks:
        column.begin_chunk(dictionary.count, dictionary.body)
        for page in pages:
            column.add_page(page.count, page.levels, page.body)
    return column


def _pages(data: memoryview, chunk: pq.ColumnChunkMetaData, nullable: bool) -> list[_Page] | None:
    """Returns the pages of a column chunk, beginning with the page of distinct values.

    Returns None if this module cannot read one of them.
    """
    stored = [page for page in pages_of(data, chunk.path_in_schema) if page[0].get(_TYPE) in _COUNT]
    if not all(_is_read(header, index == 0, nullable) for index, (header, _) in enumerate(stored)):
        return None
    codec = _CODECS[chunk.compression]
    pages = [_page(header, data, codec, nullable) for header, data in stored]
    read = [page for page in pages if page is not None]
    if len(read) < len(pages) or not pages:
        raise WrongPageError(f"a page of the column {chunk.path_in_schema!r} has no valid size")
    return read


def _is_read(header: Header, is_first: bool, nullable: bool) -> bool:
    """Returns whether this module can read a page. The first page has values, the others have indices."""
    kind = header[_TYPE]
    encodings = (_PLAIN, _OLD_DICTIONARY) if is_first else (_OLD_DICTIONARY, _DICTIONARY)
    has_runs = kind != _DATA or not nullable or header.get(_LEVEL_ENCODING) == _RUNS
    return (kind == _VALUES) == is_first and header.get(_ENCODING[kind]) in encodings and has_runs


def _page(header: Header, stored: memoryview, codec: str | None, nullable: bool) -> _Page | None:
    """Returns the decompressed page; None if the sizes in its header are wrong."""
    kind, count, size = header[_TYPE], header.get(_COUNT[header[_TYPE]], -1), header.get(_BYTES, -1)
    if min(count, size) < 0:
        return None
    if kind == _DATA_2:  # in version 2 of data pages, the levels are not compressed
        length = header.get(_LEVEL_BYTES, 0)
        if not 0 <= length <= min(size, len(stored)):
            return None
        codec = codec if header.get(_IS_COMPRESSED, 1) else None
        levels = pa.py_buffer(stored[:length]) if nullable else None
        return _Page(count, levels, _decompressed(stored[length:], size - length, codec))
    body = _decompressed(stored, size, codec)
    if kind == _VALUES and count * _LEAST_BYTES > body.size:
        return None
    if kind == _VALUES or not nullable:
        return _Page(count, None, body)
    length = int.from_bytes(memoryview(body)[:_LENGTH_BYTES], "little")
    if body.size < _LENGTH_BYTES + length:
        return None
    return _Page(count, body.slice(_LENGTH_BYTES, length), body.slice(_LENGTH_BYTES + length))


def _decompressed(stored: memoryview, size: int, codec: str | None) -> pa.Buffer:
    if codec is None or not size:
        return pa.py_buffer(stored)
    return pa.Codec(codec).decompress(stored, size)


# The functions below compare pages with the checksums that some writers, such as Spark, store.

# Fields of a page header.
COMPRESSED_BYTES, _CHECKSUM = (3,), (4,)
# Types of Thrift's compact protocol.
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)


# The integers in a page header and in its structs. A key is a path of field identifiers: (5, 1) is field 1 of
# the struct in field 5. True and false are 1 and 0.
Header = dict[tuple[int, ...], int]


class WrongPageError(Exception):
    """The checksum of a page does not match its content, or the page has no valid header or size."""


def verify_pages(
    source: pa.NativeFile, footer: pq.FileMetaData, groups: Sequence[int], names: Sequence[str]
) -> None:
    """Verifies the pages of some columns in some row groups.

    The pages of a column chunk are verified up to the first page without a checksum.

    Args:
        source: the open file.
        footer: the footer of the file.
        groups: indices of the row groups to verify.
        names: names of columns. The name of a nested column selects all its leaves.

    Raises:
        WrongPageError: a page is damaged.
    """
    for group in groups:
        row_group = footer.row_group(group)
        for index in range(row_group.num_columns):
            chunk = row_group.column(index)
            path = chunk.path_in_schema
            if path not in names and not any(path.startswith(f"{name}.") for name in names):
                continue
            _verify_chunk(memoryview(chunk_bytes(source, chunk)), path)


def chunk_bytes(source: pa.NativeFile, chunk: pq.ColumnChunkMetaData) -> bytes:
    """Reads the pages of a column chunk."""
    start = chunk.data_page_offset
    if chunk.dictionary_page_offset:
        start = min(start, chunk.dictionary_page_offset)
    return bytes(source.read_at(chunk.total_compressed_size, start))


def _verify_chunk(chunk: memoryview, path: str) -> None:
    """Verifies the pages of a column chunk, up to the first page without a checksum."""
    for header, _ in pages_of(chunk, path):
        if _CHECKSUM not in header:
            return


def pages_of(chunk: memoryview, path: str) -> Iterator[tuple[Header, memoryview]]:
    """Yields the header and the bytes of each page of a column chunk. Verifies pages that have a checksum.

    Args:
        chunk: the bytes of all pages of the column chunk.
        path: the name of the column, for error messages.

    Raises:
        WrongPageError: a page is damaged.
    """
    position = 0
    while position < len(chunk):
        header: Header = {}
        try:
            position = _integers(chunk, position, header, ())
        except IndexError:
            raise WrongPageError(f"a page of the column {path!r} has no valid header") from None
        end = position + header.get(COMPRESSED_BYTES, -1)
        if not position <= end <= len(chunk):
            raise WrongPageError(f"a page of the column {path!r} has no valid size")
        page = chunk[position:end]
        if _CHECKSUM in header and zlib.crc32(page) != header[_CHECKSUM] & 0xFFFFFFFF:
            raise WrongPageError(f"a page of the column {path!r} differs from its checksum")
        yield header, page
        position = end


def _integers(data: memoryview, position: int, fields: Header, outer: tuple[int, ...]) -> int:
    """Reads a struct, adds its integers to `fields`, and returns the position after it.

    Args:
        data: bytes that contain the header of a page.
        position: the index in `data` at which the struct begins.
        fields: maps the identifiers of fields to their integers; the function adds entries.
        outer: the identifiers of the fields around the struct.

    Raises:
        IndexError: the data end within the struct.
    """
    identifier = 0
    while True:
        head, position = data[position], position + 1
        kind, delta = head & 0x0F, head >> 4
        if kind == _STOP:
            return position
        if delta:
            identifier += delta
        else:
            identifier, position = _zigzag(data, position)
        field = (*outer, identifier)
        if kind in (_I16, _I32, _I64):
            fields[field], position = _zigzag(data, position)
        elif kind in (_TRUE, _FALSE):
            fields[field] = int(kind == _TRUE)
        elif kind == _STRUCT:
            position = _integers(data, position, fields, field)
        else:
            position = _after(data, position, kind)


def _after(data: memoryview, position: int, kind: int) -> int:
    """Returns the position after a value.

    Lists, sets and maps raise IndexError, because page headers have none.
    """
    if kind == _BYTE:
        return position + 1
    if kind == _DOUBLE:
        return position + 8
    if kind == _BINARY:
        length, position = _varint(data, position)
        return position + length
    raise IndexError


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        octet, position = data[position], position + 1
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            return value, position
        shift += 7


def _zigzag(data: memoryview, position: int) -> tuple[int, int]:
    value, position = _varint(data, position)
    return (value >> 1) ^ -(value & 1), position
