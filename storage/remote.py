"""File systems for raw logs but not for lakes: HDFS, Google Cloud Storage and Azure.

They are read-only. `storage.file_io.filesystem` chooses the file system by the scheme of a path.

Azure Blob Storage and Data Lake Storage: blobs are read with the package azure-storage-blob. A path is
`container@account.dfs.core.windows.net/folder`, or `container/folder` in the account of
$AZURE_STORAGE_ACCOUNT_NAME. The first of these credentials that exists is used:

* $AZURE_STORAGE_CONNECTION_STRING, if it belongs to the account of the path, or the path has no account;
* $AZURE_STORAGE_ACCOUNT_KEY or $AZURE_STORAGE_SAS_TOKEN of the account $AZURE_STORAGE_ACCOUNT_NAME;
* azure-identity's default: the variables AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET, the
  identity of the workload or machine, or the login of the command line `az`.

Google Cloud Storage: objects are read with pyarrow's client. A path is `bucket/folder`. Credentials are found
by Google's rules: first $GOOGLE_APPLICATION_CREDENTIALS, then the login of gcloud, then the service account
of the machine. If $STORAGE_EMULATOR_HOST is set, requests go to this emulator instead of Google's store.

HDFS without Java: files are read with the package hdfs-native. A path is `host:port/folder`, `service/folder`
with a name service of hdfs-site.xml, or `/folder` on the `fs.defaultFS` of core-site.xml. These two files are
read from $HADOOP_CONF_DIR or $HADOOP_HOME/etc/hadoop.
"""

from __future__ import annotations

import io
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import pyarrow as pa
from pyarrow import fs

from conf.errors import ConfigError

if TYPE_CHECKING:
    from azure.storage.blob import BlobPrefix, BlobProperties, ContainerClient
    from hdfs_native import Client, FileStatus

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


_CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"
_ACCOUNT, _KEY, _TOKEN = "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"
# Data Lake Storage marks the blobs that represent folders with this metadata key.
_IS_FOLDER = "hdi_isfolder"
# The HTTP status codes of a request whose credentials are missing, wrong or insufficient.
_REFUSED = (401, 403)


def azure_storage() -> fs.FileSystem:
    """Returns a file system that reads abfss://, abfs:// and az://. It connects at the first request."""
    return fs.PyFileSystem(_Azure())


class _Azure(RangeHandler):
    """Reads all accounts. The part of a path before the first slash sets the container and the account."""

    scheme = "abfss"

    def info(self, path: str) -> fs.FileInfo:
        """Returns type, size and modification time of a path."""
        container, name = _blob_parts(path)
        from azure.core.exceptions import ResourceNotFoundError

        with _azure_errors_of(path):
            if not name:
                kind = fs.FileType.Directory if container.exists() else fs.FileType.NotFound
                return fs.FileInfo(path, kind)
            try:
                return _blob_info(path, container.get_blob_client(name).get_blob_properties())
            except ResourceNotFoundError:
                try:
                    below = next(iter(container.list_blob_names(name_starts_with=f"{name}/")), None)
                except ResourceNotFoundError:  # no such container
                    below = None
        return fs.FileInfo(path, fs.FileType.NotFound if below is None else fs.FileType.Directory)

    def entries(self, folder: str, recursive: bool) -> list[fs.FileInfo]:
        """Returns the content of a folder."""
        container, name = _blob_parts(folder)
        prefix = f"{name}/" if name else ""
        base = folder.rstrip("/")
        # `walk_blobs` returns the blobs of one folder, and the prefixes that are its folders.
        listed = container.list_blobs if recursive else container.walk_blobs
        with _azure_errors_of(folder):
            blobs: Iterable[BlobProperties | BlobPrefix] = listed(prefix, include=["metadata"])
            infos = [_blob_info(f"{base}/{blob.name[len(prefix) :]}", blob) for blob in blobs]
        if not infos and name:
            raise FileNotFoundError(f"abfss://{folder} does not exist")
        return with_folders(base, infos, recursive)

    def open_range(self, path: str) -> RangeFile:
        """Opens a blob."""
        container, name = _blob_parts(path)
        blob = container.get_blob_client(name)
        with _azure_errors_of(path):
            size = blob.get_blob_properties().size

        def read_range(start: int, length: int) -> bytes:
            with _azure_errors_of(path):
                return blob.download_blob(offset=start, length=length).readall()

        return RangeFile(read_range, size)


