"""Compressed raw text: opened by the end of its name, read by workers where Spark cannot, and the damaged file found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from conf.errors import ConfigError, DataError
from conf.names import scheme_of
from etl.raw.file_splits import Slice, blocks, compression
from spark.tasks import run_tasks
from storage import file_io


def first_bytes(path: str, length: int) -> bytes:
    """The first bytes of the text of a raw file.

    Raises:
        DataError: it cannot be decompressed.
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
    """Of some files, those of zstd where Spark has no library for it: Hadoop's native one, which PyPI's pyspark lacks.

    Raises:
        ConfigError: such a file lies on HDFS, where workers cannot read it either.
    """
    packed = [path for path in paths if compression(path) == "zstd"]
    jvm = spark._jvm
    if not packed or jvm is None or jvm.org.apache.hadoop.io.compress.ZStandardCodec.isNativeCodeLoaded():
        return []
    for path in packed:
        if scheme_of(path) == "hdfs":
            raise ConfigError(
                f"{path} is compressed with zstd, which Spark reads only with Hadoop's native library, and that is not here",
                "deliver .gz or .bz2, or start Spark with a libhadoop that has zstd (spark.driver.extraLibraryPath)",
            )
    return packed


def lines_by_workers(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Lines of compressed files, read by Python workers, a task a file: (file, escaped as Spark does; block 0; index in the
    file; line; is_utf8).
    """
    sent = tuple(paths)
    return run_tasks(spark, len(sent), lambda index: _read_lines(sent[index]), _LINES)


_BLOCK_BYTES = 4 * 2**20  # of text, a record batch each
_LINES = "file string, block bigint, index bigint, line string, is_utf8 boolean"


def _read_lines(path: str) -> Iterator[pa.RecordBatch]:
    first = 0
    for block in blocks(Slice(path, 0, None), _BLOCK_BYTES):
        text = bytes(block)
        yield _lines(quote(path), first, text)
        first += text.count(b"\n")


def _lines(file: str, first: int, block: bytes) -> pa.RecordBatch:
    whole = block.removesuffix(b"\n").split(b"\n")
    texts = [line.decode("utf-8", errors="replace") for line in whole]
    columns = [
        pa.array([file] * len(whole)),
        pa.array(np.zeros(len(whole), np.int64)),
        pa.array(np.arange(first, first + len(whole))),
        pa.array(texts, pa.string()),
        pa.array([text.encode() == line for text, line in zip(texts, whole, strict=True)]),
    ]
    return pa.RecordBatch.from_arrays(columns, ["file", "block", "index", "line", "is_utf8"])


def find_damaged(paths: Sequence[str]) -> DataError | None:
    """Of files that Spark failed to read, the first that cannot be decompressed. Spark's error does not name it."""
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
        f"{path} cannot be decompressed: {error}", "deliver the file again; it is damaged or cut off"
    )
