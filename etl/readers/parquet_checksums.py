"""Compares the pages of Parquet files with the checksums that some writers, such as Spark, store.

Without this check, a damaged page may be decoded to wrong values. Arrow 14 has no such check in Python. A
header precedes each page: the struct PageHeader of parquet.thrift, in Thrift's compact protocol
(https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

# Fields of a page header.
COMPRESSED_BYTES, _CHECKSUM = (3,), (4,)
# Types of Thrift's compact protocol.
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)


# The integers in the header of a page and in its structs, by the identifiers of their fields: (5, 1) is the
# field 1 of the struct in the field 5. True and false are 1 and 0.
Header = dict[tuple[int, ...], int]


class WrongPageError(Exception):
    """The checksum of a page does not match its content, or the page has no valid header."""


def verify_pages(
    source: pa.NativeFile, footer: pq.FileMetaData, groups: Sequence[int], names: Sequence[str]
) -> None:
    """Verifies the pages of some columns in some row groups. Pages without a checksum are not verified.

    Args:
        source: the open file.
        footer: the footer of the file.
        groups: indices of row groups.
        names: names of columns. The name of a nested column includes all its leaves.

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
    """Verifies the pages of a column chunk, unless its first page has no checksum."""
    for header, _ in pages_of(chunk, path):
        if _CHECKSUM not in header:
            return


def pages_of(chunk: memoryview, path: str) -> Iterator[tuple[Header, memoryview]]:
    """Yields the header and the bytes of each page of a column chunk. Verifies pages that have a checksum.

    Args:
        chunk: the pages of the chunk.
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
        position: the position of the struct.
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

    It accepts no lists, sets and maps, because page headers have none.
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
