"""Reads Avro object container files.

A file split consists of the file's blocks that begin in a range of bytes. Each block ends with a marker of 16
bytes, which the header contains. So a task finds the first block of its range by searching for this marker.
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from typing import IO, Any, cast

import pyarrow as pa

from conf.errors import DataError
from conf.raw_types import EventTime, RawTable
from etl.raw.file_columns import empty_file
from etl.raw.file_splits import ALWAYS_ALLOWED_BYTES, FileSplit, too_large
from etl.readers.arrow_blocks import check_schema, typed_block
from etl.readers.base import RawBlock, TableReader
from storage import file_io

_MAGIC = b"Obj\x01"
_MARKER_BYTES = 16
_HEADER: Any = {
    "type": "record",
    "name": "header",
    "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "magic", "size": len(_MAGIC)}},
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "sync", "size": _MARKER_BYTES}},
    ],
}
# Splits are small, because decoded rows are Python objects, which need many times the bytes of the file.
_SPLIT_BYTES = 16 * 2**20
_BLOCK_ROWS = 1 << 16
_SEARCH_BYTES = 1 << 20
# Maximum memory of the xz decoder. Level 9 of xz needs less, but a hostile file may demand more.
_XZ_MEMORY_BYTES = 256 * 2**20
_MOST_DIGITS = 38  # largest number of digits of a decimal of 128 bits

_PRIMITIVES: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
}
_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}
# This type stands for records, maps and unions of several types. No column can have such values.
_NESTED = pa.struct([])
_WIDER = ({"int", "long"}, pa.int64()), ({"float", "double"}, pa.float64())


@dataclass(frozen=True)
class _File:
    """The header of a file.

    Attributes:
        path: the path of the file.
        size: number of bytes of the file.
        first_block: position in bytes of the first block, which follows the header.
        marker: the 16 bytes that follow each block.
        codec: name of the compression of the blocks, such as `deflate` or `null`.
        max_expansion: the largest allowed size of decompressed blocks, as a multiple of the compressed size.
        header: the header with a changed schema and without the codec. With this schema, decompressed blocks
            are decoded to values that Arrow can convert.
        types: maps each listed column of the file to its Arrow type.
    """

    path: str
    size: int
    first_block: int
    marker: bytes
    codec: str
    max_expansion: float
    header: bytes
    types: Mapping[str, pa.DataType]


@dataclass(frozen=True)
class AvroReader(TableReader):
    """Reads `avro`.

    Attributes:
        files: the headers of the files that are not empty.
        event_time: the section `log.event_time`; None for a table without times.
    """

    files: tuple[_File, ...]
    event_time: EventTime | None

    @classmethod
    def open(cls, table: RawTable, paths: tuple[str, ...], event_time: EventTime | None = None) -> AvroReader:
        """Reads the headers of all files that are not empty, and checks the listed columns.

        Raises:
            DataError: a file is damaged, lacks a column, or has a column of a type that cannot be read.
            ConfigError: a column has a type that its declared type cannot hold.
        """
        files = [file for path in paths if (file := _read_header(path, table, event_time)) is not None]
        if not files:
            raise empty_file(paths[0])
        return cls(table, paths, tuple(files), event_time)

    def splits(self, split_bytes: int | None = None) -> list[FileSplit]:
        """Returns ranges of bytes after the headers. A file without rows has one split."""
        most = split_bytes or _SPLIT_BYTES
        splits = []
        for file in self.files:
            bounds = [*range(file.first_block, file.size, most), file.size]
            if len(bounds) == 1:
                bounds *= 2
            splits += [FileSplit(file.path, start, end, end - start) for start, end in pairwise(bounds)]
        return splits

    def blocks(self, file_split: FileSplit, wanted: Collection[str]) -> Iterator[RawBlock]:
        """Yields the rows of the file's blocks that begin in the range of bytes.

        Raises:
            DataError: the file is damaged, or a value in a string column cannot be written exactly as text.
        """
        file = next(one for one in self.files if one.path == file_split.path)
        end = file.size if file_split.end is None else file_split.end
        first = 0
        for rows in _rows(file, file_split.start, end):
            before = partial(_rows_before, file, file_split.start, first)
            yield typed_block(rows, self.table, self.event_time, wanted, file.path, before)
            first += len(rows)


@contextmanager
def _damage(path: str) -> Iterator[None]:
    """Converts the errors of decoders, which have many types, to DataError."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path}: the Avro file is damaged: {error!r}", "deliver the file again") from error


