"""Reads columns of Parquet files whose pages are all dictionary-encoded, without Arrow.

Such a column chunk has one page with its distinct values, and pages with the index of each row's value. Arrow
creates an array for each chunk. Then the dictionaries must still be merged, and the rows counted. The
compiled library does all this in one pass over the pages (etl/native/pages.cpp). Most columns of a log are
stored in this way. Arrow reads nested columns, and columns with other pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from etl.native.library import is_built
from etl.native.pages import KINDS, DamagedPageError, PagedColumn
from etl.readers.parquet_checksums import Header, WrongPageError, chunk_bytes, pages_of

_CODECS = {"SNAPPY": "snappy", "GZIP": "gzip", "ZSTD": "zstd", "UNCOMPRESSED": None}
# Fields of the header of a page, by the identifiers of parquet.thrift, and some of their values.
_TYPE, _BYTES = (1,), (2,)
_DATA, _VALUES, _DATA_2 = 0, 2, 3
_COUNT, _ENCODING = (
    {_DATA: (5, 1), _VALUES: (7, 1), _DATA_2: (8, 1)},
    {_DATA: (5, 2), _VALUES: (7, 2), _DATA_2: (8, 4)},
)
_LEVEL_ENCODING, _LEVEL_BYTES, _IS_COMPRESSED = (5, 3), (8, 5), (8, 7)
_PLAIN, _OLD_DICTIONARY, _RUNS, _DICTIONARY = 0, 2, 3, 8
_LENGTH_BYTES = 4  # size of the length before the levels
_LEAST_BYTES = 4  # smallest size of a number, and size of the length of a text


@dataclass(frozen=True)
class _Page:
    """A page after decompression: number of values or rows, levels if rows may be null, and the data."""

    count: int
    levels: pa.Buffer | None
    body: pa.Buffer


def read_paged(
    source: pa.NativeFile, footer: pq.FileMetaData, groups: Sequence[int], names: Sequence[str]
) -> dict[str, tuple[pa.DictionaryArray, np.ndarray]]:
    """Reads the columns that have only dictionary-encoded pages, and verifies the checksums of the pages.

    Args:
        source: the open file.
        footer: the footer of the file.
        groups: indices of row groups, at least one.
        names: names of columns.

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
    """Returns the types of the columns that may be read, by their indices in the file."""
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
    """Returns a column of some row groups; None if a page has another encoding."""
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
    """Returns the pages of a column chunk, first the page of values.

    Returns None if a page has another encoding.
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
    """Returns whether this module can read a page: the first must have values, the others indices."""
    kind = header[_TYPE]
    encodings = (_PLAIN, _OLD_DICTIONARY) if is_first else (_OLD_DICTIONARY, _DICTIONARY)
    has_runs = kind != _DATA or not nullable or header.get(_LEVEL_ENCODING) == _RUNS
    return (kind == _VALUES) == is_first and header.get(_ENCODING[kind]) in encodings and has_runs


def _page(header: Header, stored: memoryview, codec: str | None, nullable: bool) -> _Page | None:
    """Decompresses a page; None if its sizes are wrong."""
    kind, count, size = header[_TYPE], header.get(_COUNT[header[_TYPE]], -1), header.get(_BYTES, -1)
    if min(count, size) < 0:
        return None
    if kind == _DATA_2:  # the levels are not compressed
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
