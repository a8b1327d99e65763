"""HDFS for the driver: lists and reads raw files through the Hadoop client of the Spark session.

With the Hadoop client, the configuration of the cluster applies (name services, Kerberos, encryption), and
pyarrow needs no native Hadoop library. Spark itself reads the rows. This module is for folder listings,
header lines and Parquet footers.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyarrow import fs
from pyspark.sql import SparkSession

T = TypeVar("T")


def hdfs(spark: SparkSession) -> fs.FileSystem:
    """Returns a read-only pyarrow file system for hdfs://.

    Paths of this file system have no scheme: `name:8020/raw`, or `/raw`.
    """
    return fs.PyFileSystem(_Hdfs(spark))


class _Hdfs(fs.FileSystemHandler):
    """A pyarrow handler that reads Hadoop's file system. All methods that write raise OSError."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._conf: Any = spark._jsc.hadoopConfiguration()

    def get_type_name(self) -> str:
        """Returns the scheme of this file system."""
        return "hdfs"

    def normalize_path(self, path: str) -> str:
        """Returns the path unchanged."""
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[fs.FileInfo]:
        """Returns type, size and modification time of each path."""
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        """Returns the files and folders in a folder."""
        try:
            files, path = self._open(selector.base_dir)
            statuses = list(_called(lambda: files.listStatus(path)))
        except FileNotFoundError:
            if selector.allow_not_found:
                return []
            raise
        infos = [_file_info(_name(status), status) for status in statuses]
        if selector.recursive:
            folders = [info.path for info in infos if info.type == fs.FileType.Directory]
            for folder in folders:
                infos += self.get_file_info_selector(fs.FileSelector(folder, recursive=True))
        return infos

    def open_input_stream(self, path: str) -> pa.NativeFile:
        """Opens a file as a buffered stream, as open_input_file does."""
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        """Opens a file as a buffered stream."""
        files, where = self._open(path)
        size = _called(lambda: files.getFileStatus(where)).getLen()
        stream = _called(lambda: files.open(where))
        return pa.PythonFile(io.BufferedReader(_Stream(self._jvm, stream, size), 1 << 16), mode="r")

    def _open(self, path: str) -> tuple[Any, Any]:
        where = self._jvm.org.apache.hadoop.fs.Path(f"hdfs://{path}")
        return _called(lambda: where.getFileSystem(self._conf)), where

    def _info(self, path: str) -> fs.FileInfo:
        try:
            files, where = self._open(path)
            return _file_info(path, _called(lambda: files.getFileStatus(where)))
        except FileNotFoundError:
            return fs.FileInfo(path, fs.FileType.NotFound)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise OSError("paths on hdfs:// can only be read, not written")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refuse
    move = copy_file = open_output_stream = open_append_stream = _refuse


class _Stream(io.RawIOBase):
    """A Hadoop input stream as a Python file. Each call copies an array of bytes from the JVM."""

    def __init__(self, jvm: Any, stream: Any, size: int) -> None:
        self._read, self._stream, self._size, self._at = jvm.org.apache.commons.io.IOUtils, stream, size, 0

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def tell(self) -> int:
        """Returns the position in bytes."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Changes the position without reading."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Reads bytes from the position into a buffer. Returns the number of bytes, which is 0 at the end."""
        length = max(0, min(len(buffer), self._size - self._at))
        if length:
            _called(lambda: self._stream.seek(self._at))
            buffer[:length] = _called(lambda: self._read.toByteArray(self._stream, length))
            self._at += length
        return length

    def close(self) -> None:
        """Closes the Java stream."""
        if not self.closed:
            _called(self._stream.close)
        super().close()


def _name(status: Any) -> str:
    """Returns the path of a file with the name node but without the scheme, such as `name:8020/raw/a.tsv`."""
    return str(status.getPath().toString()).split("://", 1)[1]


def _file_info(path: str, status: Any) -> fs.FileInfo:
    if status.isDirectory():
        return fs.FileInfo(path, fs.FileType.Directory)
    nanoseconds = status.getModificationTime() * 1_000_000
    return fs.FileInfo(path, fs.FileType.File, size=status.getLen(), mtime_ns=nanoseconds)


def _called(call: Callable[[], T]) -> T:
    """Calls a function of the JVM and returns its result.

    Java exceptions are raised as FileNotFoundError or OSError.
    """
    try:
        return call()
    except Py4JJavaError as error:
        raised = error.java_exception.toString()
        if "FileNotFoundException" in raised.split(":", 1)[0]:
            raise FileNotFoundError(raised) from error
        raise OSError(raised) from error