def _read_header(path: str, table: RawTable, event_time: EventTime | None) -> _File | None:
    """Returns the header of a file, after its listed columns have been checked; None if the file is empty."""
    import fastavro  # the import takes 0.1 s, so only processes that need the module import it

    files, inner = file_io.filesystem(path)
    with files.open_input_file(inner) as source:
        size = source.size()
        if size == 0:
            return None
        head = source.read_at(min(size, len(_MAGIC)), 0)
        if head != _MAGIC:
            raise DataError(
                f"{path} is not an Avro file; it begins with {head!r}",
                "deliver object container files, or correct `path` and `format` of this table in the "
                "configuration",
            )
        source.seek(0)
        stream = io.BufferedReader(source)
        with _damage(path):
            header: Any = fastavro.schemaless_reader(stream, _HEADER, None)
            first_block = stream.tell()
            schema: Any = json.loads(header["meta"]["avro.schema"])
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise DataError(
            f"{path}: the schema of the Avro file is {json.dumps(schema)}, but it must be a record",
            "write one Avro record for each row",
        )
    with _damage(path):
        names = _definitions(schema)
        if not _least_bytes(schema, names, path):
            raise DataError(
                f"{path}: a row that has the file's schema takes no bytes, so a small file could declare any "
                "number of rows",
                "deliver a file with a column whose type is not null",
            )
        fields = {field["name"]: _arrow_type(field["type"], names) for field in schema["fields"]}
        of_day = {column.source_name for column in table.columns if column.type == "time"}
        fields |= {name: _numbers_of_times(kind) for name, kind in fields.items() if name not in of_day}
        changed = io.BytesIO()
        codec = header["meta"].get("avro.codec", b"null").decode()
        meta = {"avro.codec": b"null", "avro.schema": json.dumps(_plain(schema)).encode()}
        fastavro.schemaless_writer(changed, _HEADER, {**header, "meta": meta})
    listed = check_schema(path, pa.schema(list(fields.items())), table, event_time)
    types = {name: fields[name] for name in listed}
    if codec != "null" and codec not in _DECOMPRESS:
        raise DataError(
            f"{path}: the codec of the Avro file, {codec!r}, is not supported",
            f"write the file with one of these codecs: null, {', '.join(_DECOMPRESS)}",
        )
    return _File(
        path, size, first_block, header["sync"], codec, table.max_expansion, changed.getvalue(), types
    )


def _definitions(schema: Any) -> dict[str, Any]:
    """Maps the names of all named types of a schema, with and without their namespace, to the types."""
    by_name: dict[str, Any] = {}

    def visit(one: Any, namespace: str) -> None:
        if isinstance(one, list):
            for member in one:
                visit(member, namespace)
        elif isinstance(one, dict):
            inner = namespace
            if "name" in one and "type" in one:
                inner = one.get("namespace", one["name"].rpartition(".")[0] or namespace)
                short = one["name"].rpartition(".")[2]
                by_name[short] = by_name[f"{inner}.{short}"] = one
            for field in one.get("fields", ()):
                visit(field["type"], inner)
            for key in ("items", "values", "type"):
                if isinstance(one.get(key), list | dict):
                    visit(one[key], inner)

    visit(schema, "")
    return by_name


