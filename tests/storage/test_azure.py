"""Blobs of Azure, with a container in memory. tests/etl/lakes uses a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
)
from azure.storage.blob import BlobPrefix, BlobProperties
from pyarrow import fs

from conf.errors import ConfigError
from storage.remote import azure

ROOT = "lake@account.dfs.core.windows.net"


@dataclass
class Container:
    """The methods of ContainerClient that these tests need.

    Attributes:
        blobs: maps the name of each blob to its bytes.
        metadata: maps the name of a blob to its metadata.
        error: what every request raises.
    """

    blobs: dict[str, bytes] = field(default_factory=dict)
    metadata: dict[str, dict[str, str]] = field(default_factory=dict)
    error: AzureError | None = None

    def get_blob_client(self, name: str) -> Any:
        return SimpleNamespace(
            get_blob_properties=lambda: self._properties(name, with_metadata=True),
            download_blob=lambda offset, length: self._download(name, offset, length),
            upload_blob=lambda data, overwrite=False, metadata=None: self._upload(
                name, data, overwrite, metadata
            ),
            delete_blob=lambda: self._sent(name) and self.blobs.pop(name),
        )

    def list_blobs(self, name_starts_with: str, include: list[str] | None = None) -> Iterator[BlobProperties]:
        self._sent()
        for name in sorted(name for name in self.blobs if name.startswith(name_starts_with)):
            yield self._properties(name, with_metadata="metadata" in (include or []))

    def walk_blobs(
        self, name_starts_with: str, include: list[str] | None = None
    ) -> Iterator[BlobProperties | BlobPrefix]:
        prefixes = set()
        for blob in self.list_blobs(name_starts_with, include):
            first, slash, _ = blob.name.removeprefix(name_starts_with).partition("/")
            if not slash:
                yield blob
            elif first not in prefixes:
                prefixes.add(first)
                yield BlobPrefix(prefix=f"{name_starts_with}{first}/")

    def list_blob_names(self, name_starts_with: str) -> Iterator[str]:
        return (blob.name for blob in self.list_blobs(name_starts_with))

    def _sent(self, name: str | None = None) -> bool:
        """Raises the error of a request, or of a request for a missing blob."""
        if self.error is not None:
            raise self.error
        if name is not None and name not in self.blobs:
            raise ResourceNotFoundError(f"there is no {name}")
        return True

    def _properties(self, name: str, *, with_metadata: bool) -> BlobProperties:
        self._sent(name)
        properties = {
            "Last-Modified": datetime(2026, 1, 1, tzinfo=UTC),
            "Content-Length": len(self.blobs[name]),
        }
        return BlobProperties(
            name=name, metadata=self.metadata.get(name) if with_metadata else None, **properties
        )

    def _download(self, name: str, offset: int, length: int) -> Any:
        self._sent(name)
        return SimpleNamespace(readall=lambda: self.blobs[name][offset : offset + length])

    def _upload(self, name: str, data: bytes, overwrite: bool, metadata: dict[str, str] | None) -> None:
        self._sent()
        if name in self.blobs and not overwrite:
            raise ResourceExistsError(f"there is a blob {name}")
        self.blobs[name], self.metadata[name] = data, metadata or {}


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> Container:
    container = Container()
    monkeypatch.setattr(azure, "_connected", lambda *_: container)
    return container


@pytest.fixture
def handler(container: Container) -> azure._Azure:
    return azure._Azure()


def test_any_range_of_a_blob_is_read(container: Container, handler: azure._Azure) -> None:
    data = bytes(range(200))
    container.blobs["a"] = data
    file = handler.open_range(f"{ROOT}/a")
    for start, length in ((0, 10), (50, 100), (199, 1), (0, 200), (200, 5)):
        file.seek(start)
        assert file.read(length) == data[start : start + length]


@pytest.mark.parametrize("recursive", [False, True])
def test_folders_are_not_listed_as_empty_files(
    container: Container, handler: azure._Azure, recursive: bool
) -> None:
    """Data Lake Storage marks folders by metadata. On other accounts, only names of blobs have folders."""
    handler.create_dir(f"{ROOT}/logs/marked", recursive=True)
    container.blobs |= {"logs/a": b"abc", "logs/named/b": b""}
    entries = {info.path: (info.type, info.size) for info in handler.entries(f"{ROOT}/logs", recursive)}
    folder = (fs.FileType.Directory, None)
    expected = {
        f"{ROOT}/logs/marked": folder,
        f"{ROOT}/logs/named": folder,
        f"{ROOT}/logs/a": (fs.FileType.File, 3),
    }
    assert entries == expected | ({f"{ROOT}/logs/named/b": (fs.FileType.File, 0)} if recursive else {})
    for path, (kind, _) in entries.items():
        assert handler.info(path).type == kind
    assert handler.info(f"{ROOT}/logs/missing").type == fs.FileType.NotFound


def test_a_blob_is_created_only_once_and_visible_when_it_is_complete(
    container: Container, handler: azure._Azure
) -> None:
    handler.create_file(f"{ROOT}/a", b"first")
    with pytest.raises(FileExistsError, match=f"abfss://{ROOT}/a exists"):
        handler.create_file(f"{ROOT}/a", b"second")
    stream = handler.open_output_stream(f"{ROOT}/a", None)
    stream.write(b"third")
    assert container.blobs == {"a": b"first"}
    stream.close()
    assert container.blobs == {"a": b"third"}
    handler.delete_empty_folder(f"{ROOT}/a")
    assert container.blobs == {"a": b"third"}, "it is no folder"
    handler.delete_file(f"{ROOT}/a")
    assert container.blobs == {}


def _refusal() -> HttpResponseError:
    error = HttpResponseError("the token has expired")
    error.status_code = 403
    return error


# Operations of `_Azure` on the blob `a`. Each function returns the operation, to be called after a failure.
OPERATIONS: dict[str, Callable[[azure._Azure, str], Callable[[], object]]] = {
    "info": lambda handler, path: lambda: handler.info(path),
    "list": lambda handler, path: lambda: handler.entries(path.rpartition("/")[0], True),
    "list a folder": lambda handler, path: lambda: handler.entries(path.rpartition("/")[0], False),
    "open": lambda handler, path: lambda: handler.open_range(path),
    "read": lambda handler, path: handler.open_range(path).read,
    "create": lambda handler, path: lambda: handler.create_file(path, b""),
    "create a folder": lambda handler, path: lambda: handler.create_dir(path, True),
    "write": lambda handler, path: handler.open_output_stream(path, None).close,
    "delete": lambda handler, path: lambda: handler.delete_file(path),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(
    "error, expected, message",
    [
        (_refusal(), ConfigError, "with these credentials: the token has expired"),
        (ClientAuthenticationError("no login"), ConfigError, "with these credentials: no login"),
        (ServiceRequestError("no route\nstack trace"), OSError, r"cannot be \w+: no route$"),
    ],
)
def test_errors_of_every_operation_name_the_blob_and_say_why(
    container: Container,
    handler: azure._Azure,
    name: str,
    error: AzureError,
    expected: type[Exception],
    message: str,
) -> None:
    """Also if the connection fails, or the token expires, while a blob is read."""
    container.blobs["logs/a"] = b"data"
    operation = OPERATIONS[name](handler, f"{ROOT}/logs/a")
    container.error = error
    with pytest.raises(expected, match=message) as raised:
        operation()
    assert f"abfss://{ROOT}/logs" in str(raised.value)


def test_a_blob_that_is_deleted_while_it_is_read_is_missing(
    container: Container, handler: azure._Azure
) -> None:
    container.blobs["a"] = b"data"
    file = handler.open_range(f"{ROOT}/a")
    del container.blobs["a"]
    for operation in (
        file.read,
        lambda: handler.open_range(f"{ROOT}/a"),
        lambda: handler.delete_file(f"{ROOT}/a"),
    ):
        with pytest.raises(FileNotFoundError, match=f"abfss://{ROOT}/a does not exist"):
            operation()
