"""File splits: the byte ranges of raw text files that tasks read as complete lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol

import pyarrow as pa

from conf.errors import DataError
from storage import file_io

# A task holds one file split in memory. Parsing needs about three times the bytes of the split. The lines of
# a split are one block, so each distinct value of the split is checked once. A compressed file cannot be
# divided into splits, so it is read as several blocks.
FILE_SPLIT_BYTES = 64 * 2**20
BLOCK_BYTES = 2 * FILE_SPLIT_BYTES
_LONGEST_LINE_BYTES = 64 * 2**20
_PIECE_BYTES = 1 << 19  # bytes that are decompressed at a time; so few that they fit into the cache
_READ_AHEAD_BYTES = 1 << 14  # read after a split, because its last line may end there
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
NOT_COMPRESSED = (
    "deliver the file again: it is damaged or incomplete, or it is not compressed as the end of its name says"
)
_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}


@dataclass(frozen=True)
class FileSplit:
    """A part of one raw file: the lines that begin in the bytes [start, end).

    Attributes:
        end: end of the byte range; None for a compressed file, which is a single split.
        bytes: number of bytes of the split; for a compressed file, its compressed size.
        threads: number of threads with which a task reads a compressed file.
    """

    path: str
    start: int
    end: int | None
    bytes: int = field(default=0, compare=False)
    threads: int = field(default=1, compare=False)


def compression(path: str) -> str | None:
    """Returns the codec of a raw file from its name; None for plain text."""
    return next((codec for suffix, codec in _CODECS.items() if path.endswith(suffix)), None)


def split_files(paths: Sequence[str], split_bytes: int = FILE_SPLIT_BYTES) -> list[FileSplit]:
    """Divides files into file splits of about `split_bytes` bytes.

    The splits have the order of the files and of their lines. An empty file has no split.
    """
    splits = []
    for path in paths:
        files, inner = file_io.filesystem(path)
        size = files.get_file_info(inner).size
        if compression(path):
            splits.append(FileSplit(path, 0, None, size))
            continue
        count = max(1, round(size / split_bytes)) if size else 0
        bounds = [size * index // count for index in range(count)] + [size] if count else []
        splits += [FileSplit(path, start, end, end - start) for start, end in pairwise(bounds)]
    return splits


def share_threads(splits: Sequence[FileSplit], threads: int) -> list[FileSplit]:
    """Returns file splits that use all threads of this machine, even if there are fewer splits than threads.

    Only the number of threads for a compressed file, which is one split, changes.
    """
    of_each = max(1, threads // max(1, len(splits)))
    return [replace(one, threads=of_each) if one.end is None else one for one in splits]


def read_blocks(file_split: FileSplit, block_bytes: int | None = None) -> Iterator[bytes | memoryview]:
    """Yields the lines of a file split, as blocks of complete lines.

    A line ends with LF, CR LF or CR, as in Spark's text reader. The last line of a file may have no line end.
    A byte order mark at the start of the file is removed.

    Args:
        block_bytes: number of bytes to read at once. With the default, a split of a plain file is one block,
            and a compressed file is read in blocks of 64 MiB.

    Raises:
        DataError: a line is longer than 64 MiB, or a compressed file is damaged.
    """
    size = block_bytes or (FILE_SPLIT_BYTES if file_split.end is None else BLOCK_BYTES)
    for index, (data, stop) in enumerate(_raw_blocks(file_split, size)):
        marked = index == 0 and file_split.start == 0 and data.startswith(_BYTE_ORDER_MARK)
        start = len(_BYTE_ORDER_MARK) if marked else 0
        if data.find(b"\r", start, stop) >= 0:
            yield bytes(data[start:stop].replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
        elif isinstance(data, bytes) and (start, stop) == (0, len(data)):
            yield data
        elif start < stop:
            yield memoryview(data)[start:stop]  # data[start:stop] would copy


def _raw_blocks(file_split: FileSplit, block_bytes: int) -> Iterator[tuple[bytes | bytearray, int]]:
    """Yields the bytes of each block, and the number of bytes at its start that form complete lines."""
    files, inner = file_io.filesystem(file_split.path)
    if file_split.end is None:
        with files.open_input_stream(inner, compression=None) as raw:
            stream = _decompressed(raw, compression(file_split.path))
            yield from _compressed_blocks(stream, block_bytes, file_split)
        return
    with files.open_input_file(inner) as source:
        position = file_split.start
        if file_split.start:
            # A line that begins before `start` belongs to the previous split.
            source.seek(file_split.start - 1)
            first = _first_line(source, file_split)
            if first is None:
                return
            position = first
            source.seek(position)
        yield from _plain_blocks(source, position, file_split, block_bytes)


def _first_line(source: pa.NativeFile, file_split: FileSplit) -> int | None:
    """Returns the byte position of the first line that begins in the split; None if there is no such line."""
    position = file_split.start - 1
    while True:
        data = source.read(1 << 16)
        if not data:
            return None
        line_end = data.find(b"\n")
        if line_end >= 0:
            start = position + line_end + 1
            return start if file_split.end is None or start < file_split.end else None
        position += len(data)


def _plain_blocks(
    source: pa.NativeFile, position: int, file_split: FileSplit, block_bytes: int
) -> Iterator[tuple[bytes, int]]:
    """Yields blocks of the lines that begin between `position` and the end of the split."""
    carry = b""
    end = file_split.end if file_split.end is not None else 2**63
    while True:
        # The last line is rarely longer than _READ_AHEAD_BYTES.
        remaining = end - position - len(carry) + _READ_AHEAD_BYTES
        read = source.read(max(min(block_bytes, remaining), 1))
        data = carry + read if carry else read
        if not data:
            return
        if position + len(data) >= end:
            yield from _last_lines(source, data, end - position, file_split)
            return
        whole = data.rfind(b"\n") + 1
        if not read:
            yield data, len(data)
            return
        if whole:
            yield data, whole
        carry, position = data[whole:], position + whole
        _require_short(carry, file_split)


def _last_lines(
    source: pa.NativeFile, data: bytes, remaining: int, file_split: FileSplit
) -> Iterator[tuple[bytes, int]]:
    """Yields the lines that begin in the first `remaining` bytes of `data`.

    If the last of these lines ends after `data`, its end is read from `source`.
    """
    stop = data.find(b"\n", max(remaining - 1, 0))
    while stop < 0:
        read = source.read(1 << 16)
        if not read:
            if data:
                yield data, len(data)
            return
        data += read
        stop = data.find(b"\n", max(remaining - 1, 0))
        _require_short(data[data.rfind(b"\n") + 1 :], file_split)
    yield data, stop + 1


class _Stream(Protocol):
    """The decompressed bytes of a file."""

    def read(self, size: int, /) -> bytes:
        """Returns at most `size` bytes; none at the end."""


class _Gzip:
    """The decompressed bytes of a gzip file with one or more members. ISA-L takes a third of zlib's time."""

    def __init__(self, raw: pa.NativeFile) -> None:
        from isal import igzip, isal_zlib  # only processes that read such files need it

        self._file = igzip.IGzipFile(fileobj=raw, mode="rb")
        self._damaged: type[Exception] = isal_zlib.error  # type: ignore[assignment]  # declared as an instance

    def read(self, size: int, /) -> bytes:
        """Returns at most `size` bytes; none at the end.

        Raises:
            OSError: the file is damaged or incomplete.
        """
        try:
            return bytes(self._file.read(size))
        except (EOFError, self._damaged) as error:
            raise OSError(str(error)) from error


