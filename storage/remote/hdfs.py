"""HDFS without Java: lists and reads files with the package hdfs-native.

A path is `host:port/folder`, `service/folder` with a name service of hdfs-site.xml, or `/folder` on the
`fs.defaultFS` of core-site.xml. These two files are read from $HADOOP_CONF_DIR or $HADOOP_HOME/etc/hadoop.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeVar

from pyarrow import fs

from conf.errors import ConfigError
from storage.remote import RangeFile, RangeHandler, missing_package

if TYPE_CHECKING:
    from hdfs_native import Client, FileStatus

T = TypeVar("T")

# The default port of a name node, as in Hadoop's own client.
_NAME_NODE_PORT = 8020
_NO_NAME_NODE = "No NameNode hosts found"


def hdfs() -> fs.FileSystem:
    """Returns a file system that reads hdfs://. It connects at the first request."""
    return fs.PyFileSystem(_Hdfs())


class _Hdfs(RangeHandler):
    """Reads from all name nodes. The part of a path before the first slash sets the name node."""

    scheme = "hdfs"

    def info(self, path: str) -> fs.FileInfo:
        """Returns type, size and modification time of a path."""
        authority, inner = _parts(path)
        try:
            return _file_info(path, _called(path, lambda: _client_of(authority).get_file_info(inner)))
        except FileNotFoundError:
            return fs.FileInfo(path, fs.FileType.NotFound)

    def entries(self, folder: str, recursive: bool) -> list[fs.FileInfo]:
        """Returns the content of a folder."""
        authority, inner = _parts(folder)
        statuses = _called(folder, lambda: list(_client_of(authority).list_status(inner, recursive)))
        return [_file_info(authority + status.path, status) for status in statuses]

    def open_range(self, path: str) -> RangeFile:
        """Opens a file."""
        authority, inner = _parts(path)
        reader = _called(path, lambda: _client_of(authority).read(inner))

        def read_range(start: int, length: int) -> bytes:
            return _called(path, partial(reader.read_range, start, length))

        return RangeFile(read_range, len(reader))


def _parts(path: str) -> tuple[str, str]:
    """Returns the name node or name service of a path, and the path on it."""
    authority, _, inner = path.partition("/")
    return authority, f"/{inner}"


def _client_of(authority: str) -> Client:
    """Returns this process's client of a name node or name service.

    A client's threads do not survive a fork.
    """
    return _connected(authority, os.environ.get("HADOOP_CONF_DIR"), os.getpid())


@lru_cache(maxsize=16)
def _connected(authority: str, folder: str | None, _process: int) -> Client:
    """Returns a new client.

    Raises:
        ConfigError: the package is missing, or Hadoop's configuration has no name node.
    """
    try:
        from hdfs_native import Client
    except ImportError as error:
        raise missing_package("hdfs", "hdfs-native", "hdfs") from error
    try:
        try:
            return Client(f"hdfs://{authority}", config_dir=folder)
        except RuntimeError as error:
            if _NO_NAME_NODE not in str(error):
                raise
        return Client(f"hdfs://{authority}:{_NAME_NODE_PORT}", config_dir=folder)
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            f"hdfs://{authority}/ cannot be opened: {error}",
            "write the name node into the path (hdfs://HOST:PORT/…), or set HADOOP_CONF_DIR to the folder "
            "with core-site.xml (fs.defaultFS) and hdfs-site.xml (name services)",
        ) from error


def _file_info(path: str, status: FileStatus) -> fs.FileInfo:
    if status.isdir:
        return fs.FileInfo(path, fs.FileType.Directory)
    return fs.FileInfo(
        path, fs.FileType.File, size=status.length, mtime_ns=status.modification_time * 1_000_000
    )


def _called(path: str, call: Callable[[], T]) -> T:
    """Returns the result of a call of the client. Error messages contain the path, but no Java stack trace.

    Raises:
        FileNotFoundError: there is nothing at the path.
        OSError: the name node or a data node cannot be reached, or refuses the request.
    """
    try:
        return call()
    except FileNotFoundError as error:
        raise FileNotFoundError(f"hdfs://{path} does not exist: {_first_line(error)}") from error
    except (OSError, RuntimeError) as error:
        raise OSError(f"hdfs://{path} cannot be read: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).replace("\\n", "\n").split("\n", 1)[0]
