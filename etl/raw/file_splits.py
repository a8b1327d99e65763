"""Parts of raw text files that one task reads, and the whole lines in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pyarrow as pa

from conf.errors import DataError
from storage import file_io

# A slice is what one task holds in memory: about three times its bytes, parsed. Its lines are one block, so that each of its
# distinct values is looked at once; only a compressed file, which cannot be cut, is read as many.
SLICE_BYTES = 64 * 2**20
BLOCK_BYTES = 2 * SLICE_BYTES
_LONGEST_LINE_BYTES = 64 * 2**20
_BEYOND = 1 << 14
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}


@dataclass(frozen=True)
class Slice:
    """The lines of one file that begin in the bytes [start, end); `end` is None for a compressed file, read whole.

    Attributes:
        bytes: of the file that are read.
    """

    path: str
    start: int
    end: int | None
    bytes: int = field(default=0, compare=False)


def compression(path: str) -> str | None:
    """The codec of a raw file, by its name."""
    return next((codec for suffix, codec in _CODECS.items() if path.endswith(suffix)), None)


def cut(paths: Sequence[str], slice_bytes: int = SLICE_BYTES) -> list[Slice]:
    """The slices of files, in the order of the files' lines. Files of no bytes have none."""
    slices = []
    for path in paths:
        files, inner = file_io.filesystem(path)
        size = files.get_file_info(inner).size
        if compression(path):
            slices.append(Slice(path, 0, None, size))
            continue
        count = max(1, round(size / slice_bytes)) if size else 0
        bounds = [size * index // count for index in range(count)] + [size] if count else []
        slices += [Slice(path, a, b, b - a) for a, b in pairwise(bounds)]
    return slices


def blocks(part: Slice, block_bytes: int | None = None) -> Iterator[bytes | memoryview]:
    """The lines of a slice, as blocks of whole lines ended by LF; the last line of a file may lack its end.

    Args:
        block_bytes: read at a time; by default a slice of a file is one block, and a compressed file is cut into several.

    CR LF and CR alone end lines too, as for Spark's reader of text. The byte order mark that a file may begin with is left out.

    Raises:
        DataError: a line is longer than 64 MiB, or a compressed file is damaged.
    """
    size = block_bytes or (SLICE_BYTES if part.end is None else BLOCK_BYTES)
    for index, (data, stop) in enumerate(_raw_blocks(part, size)):
        marked = index == 0 and part.start == 0 and data.startswith(_BYTE_ORDER_MARK)
        start = len(_BYTE_ORDER_MARK) if marked else 0
        if data.find(b"\r", start, stop) >= 0:
            yield data[start:stop].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        elif (start, stop) == (0, len(data)):
            yield data
        elif start < stop:
            yield memoryview(data)[start:stop]  # a slice of bytes would be a copy


def _raw_blocks(part: Slice, block_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Blocks as (bytes, how many of them)."""
    files, inner = file_io.filesystem(part.path)
    if part.end is None:
        with files.open_input_stream(inner, compression=None) as raw:
            yield from _until_end(pa.CompressedInputStream(raw, compression(part.path)), block_bytes, part)
        return
    with files.open_input_file(inner) as source:
        at = part.start
        if part.start:
            # The line that is under way at `start` belongs to the slice before, unless it begins right there.
            source.seek(part.start - 1)
            first = _first_line(source, part)
            if first is None:
                return
            at = first
            source.seek(at)
        yield from _until(source, at, part, block_bytes)


def _first_line(source: pa.NativeFile, part: Slice) -> int | None:
    """Position of the first line that begins in the slice; None if none does."""
    position = part.start - 1
    while True:
        read = source.read(1 << 16)
        if not read:
            return None
        found = read.find(b"\n")
        if found >= 0:
            begins = position + found + 1
            return begins if part.end is None or begins < part.end else None
        position += len(read)


def _until(source: pa.NativeFile, at: int, part: Slice, block_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Blocks of the lines that begin between `at` and the slice's end."""
    carry = b""
    end = part.end if part.end is not None else 2**63
    while True:
        # No more than the slice and the line that leaves it, which is rarely longer than this.
        left = end - at - len(carry) + _BEYOND
        read = source.read(max(min(block_bytes, left), 1))
        data = carry + read if carry else read
        if not data:
            return
        if at + len(data) >= end:
            yield from _last_lines(source, data, end - at, part)
            return
        whole = data.rfind(b"\n") + 1
        if not read:
            yield data, len(data)
            return
        if whole:
            yield data, whole
        carry, at = data[whole:], at + whole
        _require_short(carry, part)


def _last_lines(source: pa.NativeFile, data: bytes, left: int, part: Slice) -> Iterator[tuple[bytes, int]]:
    """The lines that begin in the first `left` bytes; the last of them may go on behind."""
    stop = data.find(b"\n", max(left - 1, 0))
    while stop < 0:
        read = source.read(1 << 16)
        if not read:
            if data:
                yield data, len(data)
            return
        data += read
        stop = data.find(b"\n", max(left - 1, 0))
        _require_short(data[data.rfind(b"\n") + 1 :], part)
    yield data, stop + 1


def _until_end(stream: pa.NativeFile, block_bytes: int, part: Slice) -> Iterator[tuple[bytes, int]]:
    carry = b""
    while True:
        try:
            read = stream.read(block_bytes)
        except OSError as error:
            raise DataError(
                f"{part.path} cannot be decompressed: {error}",
                "deliver the file again; it is damaged or cut off",
            ) from error
        if not read:
            if carry:
                yield carry, len(carry)
            return
        data = carry + read
        whole = data.rfind(b"\n") + 1
        if whole:
            yield data, whole
        carry = data[whole:]
        _require_short(carry, part)


def _require_short(line: bytes, part: Slice) -> None:
    if len(line) > _LONGEST_LINE_BYTES and b"\r" not in line:
        raise DataError(
            f"{part.path} holds a line of more than {_LONGEST_LINE_BYTES >> 20} MiB",
            "it is no log of lines: deliver it as text, a row a line",
        )
