"""File splits: the byte ranges of raw text files that tasks read as complete lines."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa

from conf.errors import DataError
from conf.raw_types import MAX_EXPANSION, UTF8, Encoding
from storage import file_io

# A task holds one file split in memory. Parsing needs about three times the bytes of the split. All lines of
# a split are one block, so each distinct value of the split is checked only once. A compressed file cannot be
# divided into splits, so a task reads it as several blocks.
FILE_SPLIT_BYTES = 64 * 2**20
BLOCK_BYTES = 2 * FILE_SPLIT_BYTES
_LONGEST_LINE_BYTES = 64 * 2**20
# A block has at most this number of lines, because readers need memory for each line. A block of 64 MiB has
# fewer lines if their mean length is 32 bytes or more.
_MOST_LINES = 1 << 21
# Every compressed file may be decompressed to this size, because even a small file of equal lines can be
# compressed very strongly.
ALWAYS_ALLOWED_BYTES = 256 * 2**20
_PIECE_BYTES = 1 << 19  # Number of bytes that are decompressed at once. They fit into the cache.
_READ_AHEAD_BYTES = 1 << 14  # Number of bytes to read after a split, because its last line may end there.
_LF, _CR = ord("\n"), ord("\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The byte order marks of encodings that no reader knows. Longer marks come first, because a longer mark may
# begin with a shorter one.
_OTHER_MARKS = (
    *((b"\xff\xfe\0\0", "UTF-32"), (b"\0\0\xfe\xff", "UTF-32")),
    *((b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16")),
)
# A file without a mark is in UTF-16 if at least the share _ZEROS of every second byte is zero. Only the first
# _MARKED_BYTES are checked, and files with fewer bytes than _FEWEST_BYTES are not.
_MARKED_BYTES, _FEWEST_BYTES, _ZEROS = 512, 8, 0.9
NOT_COMPRESSED = (
    "deliver the file again: it is damaged or incomplete, or its compression does not match its name"
)
_LATIN_1 = "nightrank_latin_1"  # name of the error handler for decoding
_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}


@dataclass(frozen=True)
class FileSplit:
    """A part of one raw file: the lines that begin in the bytes [start, end).

    Attributes:
        end: end of the byte range; None for a compressed file, which is a single split.
        bytes: number of bytes of the split; for a compressed file, the compressed size of the file.
        most_bytes: maximum number of bytes of a compressed file after decompression; None if there is no
            limit.
        threads: number of threads with which a task reads a compressed file.
    """

    path: str
    start: int
    end: int | None
    bytes: int = field(default=0, compare=False)
    most_bytes: int | None = field(default=None, compare=False)
    threads: int = field(default=1, compare=False)


def compression(path: str) -> str | None:
    """Returns the codec of a raw file from its name; None for plain text."""
    return next((codec for suffix, codec in _CODECS.items() if path.endswith(suffix)), None)


def split_files(
    paths: Sequence[str], split_bytes: int = FILE_SPLIT_BYTES, max_expansion: float = MAX_EXPANSION
) -> list[FileSplit]:
    """Divides files into file splits of about `split_bytes` bytes.

    The splits have the order of the files and of their lines. An empty file has no split.

    Args:
        paths: paths of the files.
        split_bytes: approximate number of bytes of a split.
        max_expansion: maximum size of a decompressed file, as a multiple of its compressed size.
            A size of up to ALWAYS_ALLOWED_BYTES is always allowed.

    Raises:
        FileNotFoundError: a file was deleted after it was listed.
    """
    splits = []
    for path, size in zip(paths, file_io.sizes(paths), strict=True):
        if size is None:
            raise FileNotFoundError(f"{path} does not exist")
        if compression(path):
            most_bytes = max(ALWAYS_ALLOWED_BYTES, int(max_expansion * size))
            splits.append(FileSplit(path, 0, None, size, most_bytes))
            continue
        count = max(1, round(size / split_bytes)) if size else 0
        bounds = [size * index // count for index in range(count)] + [size] if count else []
        splits += [FileSplit(path, start, end, end - start) for start, end in pairwise(bounds)]
    return splits


def share_threads(splits: Sequence[FileSplit], threads: int) -> list[FileSplit]:
    """Returns file splits that use all threads of this machine, even if there are fewer splits than threads.

    Only the number of threads changes, and only for compressed files. A compressed file is one split.
    """
    of_each = max(1, threads // max(1, len(splits)))
    return [replace(one, threads=of_each) if one.end is None else one for one in splits]


def read_blocks(
    file_split: FileSplit, block_bytes: int | None = None, encoding: Encoding = UTF8
) -> Iterator[bytes | memoryview]:
    """Yields the lines of a file split, as blocks of complete lines.

    A line ends with LF, CR LF or CR, as in Spark's text reader. The last line of a file may have no line end.
    A byte order mark at the start of the file is removed.

    Args:
        block_bytes: number of bytes to read at once. With the default, a split of a plain file is one block,
            and a compressed file is read in blocks of 64 MiB. If lines are very short, blocks are smaller.
        encoding: the character encoding of the file (UTF-8 or Windows-1252). Blocks are always UTF-8.

    Raises:
        DataError: a line is longer than 64 MiB, the file is in UTF-16 or UTF-32, or a compressed file is
            damaged or becomes too large.
    """
    size = block_bytes or (FILE_SPLIT_BYTES if file_split.end is None else BLOCK_BYTES)
    for index, (data, stop) in enumerate(_raw_blocks(file_split, size)):
        if index == 0 and file_split.start == 0:
            refuse_utf16(file_split.path, bytes(data[:_MARKED_BYTES]))
        marked = index == 0 and file_split.start == 0 and data.startswith(_BYTE_ORDER_MARK)
        first = len(_BYTE_ORDER_MARK) if marked else 0
        has_cr = data.find(b"\r", first, stop) >= 0
        for start, end in _few_lines(data, first, stop, has_cr):
            if encoding != UTF8:
                lines = bytes(data[start:end]).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
                yield as_utf8(lines, encoding)
            elif has_cr:
                yield bytes(data[start:end].replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
            elif isinstance(data, bytes) and (start, end) == (0, len(data)):
                yield data
            else:
                yield memoryview(data)[start:end]  # slicing the bytes object itself would copy it


def refuse_utf16(path: str, start: bytes) -> None:
    """Raises DataError if a text file is in UTF-16 or UTF-32.

    Such a file begins with a byte order mark, or nearly every second byte is zero.

    Args:
        path: the file.
        start: its first bytes after decompression.
    """
    start = start[:_MARKED_BYTES]
    name = next((name for mark, name in _OTHER_MARKS if start.startswith(mark)), None)
    if name is None and len(start) >= _FEWEST_BYTES:
        for first, order in ((1, "UTF-16LE"), (0, "UTF-16BE")):
            zeros, others = start[first::2], start[1 - first :: 2]
            if zeros.count(0) >= _ZEROS * len(zeros) and not others.count(0):
                name = order
    if name is None:
        return
    file = path.rsplit("/", 1)[-1]
    for ending in _CODECS:
        file = file.removesuffix(ending)
    is_compressed = compression(path) is not None
    raise DataError(
        f"{path} is in the encoding {name}, but text files must be in UTF-8 or windows-1252",
        f"convert the file{' after decompressing it' if is_compressed else ''}: "
        f"`iconv -f {name} -t UTF-8 {file} > utf8_{file}`",
    )


def as_utf8(text: bytes, encoding: Encoding) -> bytes:
    """Converts encoded text to UTF-8. Bytes that Windows-1252 does not define become control characters."""
    if encoding == UTF8:
        return text
    return text.decode(encoding, errors=_LATIN_1).encode()


def _as_latin_1(error: UnicodeError) -> tuple[str, int]:
    """Decodes bytes that Windows-1252 does not define as Latin-1, as browsers do."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return error.object[error.start : error.end].decode("latin-1"), error.end