def _least_bytes(schema: Any, names: Mapping[str, Any], path: str, outer: tuple[str, ...] = ()) -> int:
    """Returns the least number of bytes that a value may need; 0 if some values need no bytes.

    The function refuses arrays of values that need no bytes. Otherwise, a few bytes of the file could stand
    for billions of values, and the decoder would store all of them. It also refuses records that contain
    themselves. Otherwise, the decoder could call itself until the stack is full.

    Args:
        schema: the Avro type of the value, as parsed from JSON.
        names: maps the names of the schema's named types to their definitions.
        path: the path of the file, for errors.
        outer: the names of the records that contain this value.

    Raises:
        DataError: values of the schema may need unlimited memory.
    """
    if isinstance(schema, list):  # in a union, the number of the member type comes first
        return 1 + min(_least_bytes(one, names, path, outer) for one in schema)
    if isinstance(schema, str):
        if schema in _PRIMITIVES or schema not in names:
            return 0 if schema == "null" else 1
        schema = names[schema]
    kind = schema.get("type")
    if isinstance(kind, list | dict) or kind in names:
        return _least_bytes(kind, names, path, outer)
    if kind == "fixed":
        return int(schema["size"])
    if kind in ("array", "map"):
        item = _least_bytes(schema["items" if kind == "array" else "values"], names, path, outer)
        if kind == "array" and not item:
            raise DataError(
                f"{path}: the schema has an array whose elements take no bytes, so a small file could "
                "declare any number of elements",
                "deliver the file without this column, or with elements that are not null",
            )
        return 1  # an array or map ends with at least one byte
    if kind != "record":
        return 0 if kind == "null" else 1
    if schema["name"] in outer:
        raise DataError(
            f"{path}: the record {schema['name']} in the file's schema contains itself",
            "deliver the file without this column, because a single value could need more memory than the "
            "machine has",
        )
    inner = (*outer, schema["name"])
    return sum(_least_bytes(field["type"], names, path, inner) for field in schema["fields"])


def _arrow_type(schema: Any, names: Mapping[str, Any]) -> pa.DataType:
    """Returns the Arrow type of the values of an Avro type."""
    if isinstance(schema, list):
        return _union_type([one for one in schema if one != "null"], names)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        definition = names.get(schema, {})
        return _arrow_type(definition, names) if definition.get("type") in ("enum", "fixed") else _NESTED
    kind, logical = schema.get("type"), schema.get("logicalType")
    if isinstance(kind, list | dict):
        return _arrow_type(kind, names)
    if kind == "array":
        element = _arrow_type(schema["items"], names)
        return _NESTED if pa.types.is_nested(element) else pa.list_(element)
    if kind in ("bytes", "fixed") and logical == "decimal":
        digits, scale = schema["precision"], schema.get("scale", 0)
        return pa.decimal128(digits, scale) if digits <= _MOST_DIGITS else pa.decimal256(digits, scale)
    if kind == "fixed":
        return pa.binary(schema["size"])
    if kind in ("int", "long") and logical:
        return _time_type(str(logical)) or _PRIMITIVES[kind]
    return _PRIMITIVES.get(kind, _NESTED) if kind not in names else _arrow_type(kind, names)


def _union_type(kinds: list[Any], names: Mapping[str, Any]) -> pa.DataType:
    """Returns the Arrow type of a union. Null was already removed from `kinds`."""
    if not kinds:
        return pa.null()
    if len(kinds) == 1:
        return _arrow_type(kinds[0], names)
    plain = {kind if isinstance(kind, str) else "" for kind in kinds}
    return next((wide for members, wide in _WIDER if plain <= members), _NESTED)


def _time_type(logical: str) -> pa.DataType | None:
    """Returns the Arrow type for an Avro logical type of dates or times; None for other logical types."""
    if logical == "date":
        return pa.date32()
    if logical in ("time-millis", "time-micros"):
        return pa.time32("ms") if logical == "time-millis" else pa.time64("us")
    kind, _, unit = logical.rpartition("-")
    if kind not in ("timestamp", "local-timestamp") or unit not in _UNITS:
        return None
    return pa.timestamp(_UNITS[unit], "UTC" if kind == "timestamp" else None)


def _numbers_of_times(kind: pa.DataType) -> pa.DataType:
    """Replaces times of day in a type by integers. Only columns declared as `time` keep times of day."""
    if pa.types.is_list(kind):
        return pa.list_(_numbers_of_times(kind.value_type))
    if not pa.types.is_time(kind):
        return kind
    return pa.int32() if pa.types.is_time32(kind) else pa.int64()


