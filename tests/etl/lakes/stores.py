"""HDFS, Google Cloud Storage and Azure. Tests write files to them with clients of their own."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from azure.storage.blob import BlobServiceClient, ContainerClient
from hdfs_native import Client, WriteOptions
from pyarrow import fs


@dataclass(frozen=True)
class RawStore(ABC):
    """A store on a server of this machine.

    Attributes:
        root: its URI.
    """

    root: str

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Writes or replaces a file. `name` is its path below the root."""

    def upload(self, folder: Path, to: str) -> str:
        """Copies the files of a folder to a folder of the store, and returns its URI."""
        for path in sorted(entry for entry in folder.rglob("*") if entry.is_file()):
            self.write(f"{to}/{path.relative_to(folder)}", path.read_bytes())
        return f"{self.root}/{to}"


class HdfsStore(RawStore):
    """HDFS, with a small block size, so that files have several blocks."""

    def write(self, name: str, data: bytes) -> None:
        options = WriteOptions(overwrite=True, create_parent=True, block_size=2**20)
        with Client(self.root).create(f"/{name}", options) as file:
            file.write(data)


class GoogleStore(RawStore):
    """Google Cloud Storage."""

    def write(self, name: str, data: bytes) -> None:
        host = urlsplit(os.environ["STORAGE_EMULATOR_HOST"]).netloc
        files = fs.GcsFileSystem(
            anonymous=True, scheme="http", endpoint_override=host, retry_time_limit=timedelta(seconds=30)
        )
        path = f"{self.root.removeprefix('gs://')}/{name}"
        with files.open_output_stream(path, compression=None) as stream:
            stream.write(data)


class AzureStore(RawStore):
    """Azure Blob Storage."""

    def create(self) -> None:
        """Creates the container."""
        self._container.create_container()

    def write(self, name: str, data: bytes, metadata: dict[str, str] | None = None) -> None:
        self._container.upload_blob(name, data, metadata=metadata, overwrite=True)

    @property
    def _container(self) -> ContainerClient:
        service = BlobServiceClient.from_connection_string(os.environ["AZURE_STORAGE_CONNECTION_STRING"])
        return service.get_container_client(urlsplit(self.root).username or "")
