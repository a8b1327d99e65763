"""Compares the pages of Parquet files with the checksums that some writers store, such as Spark.

Without this, a damaged page may be decoded to other values. Arrow 14 cannot do it from Python. A header
precedes each page: the struct PageHeader of parquet.thrift, in Thrift's compact protocol
(https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

# Identifiers of fields of a page header.
_COMPRESSED_BYTES, _CHECKSUM = 3, 4
# Types of Thrift's compact protocol.
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)


class WrongPageError(Exception):
    """The content of a page differs from its checksum, or the page has no valid header."""


def verify_pages(
    source: pa.NativeFile, footer: pq.FileMetaData, groups: Sequence[int], names: Sequence[str]
) -> None:
    """Verifies the pages of some columns in some row groups. Pages without a checksum are not verified.

    Args:
        source: the open file.
        footer: its footer.
        groups: indices of row groups.
        names: names of columns. Those of nested columns stand for all their leaves.

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
            start = chunk.data_page_offset
            if chunk.dictionary_page_offset:
                start = min(start, chunk.dictionary_page_offset)
            _verify_chunk(memoryview(source.read_at(chunk.total_compressed_size, start)), path)


def _verify_chunk(chunk: memoryview, path: str) -> None:
    """Verifies the pages of a column chunk. Returns at the first page if it has no checksum."""
    position = 0
    while position < len(chunk):
        try:
            header, position = _integers(chunk, position)
        except IndexError:
            raise WrongPageError(f"a page of the column {path!r} has no valid header") from None
        if _CHECKSUM not in header:
            return
        end = position + header.get(_COMPRESSED_BYTES, -1)
        if not position <= end <= len(chunk):
            raise WrongPageError(f"a page of the column {path!r} has no valid size")
        if zlib.crc32(chunk[position:end]) != header[_CHECKSUM] & 0xFFFFFFFF:
            raise WrongPageError(f"a page of the column {path!r} differs from its checksum")
        position = end


def _integers(data: memoryview, position: int) -> tuple[dict[int, int], int]:
    """Reads a struct. Returns its fields that are integers, by their identifiers, and the position after it.

    Raises:
        IndexError: the data end within the struct.
    """
    fields: dict[int, int] = {}
    identifier = 0
    while True:
        head, position = data[position], position + 1
        kind, delta = head & 0x0F, head >> 4
        if kind == _STOP:
            return fields, position
        if delta:
            identifier += delta
        else:
            identifier, position = _zigzag(data, position)
        if kind in (_I16, _I32, _I64):
            fields[identifier], position = _zigzag(data, position)
        else:
            position = _after(data, position, kind)


def _after(data: memoryview, position: int, kind: int) -> int:
    """Returns the position after a value. Lists, sets and maps do not occur in page headers."""
    if kind in (_TRUE, _FALSE):
        return position
    if kind == _BYTE:
        return position + 1
    if kind == _DOUBLE:
        return position + 8
    if kind == _BINARY:
        length, position = _varint(data, position)
        return position + length
    if kind == _STRUCT:
        return _integers(data, position)[1]
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
