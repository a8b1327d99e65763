"""File systems that pyarrow does not have, or has without conditional writes: HDFS, Google's store and Azure.

`storage.file_io.filesystem` chooses the file system by the scheme of a path. A new file becomes visible when
its stream is closed, and then replaces the file that had its name. So readers see the old bytes or the new
ones, and a killed writer changes no file.
"""

from __future__ import annotations

import atexit
import io
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NoReturn, Protocol
from weakref import WeakSet

import pyarrow as pa
from pyarrow import fs

from conf.errors import ConfigError

# Base classes of the file systems in this folder: a pyarrow handler, and files of byte ranges.

# Number of bytes that a stream or a copy reads with one request. Each request takes milliseconds.
_STREAM_BYTES = 4 * 2**20


# Handlers and files that are in use. pyarrow's threads may release them after the call that read the file has
# returned. If a thread releases one while Python shuts down, it needs Python's lock, and the process is
# aborted.
_in_use: WeakSet[Any] = WeakSet()
_END_S = 0.5


@atexit.register
def _wait_for_threads() -> None:
    """Waits until pyarrow's threads have released all handlers and files, or for half a second."""
    deadline = time.monotonic() + _END_S
    while len(_in_use) and time.monotonic() < deadline:
        time.sleep(0.005)


class StoreHandler(fs.FileSystemHandler):
    """A pyarrow handler of a store. Its paths have no scheme.

    It has one operation more than pyarrow's handlers: `create_file` creates a file only if the path has none.

    Attributes:
        scheme: the URI scheme of the store, such as `gs`, for error messages.
    """

    scheme: str

    def __init__(self) -> None:
        _in_use.add(self)

    def get_type_name(self) -> str:
        """Returns the URI scheme of the store, such as `gs`."""
        return self.scheme

    def normalize_path(self, path: str) -> str:
        """Returns the path unchanged."""
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[fs.FileInfo]:
        """Returns type, size and modification time of each path."""
        return [self.info(path) for path in paths]

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        """Returns the files and folders in a folder.

        Raises:
            FileNotFoundError: there is no such folder, and the selector does not allow a missing folder.
        """
        try:
            return self.entries(selector.base_dir, selector.recursive)
        except FileNotFoundError:
            if selector.allow_not_found:
                return []
            raise

    @abstractmethod
    def info(self, path: str) -> fs.FileInfo:
        """Returns type, size and modification time of a path, which may not exist."""

    @abstractmethod
    def entries(self, folder: str, recursive: bool) -> list[fs.FileInfo]:
        """Returns the content of a folder. Raises FileNotFoundError if there is no such folder."""

    @abstractmethod
    def create_file(self, path: str, data: bytes) -> None:
        """Writes a small file with one atomic step of the store.

        Raises:
            FileExistsError: there is a file at the path. Of several concurrent calls for one path, only one
                returns; all others raise this error.
            OSError: the store cannot be reached, or refuses the request.
        """

    @abstractmethod
    def delete_empty_folder(self, path: str) -> None:
        """Deletes a folder that has no files. Does nothing if it has files, or does not exist."""

    def delete_dir(self, path: str) -> None:
        """Deletes a folder and all that it contains."""
        folders = [path]
        for entry in self.entries(path, recursive=True):
            if entry.is_file:
                with suppress(FileNotFoundError):  # another process has deleted it
                    self.delete_file(entry.path)
            else:
                folders.append(entry.path)
        for folder in sorted(folders, reverse=True):
            self.delete_empty_folder(folder)

    def copy_file(self, source: str, target: str) -> None:
        """Copies a file, and replaces the target."""
        with self.open_input_stream(source) as old, self.open_output_stream(target, {}) as new:
            while part := old.read(_STREAM_BYTES):
                new.write(part)

    def move(self, source: str, target: str) -> None:
        """Copies a file and then deletes the source, because an object store cannot rename."""
        self.copy_file(source, target)
        self.delete_file(source)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise OSError(f"internal error, please report: {self.scheme}:// lacks an operation of file systems")

    delete_dir_contents = delete_root_dir_contents = open_append_stream = _refuse


class Upload(Protocol):
    """An upload that creates one new file of a store."""

    def write(self, data: bytes) -> None:
        """Adds bytes to the file, which is not visible yet."""

    def finish(self) -> None:
        """Makes the file visible. It replaces a file that had the same name."""

    def abandon(self) -> None:
        """Discards the bytes that were added."""


