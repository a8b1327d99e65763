"""Reads compressed raw text that Spark cannot read, and finds damaged files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from conf.errors import DataError
from etl.raw.file_splits import FileSplit, compression, read_blocks
from spark.tasks import run_tasks
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


def spark_cannot_read(spark: SparkSession, paths: Sequence[str]) -> list[str]:
    """Returns the zstd files among `paths` if Spark cannot read zstd, otherwise an empty list.

    Spark needs Hadoop's native library for zstd, and the pyspark package of PyPI does not contain it.
    """
    zstd_paths = [path for path in paths if compression(path) == "zstd"]
    jvm = spark._jvm
    if not zstd_paths or jvm is None or jvm.org.apache.hadoop.io.compress.ZStandardCodec.isNativeCodeLoaded():
        return []
    return zstd_paths


def lines_by_workers(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Reads the lines of compressed files in Python workers, one task per file.

    Returns:
        A frame with one row per line, and with the columns `file`, `block`, `index`, `line` and `is_utf8`.
        etl.raw.row_ids reads other files to frames with the same columns. `file` is the path with URL
        escapes, `block` is 0, and `index` is the position of the line in the file, from 0.
    """
    sent = tuple(paths)
    return run_tasks(spark, len(sent), lambda index: _read_lines(sent[index]), _LINES)


_BLOCK_BYTES = 4 * 2**20  # of text in one record batch
_LINES = "file string, block bigint, index bigint, line string, is_utf8 boolean"


def _read_lines(path: str) -> Iterator[pa.RecordBatch]:
    first = 0
    for block in read_blocks(FileSplit(path, 0, None), _BLOCK_BYTES):
        text = bytes(block)
        yield _lines(quote(path), first, text)
        first += text.count(b"\n")


def _lines(file: str, first: int, block: bytes) -> pa.RecordBatch:
    lines = block.removesuffix(b"\n").split(b"\n")
    texts = [line.decode("utf-8", errors="replace") for line in lines]
    columns = [
        pa.array([file] * len(lines)),
        pa.array(np.zeros(len(lines), np.int64)),
        pa.array(np.arange(first, first + len(lines))),
        pa.array(texts, pa.string()),
        pa.array([text.encode() == line for text, line in zip(texts, lines, strict=True)]),
    ]
    return pa.RecordBatch.from_arrays(columns, ["file", "block", "index", "line", "is_utf8"])


def find_damaged(paths: Sequence[str]) -> DataError | None:
    """Returns an error that names the first damaged file, or None if no file is damaged.

    Spark's own error does not name a file.
    """
    for path in paths:
        codec = compression(path)
        if codec is None:
            continue
        files, inner = file_io.filesystem(path)
        with files.open_input_stream(inner, compression=None) as raw:
            stream = pa.CompressedInputStream(raw, codec)
            try:
                while stream.read(1 << 22):
                    pass
            except OSError as error:
                return _damaged(path, error)
    return None


def _damaged(path: str, error: OSError) -> DataError:
    return DataError(
        f"{path} cannot be decompressed: {error}", "deliver the file again; it is damaged or incomplete"
    )
