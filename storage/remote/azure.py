"""Azure Blob Storage and Data Lake Storage: lists and reads blobs with the package azure-storage-blob.

A path is `container@account.dfs.core.windows.net/folder`, or `container/folder` in the account of
$AZURE_STORAGE_ACCOUNT_NAME. The first of these credentials that exists is used:

* $AZURE_STORAGE_CONNECTION_STRING, if it belongs to the account of the path, or the path has no account;
* $AZURE_STORAGE_ACCOUNT_KEY or $AZURE_STORAGE_SAS_TOKEN of the account $AZURE_STORAGE_ACCOUNT_NAME;
* azure-identity's default: the variables AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET, the
  identity of the workload or machine, or the login of the command line `az`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyarrow import fs

from conf.errors import ConfigError
from storage.remote import RangeFile, RangeHandler, missing_package, with_folders

if TYPE_CHECKING:
    from azure.storage.blob import BlobPrefix, BlobProperties, ContainerClient

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
        container, name = _parts(path)
        from azure.core.exceptions import ResourceNotFoundError

        with _errors_of(path):
            if not name:
                kind = fs.FileType.Directory if container.exists() else fs.FileType.NotFound
                return fs.FileInfo(path, kind)
            try:
                return _file_info(path, container.get_blob_client(name).get_blob_properties())
            except ResourceNotFoundError:
                try:
                    below = next(iter(container.list_blob_names(name_starts_with=f"{name}/")), None)
                except ResourceNotFoundError:  # no such container
                    below = None
        return fs.FileInfo(path, fs.FileType.NotFound if below is None else fs.FileType.Directory)

    def entries(self, folder: str, recursive: bool) -> list[fs.FileInfo]:
        """Returns the content of a folder."""
        container, name = _parts(folder)
        prefix = f"{name}/" if name else ""
        base = folder.rstrip("/")
        # `walk_blobs` returns the blobs of one folder, and the prefixes that are its folders.
        listed = container.list_blobs if recursive else container.walk_blobs
        with _errors_of(folder):
            blobs: Iterable[BlobProperties | BlobPrefix] = listed(prefix, include=["metadata"])
            infos = [_file_info(f"{base}/{blob.name[len(prefix) :]}", blob) for blob in blobs]
        if not infos and name:
            raise FileNotFoundError(f"abfss://{folder} does not exist")
        return with_folders(base, infos, recursive)

    def open_range(self, path: str) -> RangeFile:
        """Opens a blob."""
        container, name = _parts(path)
        blob = container.get_blob_client(name)
        with _errors_of(path):
            size = blob.get_blob_properties().size

        def read_range(start: int, length: int) -> bytes:
            with _errors_of(path):
                return blob.download_blob(offset=start, length=length).readall()

        return RangeFile(read_range, size)


def _parts(path: str) -> tuple[ContainerClient, str]:
    """Returns the container of a path, and the name of the blob."""
    authority, _, name = path.partition("/")
    settings = tuple(os.environ.get(key, "") for key in (_CONNECTION, _ACCOUNT, _KEY, _TOKEN))
    return _connected(authority, settings, os.getpid()), name


@lru_cache(maxsize=16)
def _connected(authority: str, settings: tuple[str, ...], _process: int) -> ContainerClient:
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


def _file_info(path: str, blob: BlobProperties | BlobPrefix) -> fs.FileInfo:
    """Returns the information about a blob or about a prefix of names. A prefix has no size."""
    metadata = {key.lower(): value for key, value in (blob.get("metadata") or {}).items()}
    modified = blob.get("last_modified")
    if modified is None or metadata.get(_IS_FOLDER) == "true":
        return fs.FileInfo(path.rstrip("/"), fs.FileType.Directory)
    return fs.FileInfo(path, fs.FileType.File, size=blob.get("size"), mtime=modified)


@contextmanager
def _errors_of(path: str) -> Iterator[None]:
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
        raise FileNotFoundError(f"abfss://{path} does not exist: {_first_line(error)}") from error
    except AzureError as error:
        is_refused = getattr(error, "status_code", None) in _REFUSED
        if is_refused or isinstance(error, ClientAuthenticationError):
            raise ConfigError(
                f"abfss://{path} cannot be read with these credentials: {_first_line(error)}",
                f"set {_CONNECTION}, or {_ACCOUNT} with {_KEY} or {_TOKEN}, or give this machine an identity "
                "that may read the container (docs/lakes.md)",
            ) from error
        raise OSError(f"abfss://{path} cannot be read: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