class UploadFile:
    """A Python file object for pa.PythonFile that writes a new file of a store. `close` makes it visible.

    If a write fails, `close` leaves no file. A file that is not closed never becomes visible. Therefore this
    class does not inherit from io.RawIOBase, whose objects Python closes when it frees them.
    """

    def __init__(self, upload: Upload) -> None:
        self._upload, self._at, self._failed = upload, 0, False
        self.closed = False

    def write(self, data: Any) -> int:
        """Adds bytes, and returns their number."""
        part = bytes(data)
        self._failed = True
        self._upload.write(part)
        self._failed = False
        self._at += len(part)
        return len(part)

    def tell(self) -> int:
        """Returns the number of bytes that were written."""
        return self._at

    def flush(self) -> None:
        """Does nothing, because the bytes are not visible before `close`."""

    def close(self) -> None:
        """Makes the file visible."""
        if self.closed:
            return
        self.closed = True
        if self._failed:
            self._upload.abandon()
        else:
            self._upload.finish()


def output_stream(upload: Upload) -> pa.NativeFile:
    """Returns a stream of pyarrow that writes a new file of a store."""
    return pa.PythonFile(UploadFile(upload), mode="w")


class RangeHandler(StoreHandler):
    """A handler of a store whose client reads ranges of bytes."""

    def open_input_stream(self, path: str) -> pa.NativeFile:
        """Opens a file to read it from beginning to end."""
        return pa.PythonFile(io.BufferedReader(self.open_range(path), _STREAM_BYTES), mode="r")

    def open_input_file(self, path: str) -> pa.NativeFile:
        """Opens a file to read ranges of its bytes. Each call of `read` is one request."""
        return pa.PythonFile(self.open_range(path), mode="r")

    @abstractmethod
    def open_range(self, path: str) -> RangeFile:
        """Opens a file. Raises FileNotFoundError if there is no such file."""


class RangeFile(io.RawIOBase):
    """A Python file object that reads a file of a store. Each read is a request for a range of bytes."""

    def __init__(self, read_range: Callable[[int, int], bytes], size: int) -> None:
        """Opens a file at its beginning.

        Args:
            read_range: called with a position and a length, and returns these bytes. The length is not 0, and
                the range never extends beyond the end of the file.
            size: number of bytes of the file.
        """
        self._read_range, self._size, self._at = read_range, size, 0
        _in_use.add(self)

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def tell(self) -> int:
        """Returns the position in bytes."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Changes the position without reading."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        """Returns `size` bytes from the position, or all bytes up to the end if `size` is None or -1.

        The result is shorter only at the end of the file.

        Raises:
            OSError: the store returned fewer bytes, because the file has been replaced by a shorter one.
        """
        left = max(0, self._size - self._at)
        length = left if size is None or size < 0 else min(size, left)
        data = self._read_range(self._at, length) if length else b""
        if len(data) != length:
            raise OSError(
                f"got {len(data)} of {length} bytes from position {self._at}: the file has been replaced"
            )
        self._at += length
        return data

    def readinto(self, buffer: Any, /) -> int:
        """Reads bytes from the position into a buffer. Returns the number of bytes, which is 0 at the end."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def with_folders(base: str, entries: Iterable[fs.FileInfo], recursive: bool) -> list[fs.FileInfo]:
    """Returns the entries of a folder of an object store.

    Such a store has no folders, only names that contain slashes.

    Args:
        base: the path of the folder, without a slash at its end.
        entries: everything below the folder, at any depth.
        recursive: whether to return all these entries, or only those directly in the folder.
    """
    by_path: dict[str, fs.FileInfo] = {}
    for entry in entries:
        path = entry.path.rstrip("/")
        names = path.removeprefix(f"{base}/").split("/")
        for depth in range(1, len(names)):
            folder = "/".join([base, *names[:depth]])
            by_path[folder] = fs.FileInfo(folder, fs.FileType.Directory)
        if path != base:
            by_path.setdefault(path, entry)
    infos = list(by_path.values())
    return infos if recursive else [info for info in infos if "/" not in info.path.removeprefix(f"{base}/")]


def missing_package(scheme: str, package: str, extra: str) -> ConfigError:
    """Returns the error for a path whose file system needs a package that is not installed."""
    return ConfigError(
        f"the package {package}, which reads {scheme}://, is not installed",
        f"run `make setup` in a checkout, or `pip install {package}` in another environment "
        f"(`pip install 'nightrank[{extra}]'` installs it too)",
    )
