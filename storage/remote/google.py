"""Google Cloud Storage: lists and reads objects with pyarrow's client.

A path is `bucket/folder`. Credentials are found by Google's rules: first $GOOGLE_APPLICATION_CREDENTIALS,
then the login of gcloud, then the service account of the machine. If $STORAGE_EMULATOR_HOST is set, requests
go to this emulator instead of Google's store.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache

import pyarrow as pa
from pyarrow import fs

from conf.errors import ConfigError
from storage.remote import ReadOnlyHandler, with_folders

# pyarrow retries failed requests for this time. pyarrow's default is 15 minutes.
_RETRY_TIME = timedelta(minutes=1)


def google_storage() -> fs.FileSystem:
    """Returns a file system that reads gs://.

    Raises:
        ConfigError: pyarrow was built without Google Cloud Storage.
    """
    return _opened(os.environ.get("STORAGE_EMULATOR_HOST", ""), os.getpid())


@lru_cache(maxsize=16)
def _opened(emulator: str, _process: int) -> fs.FileSystem:
    try:
        from pyarrow.fs import GcsFileSystem
    except ImportError as error:
        raise ConfigError(
            "this build of pyarrow has no client of gs://", "install pyarrow from PyPI: `pip install pyarrow`"
        ) from error
    if emulator:
        scheme, _, host = emulator.rstrip("/").rpartition("://")
        return fs.PyFileSystem(
            _Google(
                GcsFileSystem(
                    anonymous=True,
                    endpoint_override=host,
                    scheme=scheme or "http",
                    retry_time_limit=_RETRY_TIME,
                )
            )
        )
    return fs.PyFileSystem(_Google(GcsFileSystem(retry_time_limit=_RETRY_TIME)))


class _Google(ReadOnlyHandler):
    """Adds folders to pyarrow's file system, which lists a folder only if an object represents it."""

    scheme = "gs"

    def __init__(self, files: fs.FileSystem) -> None:
        self._files = files

    def get_file_info(self, paths: Sequence[str]) -> list[fs.FileInfo]:
        """Returns type, size and modification time of each path."""
        with _errors_of(paths[0] if paths else ""):
            return list(self._files.get_file_info(list(paths)))

    def info(self, path: str) -> fs.FileInfo:
        """Returns type, size and modification time of a path."""
        return self.get_file_info([path])[0]

    def entries(self, folder: str, recursive: bool) -> list[fs.FileInfo]:
        """Returns the content of a folder. Requests objects at any depth, even if `recursive` is False."""
        with _errors_of(folder):
            infos = self._files.get_file_info(fs.FileSelector(folder, allow_not_found=True, recursive=True))
        if not infos and "/" in folder:
            raise FileNotFoundError(f"gs://{folder} does not exist")
        return with_folders(folder, infos, recursive)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        """Opens an object to read it from beginning to end."""
        with _errors_of(path):
            return self._files.open_input_stream(path, compression=None)

    def open_input_file(self, path: str) -> pa.NativeFile:
        """Opens an object to read ranges of its bytes."""
        with _errors_of(path):
            return self._files.open_input_file(path)


@contextmanager
def _errors_of(path: str) -> Iterator[None]:
    """Adds the path to the messages of the client's errors.

    Raises:
        FileNotFoundError: there is no such bucket or object.
        OSError: the store cannot be reached, or refuses the request.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"gs://{path} does not exist: {error.args[-1]}") from error
    except OSError as error:
        raise OSError(f"gs://{path} cannot be read: {error}") from error