def _blob_parts(path: str) -> tuple[ContainerClient, str]:
    """Returns the container of a path, and the name of the blob."""
    authority, _, name = path.partition("/")
    settings = tuple(os.environ.get(key, "") for key in (_CONNECTION, _ACCOUNT, _KEY, _TOKEN))
    return _container_client(authority, settings, os.getpid()), name


@lru_cache(maxsize=16)
def _container_client(authority: str, settings: tuple[str, ...], _process: int) -> ContainerClient:
    """Returns a new client of a container.

    Args:
        authority: `container@host`, or `container`.
        settings: the values of four environment variables, empty if they are not set: connection string,
            name of the account, key of the account, and token.

    Raises:
        ConfigError: a package is missing, or the account is not known.
    """
    try:
        from azure.identity import DefaultAzureCredential
        from azure.storage.blob import BlobServiceClient, ContainerClient
    except ImportError as error:
        raise missing_package("abfss", "azure-storage-blob azure-identity", "azure") from error
    connection, named, key, token = settings
    container, _, host = authority.partition("@")
    account = host.partition(".")[0]
    if connection and account in ("", _account_of(connection)):
        try:
            return BlobServiceClient.from_connection_string(connection).get_container_client(container)
        except ValueError as error:
            raise ConfigError(
                f"{_CONNECTION} cannot be used: {error}",
                "copy the connection string again: it is under the access keys of the storage account in the "
                "Azure portal",
            ) from error
    if not account and not named:
        raise ConfigError(
            f"az://{authority}/ names no storage account",
            f"write abfss://{container}@ACCOUNT.dfs.core.windows.net/…, or set {_ACCOUNT} or {_CONNECTION}",
        )
    # The endpoint `dfs` of an account has another protocol. The endpoint `blob` gives the same files in the
    # protocol of our client.
    url = f"https://{host.replace('.dfs.', '.blob.', 1) or f'{named}.blob.core.windows.net'}"
    credential: Any = key or token if account in ("", named) else ""
    return ContainerClient(url, container, credential=credential or DefaultAzureCredential())


def _account_of(connection: str) -> str:
    """Returns the account of a connection string; empty if it has none."""
    fields = dict(field.partition("=")[::2] for field in connection.split(";"))
    return fields.get("AccountName", "")


def _blob_info(path: str, blob: BlobProperties | BlobPrefix) -> fs.FileInfo:
    """Returns the information about a blob or about a prefix of names. A prefix has no size."""
    metadata = {key.lower(): value for key, value in (blob.get("metadata") or {}).items()}
    modified = blob.get("last_modified")
    if modified is None or metadata.get(_IS_FOLDER) == "true":
        return fs.FileInfo(path.rstrip("/"), fs.FileType.Directory)
    return fs.FileInfo(path, fs.FileType.File, size=blob.get("size"), mtime=modified)


@contextmanager
def _azure_errors_of(path: str) -> Iterator[None]:
    """Converts errors of the client to errors of files whose messages contain the path.

    Raises:
        ConfigError: there are no credentials, or they are wrong.
        FileNotFoundError: there is no such container or blob.
        OSError: the account cannot be reached, or the request fails.
    """
    from azure.core.exceptions import AzureError, ClientAuthenticationError, ResourceNotFoundError

    try:
        yield
    except ResourceNotFoundError as error:
        raise FileNotFoundError(f"abfss://{path} does not exist: {_azure_reason(error)}") from error
    except AzureError as error:
        is_refused = getattr(error, "status_code", None) in _REFUSED
        if is_refused or isinstance(error, ClientAuthenticationError):
            raise ConfigError(
                f"abfss://{path} cannot be read with these credentials: {_azure_reason(error)}",
                f"set {_CONNECTION}, or {_ACCOUNT} with {_KEY} or {_TOKEN}, or give this machine an identity "
                "that may read the container (docs/lakes.md)",
            ) from error
        raise OSError(f"abfss://{path} cannot be read: {_azure_reason(error)}") from error


def _azure_reason(error: Exception) -> str:
    return str(error).split("\n", 1)[0]


