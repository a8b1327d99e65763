"""Azure Blob Storage and Data Lake Storage: lists, reads and writes blobs with azure-storage-blob.

A path is `container@account.dfs.core.windows.net/folder`, or `container/folder` in the account of
$AZURE_STORAGE_ACCOUNT_NAME. The first of these credentials that exists is used:

* $AZURE_STORAGE_CONNECTION_STRING, if it belongs to the account of the path, or the path has no account;
* $AZURE_STORAGE_ACCOUNT_KEY or $AZURE_STORAGE_SAS_TOKEN of the account $AZURE_STORAGE_ACCOUNT_NAME;
* azure-identity's default: the variables AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET, the
  identity of the workload or machine, or the login of the command line `az`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs

from conf.errors import ConfigError
from storage.remote import RangeFile, RangeHandler, missing_package, output_stream, with_folders

if TYPE_CHECKING:
    from azure.storage.blob import BlobClient, BlobPrefix, BlobProperties, ContainerClient

_CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"
_ACCOUNT, _KEY, _TOKEN = "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"
_VARIABLES = (_CONNECTION, _ACCOUNT, _KEY, _TOKEN)
# Data Lake Storage marks the blobs that represent folders with this metadata key.
_IS_FOLDER = "hdi_isfolder"
# The HTTP status codes of a request whose credentials are missing, wrong or insufficient.
_REFUSED = (401, 403)
# The status code of a request to delete a folder that has files. Only accounts with real folders return it.
_CONFLICT = 409
# A blob may have 50,000 blocks, so the size of a block limits the size of a file.
_BLOCK_BYTES = 16 * 2**20


def azure_storage() -> fs.FileSystem:
    """Returns the file system of abfss://, abfs:// and az://. It connects at the first request."""
    return fs.PyFileSystem(_Azure())


def delta_options(authority: str) -> dict[str, str]:
    """Returns settings that make delta-rs use the same credentials as `_connected`.

    Without a connection string, a key or a token, delta-rs looks for credentials as azure-identity does.
    """
    connection, named, key, token = (os.environ.get(name, "") for name in _VARIABLES)
    account = authority.partition("@")[2].partition(".")[0]
    fields = _fields_of(connection)
    if connection and account in ("", fields.get("AccountName", "")):
        options = {
            "azure_storage_account_name": fields.get("AccountName", ""),
            "azure_storage_account_key": fields.get("AccountKey", ""),
            "azure_storage_sas_token": fields.get("SharedAccessSignature", ""),
            "azure_storage_endpoint": fields.get("BlobEndpoint", "").rstrip("/"),
        }
        plain = fields.get("BlobEndpoint", "").startswith("http://")
        return {name: value for name, value in options.items() if value} | (
            {"azure_allow_http": "true"} if plain else {}
        )
    if account in ("", named):
        options = {"account_name": named, "account_key": key, "sas_token": "" if key else token}
        return {f"azure_storage_{name}": value for name, value in options.items() if value}
    return {"azure_storage_account_name": account}


class _Azure(RangeHandler):
    """The handler for blobs of all accounts. A path begins with the container and the account."""

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
        # `walk_blobs` returns the blobs of one folder, and its subfolders as prefixes of names.
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

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:
        """Creates a blob, which becomes visible when the stream is closed."""
        container, name = _parts(path)
        return output_stream(_NewBlob(path, container.get_blob_client(name)))

    def create_file(self, path: str, data: bytes) -> None:
        """Creates a blob by a request with the header `If-None-Match: *`."""
        container, name = _parts(path)
        with _errors_of(path, "written"):
            container.get_blob_client(name).upload_blob(data, overwrite=False)

    def delete_file(self, path: str) -> None:
        """Deletes a blob."""
        container, name = _parts(path)
        with _errors_of(path, "deleted"):
            container.get_blob_client(name).delete_blob()

    def create_dir(self, path: str, recursive: bool) -> None:
        """Creates a blob that represents a folder, which Spark requires for its event logs."""
        container, name = _parts(path)
        with suppress(FileExistsError), _errors_of(path, "written"):
            container.get_blob_client(name).upload_blob(b"", metadata={_IS_FOLDER: "true"})

    def delete_empty_folder(self, path: str) -> None:
        """Deletes the blob that represents a folder, if there is one. The container stays."""
        if not _parts(path)[1]:
            return
        from azure.core.exceptions import HttpResponseError

        try:
            info = self.info(path)
            if info.type == fs.FileType.Directory:
                self.delete_file(path)
        except FileNotFoundError:
            return
        except OSError as error:
            cause = error.__cause__
            if not (isinstance(cause, HttpResponseError) and cause.status_code == _CONFLICT):
                raise


