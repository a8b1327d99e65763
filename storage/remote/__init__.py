"""File systems for raw logs but not for lakes: HDFS, Google Cloud Storage and Azure.

They are read-only. `storage.file_io.filesystem` chooses the file system by the scheme of a path.
"""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import pyarrow as pa
from pyarrow import fs

from conf.errors import ConfigError

# Base classes of the file systems in this folder: a read-only pyarrow handler, and files of byte ranges.

# Number of bytes that a stream reads at once. Each request to a store takes milliseconds.
_STREAM_BYTES = 4 * 2**20


class ReadOnlyHandler(fs.FileSystemHandler):
    """A read-only pyarrow handler of a store. Its paths have no scheme. Writing raises OSError.

    Attributes:
        scheme: the scheme in error messages.
    """

    scheme: str

    def get_type_name(self) -> str:
        """Returns the scheme."""
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

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise OSError(f"paths on {self.scheme}:// can only be read, not written")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refuse
    move = copy_file = open_output_stream = open_append_stream = _refuse


class RangeHandler(ReadOnlyHandler):
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
    """A file of a store as a Python file. Each read becomes a request for a range of bytes."""

    def __init__(self, read_range: Callable[[int, int], bytes], size: int) -> None:
        """Opens a file at its beginning.

        Args:
            read_range: returns the bytes of a range. It gets the position and the length, which is not 0. The
                range never extends beyond the end of the file.
            size: number of bytes of the file.
        """
        self._read_range, self._size, self._at = read_range, size, 0

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
            raise OSError(f"read {len(data)} of {length} bytes at {self._at}: the file has been replaced")
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
