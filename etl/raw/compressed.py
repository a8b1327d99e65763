"""Reads compressed raw text that Spark cannot read, and finds damaged files."""

from __future__ import annotations

import pyarrow as pa

from conf.errors import DataError
from etl.raw.file_splits import NOT_COMPRESSED, compression
from storage import file_io


def first_bytes(path: str, length: int) -> bytes:
    """Returns the first `length` bytes of a raw file after decompression.

    Raises:
        DataError: the file cannot be decompressed.
    """
    files, inner = file_io.filesystem(path)
    codec = compression(path)
    with files.open_input_stream(inner, compression=None) as raw:
        if codec is None:
            return bytes(raw.read(length))
        try:
            return bytes(pa.CompressedInputStream(raw, codec).read(length))
        except OSError as error:
            raise _damaged(path, error) from error


def _damaged(path: str, error: OSError) -> DataError:
    return DataError(f"{path} cannot be decompressed: {error}", NOT_COMPRESSED)