codecs.register_error(_LATIN_1, _as_latin_1)


def _few_lines(data: bytes | bytearray, start: int, stop: int, has_cr: bool) -> Iterator[tuple[int, int]]:
    """Divides complete lines at [start, stop) so that each part has at most about _MOST_LINES lines."""
    if stop - start > _MOST_LINES:
        numbers = np.frombuffer(data, np.uint8)
        lines = 0
        for piece in range(start, stop, _PIECE_BYTES):
            part = numbers[piece : min(piece + _PIECE_BYTES, stop)]  # a part fits into the processor's cache
            ends = int(np.count_nonzero(part == _LF))
            if has_cr:
                ends += int(np.count_nonzero(part == _CR))
            if lines + ends > _MOST_LINES:
                end = line_start(data, piece, stop)
                if start < end < stop:
                    yield start, end
                    start, lines = end, 0
            lines += ends
    if start < stop:
        yield start, stop


def line_start(data: bytes | bytearray, position: int, stop: int) -> int:
    """Returns the start of the first line that begins at `position` or later; `stop` if no line begins there.

    Args:
        data: some bytes of a file. A line begins at the first byte.
        position: a position in `data`.
        stop: the bytes from here on are not read.
    """
    if not position:
        return 0
    first = position - 1
    lf = data.find(b"\n", first, stop)
    cr = data.find(b"\r", first, lf if lf >= 0 else stop)
    if cr < 0:
        return lf + 1 if lf >= 0 else stop
    return cr + 2 if data[cr + 1 : cr + 2] == b"\n" else cr + 1