class _NewBlob:
    """A new blob, which is uploaded in blocks. With the last request, the blob becomes visible."""

    def __init__(self, path: str, blob: BlobClient) -> None:
        self._path, self._blob = path, blob
        self._buffer = bytearray()
        self._attempt, self._blocks = uuid.uuid4().hex, list[str]()

    def write(self, data: bytes) -> None:
        """Adds bytes to the blob."""
        self._buffer += data
        while len(self._buffer) >= _BLOCK_BYTES:
            self._stage(_BLOCK_BYTES)

    def finish(self) -> None:
        """Makes the blob visible under its name."""
        from azure.storage.blob import BlobBlock

        if self._blocks and self._buffer:
            self._stage(len(self._buffer))
        with _errors_of(self._path, "written"):
            if self._blocks:
                self._blob.commit_block_list([BlobBlock(name) for name in self._blocks])
            else:
                self._blob.upload_blob(bytes(self._buffer), overwrite=True)

    def abandon(self) -> None:
        """Discards the blob: Azure deletes the uploaded blocks after a week."""
        self._blocks.clear()

    def _stage(self, length: int) -> None:
        # Two processes may write blobs of one name at the same time, so their blocks have different names.
        name = f"{self._attempt}{len(self._blocks):06d}"
        with _errors_of(self._path, "written"):
            self._blob.stage_block(name, bytes(self._buffer[:length]), length)
        self._blocks.append(name)
        del self._buffer[:length]


def _parts(path: str) -> tuple[ContainerClient, str]:
    """Returns the container of a path, and the name of the blob."""
    authority, _, name = path.partition("/")
    settings = tuple(os.environ.get(key, "") for key in _VARIABLES)
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
    if connection and account in ("", _fields_of(connection).get("AccountName", "")):
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


def _fields_of(connection: str) -> dict[str, str]:
    """Returns the fields of a connection string, such as AccountName."""
    return dict(field.partition("=")[::2] for field in connection.split(";"))


def _file_info(path: str, blob: BlobProperties | BlobPrefix) -> fs.FileInfo:
    """Returns the information about a blob or about a prefix of names. A prefix has no size."""
    metadata = {key.lower(): value for key, value in (blob.get("metadata") or {}).items()}
    modified = blob.get("last_modified")
    if modified is None or metadata.get(_IS_FOLDER) == "true":
        return fs.FileInfo(path.rstrip("/"), fs.FileType.Directory)
    return fs.FileInfo(path, fs.FileType.File, size=blob.get("size"), mtime=modified)


@contextmanager
def _errors_of(path: str, done: str = "read") -> Iterator[None]:
    """Converts errors of the client to errors of files whose messages contain the path.

    Raises:
        ConfigError: there are no credentials, or they are wrong.
        FileNotFoundError: there is no such container or blob.
        FileExistsError: there is a blob, which the request must not replace.
        OSError: the account cannot be reached, or the request fails.
    """
    from azure.core.exceptions import (
        AzureError,
        ClientAuthenticationError,
        ResourceExistsError,
        ResourceModifiedError,
        ResourceNotFoundError,
    )

    try:
        yield
    except ResourceNotFoundError as error:
        raise FileNotFoundError(f"abfss://{path} does not exist: {_first_line(error)}") from error
    except (ResourceExistsError, ResourceModifiedError) as error:
        if done != "written":
            raise OSError(f"abfss://{path} cannot be {done}: {_first_line(error)}") from error
        raise FileExistsError(f"abfss://{path} exists: {_first_line(error)}") from error
    except AzureError as error:
        is_refused = getattr(error, "status_code", None) in _REFUSED
        if is_refused or isinstance(error, ClientAuthenticationError):
            raise ConfigError(
                f"abfss://{path} cannot be {done} with these credentials: {_first_line(error)}",
                f"set {_CONNECTION}, or {_ACCOUNT} with {_KEY} or {_TOKEN}, or give this machine an identity "
                "that may use the container (docs/lakes.md)",
            ) from error
        raise OSError(f"abfss://{path} cannot be {done}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