def _plain(schema: Any) -> Any:
    """Returns a schema for the same bytes that does not convert values to objects such as dates.

    Texts are read as bytes, because error messages must show invalid texts. All logical types except decimals
    are left out.
    """
    if schema == "string":
        return "bytes"
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: value for key, value in schema.items() if key not in ("default", "logicalType")}
    if schema.get("logicalType") == "decimal" and schema.get("type") in ("bytes", "fixed"):
        changed["logicalType"] = "decimal"
    if "fields" in changed:
        changed["fields"] = [_plain(field) for field in changed["fields"]]
    for key in ("type", "items", "values"):
        if key in changed:
            changed[key] = _plain(changed[key])
    return changed


def _rows(file: _File, start: int, end: int) -> Iterator[pa.Table]:
    """Yields the rows of the blocks that begin in a range of bytes, in batches."""
    import fastavro

    files, inner = file_io.filesystem(file.path)
    with files.open_input_file(inner) as source, _damage(file.path):
        first, last = _block_at(source, file, start), _block_at(source, file, end)
        if first == last:
            return
        stream = _DecompressedBlocks(file, source.read_at(last - first, first))
    with _damage(file.path):
        blocks = fastavro.block_reader(cast(IO[bytes], stream), handle_unicode_errors="replace")
        records = _records(blocks, file.path)
    while True:
        with _damage(file.path):
            batch: list[Any] = list(islice(records, _BLOCK_ROWS))
            if not batch:
                return
            columns = {name: _array(batch, name, kind) for name, kind in file.types.items()}
            rows = pa.table(columns) if columns else pa.table({"": pa.nulls(len(batch))})
        yield rows


class _DecompressedBlocks:
    """A binary stream of a header and of blocks. A block is decompressed when its bytes are read.

    fastavro would decompress a block to any size. This class raises an error when the blocks read so
    far have more decompressed bytes in total than the limit of the file allows.
    """

    def __init__(self, file: _File, stored: bytes) -> None:
        """Makes the stream.

        Args:
            file: the header of the file.
            stored: complete blocks as they are in the file.
        """
        self._file = file
        self._most_bytes = max(ALWAYS_ALLOWED_BYTES, int(file.max_expansion * len(stored)))
        self._bytes = 0  # number of decompressed bytes of the blocks read so far
        self._stored = io.BytesIO(stored)
        self._part = io.BytesIO(file.header)
        self._position = 0

    def tell(self) -> int:
        """Returns the number of bytes read so far."""
        return self._position

    def read(self, size: int) -> bytes:
        """Returns the next `size` bytes, or fewer at the end.

        Raises:
            DataError: the decompressed blocks are too large.
            Exception: a block is damaged. The type of the error depends on the codec.
        """
        data = self._part.read(size)
        while len(data) < size and (block := self._next_block()) is not None:
            self._part = io.BytesIO(block)
            data += self._part.read(size - len(data))
        self._position += len(data)
        return data

    def _next_block(self) -> bytes | None:
        if self._file.codec == "null":
            return self._stored.read() or None
        if self._stored.tell() == len(self._stored.getbuffer()):
            return None
        rows, size = _read_long(self._stored), _read_long(self._stored)
        stored = self._stored.read(size)
        if size < 0 or len(stored) < size:
            raise ValueError("a block is not complete")
        marker = self._stored.read(_MARKER_BYTES)
        data = _DECOMPRESS[self._file.codec](stored, self._most_bytes - self._bytes)
        if data is None:
            file_bytes = len(self._stored.getbuffer())
            raise too_large(FileSplit(self._file.path, 0, None, file_bytes, self._most_bytes))
        self._bytes += len(data)
        return b"".join((_long(rows), _long(len(data)), data, marker))


# The next functions return None if a block has more than `most_bytes` bytes when it is decompressed.


def _inflate(stored: bytes, most_bytes: int) -> bytes | None:
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    return _ended(stream, stream.decompress(stored, most_bytes + 1), most_bytes)


def _bunzip2(stored: bytes, most_bytes: int) -> bytes | None:
    stream = bz2.BZ2Decompressor()
    return _ended(stream, stream.decompress(stored, most_bytes + 1), most_bytes)


def _unxz(stored: bytes, most_bytes: int) -> bytes | None:
    stream = lzma.LZMADecompressor(memlimit=_XZ_MEMORY_BYTES)
    return _ended(stream, stream.decompress(stored, most_bytes + 1), most_bytes)