def _complete(data: bytes | bytearray, searched: int = 0) -> int:
    """Returns the number of bytes at the start of `data` that form complete lines.

    A CR at the end may be the first half of CR LF, so it does not complete a line yet. The caller has
    searched the first `searched` bytes, and found no line end, but the last of these bytes may be a CR.
    """
    from_ = max(searched - 1, 0)
    lf = data.rfind(b"\n", from_)
    cr = data.rfind(b"\r", max(lf, from_), len(data) - 1)
    return max(lf, cr) + 1


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
            first = _first_line(source, file_split)
            if first is None:
                return
            position = first
        source.seek(position)
        yield from _plain_blocks(source, position, file_split, block_bytes)


def _first_line(source: pa.NativeFile, file_split: FileSplit) -> int | None:
    """Returns the byte position of the first line that begins in the split; None if there is no such line.

    Raises:
        DataError: the line before it is too long.
    """
    # `position` is the position of the first byte of `data` in the file. The loop continues if no line begins
    # in `data` after its first byte. Then only the last byte of `data` may end a line, if it is a CR.
    position = file_split.start - 1
    source.seek(position)
    data = source.read(_READ_AHEAD_BYTES)
    while True:
        start = line_start(data, 1, len(data))
        if start < len(data) or data[-1:] == b"\n":
            break
        read = source.read(_READ_AHEAD_BYTES)
        if not read:  # the CR ends the line, or this is the last line of the file
            return None
        position += len(data) - 1
        _require_short(position - file_split.start, file_split)
        data = data[-1:] + read
    start += position
    return start if file_split.end is None or start < file_split.end else None