def _decompressed(raw: pa.NativeFile, codec: str | None) -> _Stream:
    stream: _Stream = _Gzip(raw) if codec == "gzip" else pa.CompressedInputStream(raw, codec)
    return stream


def _compressed_blocks(
    stream: _Stream, block_bytes: int, file_split: FileSplit
) -> Iterator[tuple[bytearray, int]]:
    """Yields blocks of all lines of a compressed file."""
    carry = memoryview(b"")
    while True:
        data = bytearray(len(carry) + block_bytes)
        data[: len(carry)] = carry
        size = len(carry) + _fill(stream, memoryview(data)[len(carry) :], file_split)
        if size < len(data):
            del data[size:]
            if data:
                yield data, size
            return
        whole = data.rfind(b"\n") + 1
        if whole:
            yield data, whole
        carry = memoryview(data)[whole:]
        _require_short(carry, file_split)


def _fill(stream: _Stream, buffer: memoryview, file_split: FileSplit) -> int:
    """Reads until the buffer is full or the stream ends, and returns the number of bytes."""
    size = 0
    while size < len(buffer):
        try:
            read = stream.read(min(len(buffer) - size, _PIECE_BYTES))
        except OSError as error:
            raise DataError(
                f"{file_split.path} cannot be decompressed: {error}",
                NOT_COMPRESSED,
            ) from error
        if not read:
            break
        buffer[size : size + len(read)] = read
        size += len(read)
    return size


def _require_short(line: bytes | memoryview, file_split: FileSplit) -> None:
    if len(line) > _LONGEST_LINE_BYTES and b"\r" not in bytes(line):
        raise DataError(
            f"{file_split.path} has a line of more than {_LONGEST_LINE_BYTES >> 20} MiB",
            "deliver a text file with one row per line; this file probably has another format",
        )
