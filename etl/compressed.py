"""Compressed raw text: opened by the end of its name, refused where Spark cannot read it, and the damaged file found."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import SparkSession

from conf import storage
from conf.errors import ConfigError, DataError
from etl.files.slices import compression


def first_bytes(path: str, length: int) -> bytes:
    """The first bytes of the text of a raw file.

    Raises:
        DataError: it cannot be decompressed.
    """
    files, inner = storage.filesystem(path)
    codec = compression(path)
    with files.open_input_stream(inner, compression=None) as raw:
        if codec is None:
            return bytes(raw.read(length))
        try:
            return bytes(pa.CompressedInputStream(raw, codec).read(length))
        except OSError as error:
            raise _damaged(path, error) from error


def require_codecs(spark: SparkSession, paths: Sequence[str]) -> None:
    """ConfigError where Spark is to read files of zstd and has no library for them: Hadoop's native one, which PyPI's
    pyspark lacks. Workers that read slices themselves (etl.files) need none.
    """
    packed = [path for path in paths if compression(path) == "zstd"]
    jvm = spark._jvm
    if (
        packed
        and jvm is not None
        and not jvm.org.apache.hadoop.io.compress.ZStandardCodec.isNativeCodeLoaded()
    ):
        raise ConfigError(
            f"{packed[0]} is compressed with zstd, which Spark reads only with Hadoop's native library, and that is not here",
            "deliver .gz or .bz2, install libhadoop with zstd, or let workers read the log: workflow.engine=arrow, "
            "split.by=day, no joined tables",
        )


def find_damaged(paths: Sequence[str]) -> DataError | None:
    """Of files that Spark failed to read, the first that cannot be decompressed. Spark's error does not name it."""
    for path in paths:
        codec = compression(path)
        if codec is None:
            continue
        files, inner = storage.filesystem(path)
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