# pyarrow retries failed requests for this time. pyarrow's default is 15 minutes.
_RETRY_TIME = timedelta(minutes=1)


def google_storage() -> fs.FileSystem:
    """Returns a file system that reads gs://.

    Raises:
        ConfigError: pyarrow was built without Google Cloud Storage.
    """
    return _google_file_system(os.environ.get("STORAGE_EMULATOR_HOST", ""), os.getpid())


@lru_cache(maxsize=16)
def _google_file_system(emulator: str, _process: int) -> fs.FileSystem:
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
        with _google_errors_of(paths[0] if paths else ""):
            return list(self._files.get_file_info(list(paths)))

    def info(self, path: str) -> fs.FileInfo:
        """Returns type, size and modification time of a path."""
        return self.get_file_info([path])[0]

    def entries(self, folder: str, recursive: bool) -> list[fs.FileInfo]:
        """Returns the content of a folder. Requests objects at any depth, even if `recursive` is False."""
        with _google_errors_of(folder):
            infos = self._files.get_file_info(fs.FileSelector(folder, allow_not_found=True, recursive=True))
        if not infos and "/" in folder:
            raise FileNotFoundError(f"gs://{folder} does not exist")
        return with_folders(folder, infos, recursive)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        """Opens an object to read it from beginning to end."""
        with _google_errors_of(path):
            return self._files.open_input_stream(path, compression=None)

    def open_input_file(self, path: str) -> pa.NativeFile:
        """Opens an object to read ranges of its bytes."""
        with _google_errors_of(path):
            return self._files.open_input_file(path)


@contextmanager
def _google_errors_of(path: str) -> Iterator[None]:
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
        authority, inner = _hdfs_parts(path)
        try:
            return _hdfs_info(path, _hdfs_result(path, lambda: _client_of(authority).get_file_info(inner)))
        except FileNotFoundError:
            return fs.FileInfo(path, fs.FileType.NotFound)

    def entries(self, folder: str, recursive: bool) -> list[fs.FileInfo]:
        """Returns the content of a folder."""
        authority, inner = _hdfs_parts(folder)
        statuses = _hdfs_result(folder, lambda: list(_client_of(authority).list_status(inner, recursive)))
        return [_hdfs_info(authority + status.path, status) for status in statuses]

    def open_range(self, path: str) -> RangeFile:
        """Opens a file."""
        authority, inner = _hdfs_parts(path)
        reader = _hdfs_result(path, lambda: _client_of(authority).read(inner))

        def read_range(start: int, length: int) -> bytes:
            return _hdfs_result(path, partial(reader.read_range, start, length))

        return RangeFile(read_range, len(reader))


def _hdfs_parts(path: str) -> tuple[str, str]:
    """Returns the name node or name service of a path, and the path on it."""
    authority, _, inner = path.partition("/")
    return authority, f"/{inner}"


def _client_of(authority: str) -> Client:
    """Returns this process's client of a name node or name service.

    A client's threads do not survive a fork.
    """
    return _hdfs_client(authority, os.environ.get("HADOOP_CONF_DIR"), os.getpid())


@lru_cache(maxsize=16)
def _hdfs_client(authority: str, folder: str | None, _process: int) -> Client:
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


def _hdfs_info(path: str, status: FileStatus) -> fs.FileInfo:
    if status.isdir:
        return fs.FileInfo(path, fs.FileType.Directory)
    return fs.FileInfo(
        path, fs.FileType.File, size=status.length, mtime_ns=status.modification_time * 1_000_000
    )


def _hdfs_result(path: str, call: Callable[[], T]) -> T:
    """Returns the result of a call of the client. Error messages contain the path, but no Java stack trace.

    Raises:
        FileNotFoundError: there is nothing at the path.
        OSError: the name node or a data node cannot be reached, or refuses the request.
    """
    try:
        return call()
    except FileNotFoundError as error:
        raise FileNotFoundError(f"hdfs://{path} does not exist: {_hdfs_reason(error)}") from error
    except (OSError, RuntimeError) as error:
        raise OSError(f"hdfs://{path} cannot be read: {_hdfs_reason(error)}") from error


def _hdfs_reason(error: Exception) -> str:
    return str(error).replace("\\n", "\n").split("\n", 1)[0]