def _ended(stream: Any, data: bytes, most_bytes: int) -> bytes | None:
    if len(data) > most_bytes:
        return None
    if not stream.eof:
        raise ValueError("a compressed block is not complete")
    return data


def _unzstd(stored: bytes, most_bytes: int) -> bytes | None:
    data: bytes = pa.CompressedInputStream(pa.BufferReader(stored), "zstd").read(most_bytes + 1)
    return None if len(data) > most_bytes else data


def _unsnap(stored: bytes, most_bytes: int) -> bytes | None:
    """Decompresses a Snappy block, which begins with the decompressed size and ends with a checksum."""
    size = shift = 0
    for byte in stored[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > most_bytes:
        return None
    data: bytes = pa.decompress(stored[:-4], decompressed_size=size, codec="snappy", asbytes=True)
    return data


def _unlz4(stored: bytes, most_bytes: int) -> bytes | None:
    """Decompresses an LZ4 block, which begins with the decompressed size.

    If a block is shorter than this size, pyarrow would fill the rest with arbitrary bytes of its memory. The
    package lz4 returns only the block.
    """
    import lz4.block

    if int.from_bytes(stored[:4], "little") > most_bytes:
        return None
    data: bytes = lz4.block.decompress(stored)
    return data


# Maps a codec to the function that decompresses its blocks (avro.apache.org/docs/1.11.1/specification).
_DECOMPRESS: Mapping[str, Callable[[bytes, int], bytes | None]] = {
    "deflate": _inflate,
    "bzip2": _bunzip2,
    "xz": _unxz,
    "snappy": _unsnap,
    "zstandard": _unzstd,
    "lz4": _unlz4,
}


def _read_long(stream: io.BytesIO) -> int:
    """Reads an integer: groups of seven bits, the lowest group first, and the sign in the lowest bit."""
    value = shift = 0
    while True:
        byte = stream.read(1)[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1)
        shift += 7


def _long(value: int) -> bytes:
    """Returns the bytes of an integer as Avro stores it."""
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    groups = bytearray()
    while rest > 0x7F:
        groups.append(rest & 0x7F | 0x80)
        rest >>= 7
    groups.append(rest)
    return bytes(groups)


def _records(blocks: Iterable[Any], path: str) -> Iterator[Any]:
    """Yields the records of blocks. Raises DataError for a negative count, which fastavro would skip."""
    for block in blocks:
        if block.num_records < 0:
            raise DataError(
                f"{path}: the Avro file is damaged: a block has {block.num_records} records",
                "deliver the file again",
            )
        yield from block


def _array(records: list[Any], name: str, kind: pa.DataType) -> pa.Array:
    """Returns the values of the field `name` in some records."""
    values = [record[name] for record in records]
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if pa.types.is_date(kind):
        return pa.array(values, pa.int32()).cast(kind)
    if pa.types.is_string(kind):
        return _texts(values)
    if pa.types.is_list(kind) and pa.types.is_string(kind.value_type):
        return pa.array(values, pa.list_(pa.binary()))
    return pa.array(values, kind)


def _texts(values: list[Any]) -> pa.Array:
    """Returns texts (bytes, or str for an enum) as an array of strings.

    If some texts are not UTF-8, the array has bytes.
    """
    if any(isinstance(value, str) for value in values):
        return pa.array(values, pa.string())
    octets = pa.array(values, pa.binary())
    try:
        return octets.cast(pa.string())
    except pa.ArrowInvalid:
        return octets


def _block_at(source: pa.NativeFile, file: _File, position: int) -> int:
    """Returns the start of the first block at or after a position, or the end of the file."""
    start = max(position, file.first_block) - _MARKER_BYTES
    while start < file.size:
        offset = source.read_at(min(_SEARCH_BYTES, file.size - start), start).find(file.marker)
        if offset >= 0:
            return start + offset + _MARKER_BYTES
        start += _SEARCH_BYTES - _MARKER_BYTES + 1
    return file.size


def _rows_before(file: _File, start: int, first: int) -> int:
    """Returns how many rows of the file precede the row `first` of a range of bytes, for an error message."""
    return first + sum(len(rows) for rows in _rows(file, file.first_block, start))