def _plain_blocks(
    source: pa.NativeFile, position: int, file_split: FileSplit, block_bytes: int
) -> Iterator[tuple[bytes, int]]:
    """Yields blocks of the lines that begin between `position` and the end of the split."""
    carry = b""
    end = file_split.end if file_split.end is not None else 2**63
    while True:
        # The last line is rarely longer than _READ_AHEAD_BYTES, so the last read usually has all of it.
        remaining = end - position - len(carry) + _READ_AHEAD_BYTES
        # A step reads at least as many bytes as the incomplete line already has, so the time for a long line
        # is proportional to its length.
        read = source.read(max(min(max(block_bytes, len(carry)), remaining), 1))
        data = carry + read if carry else read
        if not data:
            return
        if position + len(data) >= end:
            yield from _last_lines(source, data, end - position, file_split)
            return
        if not read:
            yield data, len(data)
            return
        whole = _complete(data, len(carry))
        if whole:
            yield data, whole
        carry, position = data[whole:], position + whole
        _require_short(len(carry), file_split)


def _last_lines(
    source: pa.NativeFile, data: bytes, remaining: int, file_split: FileSplit
) -> Iterator[tuple[bytes, int]]:
    """Yields the lines that begin in the first `remaining` bytes of `data`.

    If the last of these lines ends after `data`, its end is read from `source`.
    """
    stop = line_start(data, remaining, len(data)) if remaining > 0 else 0
    # `line` is where the last, incomplete line starts. It is used only if `stop` is the end of `data`.
    line = _complete(data)
    # Without LF at the end of the bytes, the line may continue, or a CR may be the first half of CR LF.
    while stop == len(data) and stop > 0 and data[-1:] != b"\n":
        # Each step reads as many bytes as the line has so far, so the time is proportional to its length.
        read = source.read(max(_READ_AHEAD_BYTES, len(data) - line))
        if not read:
            break
        searched = len(data)
        data += read
        stop = line_start(data, searched, len(data))
        _require_short(stop - line, file_split)
    if stop:
        yield data, stop


class _Stream(Protocol):
    """The decompressed bytes of a file."""

    def read(self, size: int, /) -> bytes:
        """Returns at most `size` bytes; empty bytes at the end."""


class _Gzip:
    """The decompressed bytes of a gzip file with one or more members.

    The library ISA-L decompresses them, in a third of zlib's time.
    """

    def __init__(self, raw: pa.NativeFile) -> None:
        from isal import igzip, isal_zlib  # only processes that read gzip files import this package

        self._file = igzip.IGzipFile(fileobj=raw, mode="rb")
        self._damaged: type[Exception] = isal_zlib.error  # type: ignore[assignment]  # declared as an instance

    def read(self, size: int, /) -> bytes:
        """Returns at most `size` bytes; empty bytes at the end.

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
    total = 0
    while True:
        # A step reads at least as many bytes as the incomplete line already has, so the time for a long line
        # is proportional to its length.
        data = bytearray(len(carry) + max(block_bytes, len(carry)))
        data[: len(carry)] = carry
        read = _fill(stream, memoryview(data)[len(carry) :], file_split)
        size, total = len(carry) + read, total + read
        if file_split.most_bytes is not None and total > file_split.most_bytes:
            raise too_large(file_split)
        if size < len(data):
            del data[size:]
            if data:
                yield data, size
            return
        whole = _complete(data, len(carry))
        if whole:
            yield data, whole
        carry = memoryview(data)[whole:]
        _require_short(len(carry), file_split)


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


def _require_short(line_bytes: int, file_split: FileSplit) -> None:
    """Raises DataError if a line, or the part of it that was read, is too long."""
    if line_bytes > _LONGEST_LINE_BYTES:
        raise DataError(
            f"{file_split.path} has a line of more than {_LONGEST_LINE_BYTES >> 20} MiB",
            "deliver a text file with one row per line; this file probably has another format",
        )


def too_large(file_split: FileSplit) -> DataError:
    """Returns the error for a split that becomes larger than `most_bytes` when it is decompressed."""
    return DataError(
        f"{file_split.path} has {file_split.bytes:,} bytes, but becomes more than {file_split.most_bytes:,} "
        "bytes when it is decompressed",
        "look at the file, which may have been made to exhaust disks and memory; if its rows are good, "
        "increase `max_expansion` of its table in the configuration",
    )
