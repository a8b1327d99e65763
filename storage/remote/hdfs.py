"""HDFS without Java: lists, reads and writes files with the package hdfs-native.

A path is `host:port/folder`, `service/folder` with a name service of hdfs-site.xml, or `/folder` on the
`fs.defaultFS` of core-site.xml. These two files are read from $HADOOP_CONF_DIR or $HADOOP_HOME/etc/hadoop.

A new file gets a hidden name in its folder, and is renamed when it is complete. The name node renames a file
in one atomic step. It replaces an existing file of this name only if the request allows it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pyarrow import fs

from conf.errors import ConfigError
from storage.remote import RangeFile, RangeHandler, missing_package, output_stream

if TYPE_CHECKING:
    from hdfs_native import Client, FileStatus, FileWriter

T = TypeVar("T")

# The default port of a name node, as in Hadoop's own client.
_NAME_NODE_PORT = 8020
_NO_NAME_NODE = "No NameNode hosts found"
# The end of the name of Hadoop's exception for a request to delete a folder that has files.
_NOT_EMPTY = "PathIsNotEmptyDirectoryException"
# The permissions of new folders, as in Hadoop's default.
_FOLDER_MODE = 0o755


def hdfs() -> fs.FileSystem:
    """Returns the file system of hdfs://. It connects at the first request."""
    return fs.PyFileSystem(_Hdfs())


class _Hdfs(RangeHandler):
    """The handler for files of all name nodes. The part of a path before its first slash is the name node."""

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

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:
        """Creates a file and its folders."""
        return output_stream(_NewFile(path))

    def create_file(self, path: str, data: bytes) -> None:
        """Writes a file that does not exist yet."""
        file = _NewFile(path)
        try:
            file.write(data)
            file.finish(replace=False)
        except BaseException:
            file.abandon()
            raise

    def delete_file(self, path: str) -> None:
        """Deletes a file."""
        self._delete(path, recursive=False)

    def create_dir(self, path: str, recursive: bool) -> None:
        """Creates a folder, and with `recursive` its parents, unless it exists."""
        authority, inner = _parts(path)
        _called(path, lambda: _client_of(authority).mkdirs(inner, _FOLDER_MODE, recursive), "written")

    def delete_dir(self, path: str) -> None:
        """Deletes a folder and all that it contains."""
        self._delete(path, recursive=True)

    def delete_empty_folder(self, path: str) -> None:
        """Deletes a folder if it is empty. The name node checks and deletes in one step."""
        try:
            self._delete(path, recursive=False)
        except FileNotFoundError:
            return
        except OSError as error:
            if _NOT_EMPTY not in str(error):
                raise

    def move(self, source: str, target: str) -> None:
        """Renames a file. An existing file with the new name is replaced."""
        (authority, old), (_, new) = _parts(source), _parts(target)
        _called(source, lambda: _client_of(authority).rename(old, new, overwrite=True), "written")

    def _delete(self, path: str, *, recursive: bool) -> None:
        authority, inner = _parts(path)
        if not _called(path, lambda: _client_of(authority).delete(inner, recursive), "deleted"):
            raise FileNotFoundError(f"hdfs://{path} does not exist")


class _NewFile:
    """A new file, which has a hidden name until it is complete."""

    def __init__(self, path: str) -> None:
        from hdfs_native import WriteOptions

        self._path = path
        authority, self._inner = _parts(path)
        folder, _, name = self._inner.rpartition("/")
        self._hidden = f"{folder}/.{name}.{uuid.uuid4().hex}.tmp"
        self._client = _client_of(authority)
        options = WriteOptions(create_parent=True)
        self._writer: FileWriter = _called(
            path, lambda: self._client.create(self._hidden, options), "written"
        )

    def write(self, data: bytes) -> None:
        """Adds bytes to the file."""
        if data:
            _called(self._path, lambda: self._writer.write(data), "written")

    def finish(self, replace: bool = True) -> None:
        """Completes the file and gives it its name. Without `replace`, no file may have this name."""
        _called(self._path, self._writer.close, "written")
        _called(
            self._path, lambda: self._client.rename(self._hidden, self._inner, overwrite=replace), "written"
        )

    def abandon(self) -> None:
        """Deletes the incomplete file."""
        with suppress(OSError):
            _called(self._path, lambda: self._client.delete(self._hidden))


def _parts(path: str) -> tuple[str, str]:
    """Divides a path into the name node (or name service) and the path on this name node."""
    authority, _, inner = path.partition("/")
    return authority, f"/{inner}"


def _client_of(authority: str) -> Client:
    """Returns this process's client of a name node or name service.

    A forked process gets another client, because a client's threads do not survive a fork.
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


def _called(path: str, call: Callable[[], T], done: str = "read") -> T:
    """Returns the result of a call of the client. Error messages contain the path, but no Java stack trace.

    Raises:
        FileNotFoundError: there is nothing at the path.
        FileExistsError: there is a file at the path, which the call must not replace.
        OSError: the name node or a data node cannot be reached, or refuses the request.
    """
    try:
        return call()
    except FileNotFoundError as error:
        raise FileNotFoundError(f"hdfs://{path} does not exist: {_first_line(error)}") from error
    except FileExistsError as error:
        raise FileExistsError(f"hdfs://{path} exists: {_first_line(error)}") from error
    except (OSError, RuntimeError) as error:
        raise OSError(f"hdfs://{path} cannot be {done}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).replace("\\n", "\n").split("\n", 1)[0]
