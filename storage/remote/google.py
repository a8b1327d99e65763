"""Google Cloud Storage: lists, reads and writes objects with pyarrow's client.

A path is `bucket/folder`. Credentials are found by Google's rules: first $GOOGLE_APPLICATION_CREDENTIALS,
then the login of gcloud, then the service account of the machine. If $STORAGE_EMULATOR_HOST is set, requests
go to this emulator instead of Google's store.

pyarrow's client cannot make a request depend on a precondition. So the package google-auth sends the requests
that need one: see cloud.google.com/storage/docs/json_api/v1/objects/insert and …/objects/delete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs

from conf.errors import ConfigError
from storage.remote import StoreHandler, missing_package, with_folders

if TYPE_CHECKING:
    from requests import Response, Session

# pyarrow retries failed requests for this time. pyarrow's default is 15 minutes.
_RETRY_TIME = timedelta(minutes=1)
_ENDPOINT = "https://storage.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_TIMEOUT_S = 60.0
_RETRIES = 6  # with pauses of 0, 2, 4, 8, 16 and 32 s
_AGAIN = (429, 500, 502, 503, 504)
_REFUSED, _MISSING, _EXISTS = (401, 403), 404, 412


def google_storage() -> fs.FileSystem:
    """Returns the file system of gs://.

    Raises:
        ConfigError: pyarrow was built without Google Cloud Storage.
    """
    return _opened(os.environ.get("STORAGE_EMULATOR_HOST", ""), os.getpid())


def delta_options() -> dict[str, str]:
    """Returns the settings with which delta-rs uses the emulator; empty if there is none."""
    emulator = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
    if not emulator:
        return {}
    address = emulator if "://" in emulator else f"http://{emulator}"
    # With `disable_oauth`, delta-rs requests no token. With its option google_skip_signature instead, it
    # would still request a token before it writes.
    account = {"gcs_base_url": address, "disable_oauth": True, "client_email": "", "private_key": ""}
    return {"google_service_account_key": json.dumps({**account, "private_key_id": ""}), "allow_http": "true"}


@lru_cache(maxsize=16)
def _opened(emulator: str, _process: int) -> fs.FileSystem:
    try:
        from pyarrow.fs import GcsFileSystem
    except ImportError as error:
        raise ConfigError(
            "this build of pyarrow cannot read gs:// paths",
            "install pyarrow from PyPI: `pip install pyarrow`",
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
                ),
                f"{scheme or 'http'}://{host}",
            )
        )
    return fs.PyFileSystem(_Google(GcsFileSystem(retry_time_limit=_RETRY_TIME)))


class _Google(StoreHandler):
    """Adds folders to pyarrow's file system, which lists a folder only if an object represents it."""

    scheme = "gs"

    def __init__(self, files: fs.FileSystem, emulator: str = "") -> None:
        super().__init__()
        self._files, self._endpoint, self._anonymous = files, emulator or _ENDPOINT, bool(emulator)

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

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:
        """Creates an object, which becomes visible when the stream is closed."""
        with _errors_of(path, "written"):
            return self._files.open_output_stream(path, compression=None)

    def create_file(self, path: str, data: bytes) -> None:
        """Creates an object. Generation 0 as the precondition means that no object has the name."""
        bucket, _, name = path.partition("/")
        address = f"{self._endpoint}/upload/storage/v1/b/{bucket}/o"
        parameters = {"uploadType": "media", "name": name, "ifGenerationMatch": "0"}
        headers = {"Content-Type": "application/octet-stream"}
        answer = self._sent("POST", path, address, params=parameters, headers=headers, data=data)
        if answer.status_code == _EXISTS:
            raise FileExistsError(f"gs://{path} exists")
        _require_success(path, answer)

    def delete_file(self, path: str) -> None:
        """Deletes an object."""
        with _errors_of(path, "deleted"):
            self._files.delete_file(path)

    def create_dir(self, path: str, recursive: bool) -> None:
        """Creates an object that represents a folder, which Spark requires for its event logs."""
        with _errors_of(path, "written"):
            self._files.create_dir(path, recursive=recursive)

    def delete_empty_folder(self, path: str) -> None:
        """Deletes the object that represents a folder, if there is one. The bucket stays."""
        bucket, _, name = path.partition("/")
        if not name:
            return
        address = f"{self._endpoint}/storage/v1/b/{bucket}/o/{quote(f'{name}/', safe='')}"
        answer = self._sent("DELETE", path, address)
        if answer.status_code != _MISSING:
            _require_success(path, answer)

    def _sent(self, method: str, path: str, address: str, **values: Any) -> Response:
        """Sends a request, and returns the answer."""
        session = _session(self._anonymous, os.getpid())
        from google.auth.exceptions import GoogleAuthError
        from requests import RequestException

        try:
            return session.request(method, address, timeout=_TIMEOUT_S, **values)
        except (RequestException, GoogleAuthError) as error:
            raise OSError(f"gs://{path} cannot be written: {error}") from error


@lru_cache(maxsize=2)
def _session(anonymous: bool, _process: int) -> Session:
    """Returns a new session, which repeats failed requests.

    Raises:
        ConfigError: a package is missing, or there are no credentials.
    """
    try:
        from google.auth import default
        from google.auth.exceptions import DefaultCredentialsError
        from google.auth.transport.requests import AuthorizedSession
        from requests import Session
        from requests.adapters import HTTPAdapter
        from urllib3.util import Retry
    except ImportError as error:
        raise missing_package("gs", "google-auth requests", "google") from error
    try:
        session = Session() if anonymous else AuthorizedSession(default(scopes=[_SCOPE])[0])
    except DefaultCredentialsError as error:
        raise ConfigError(
            f"gs:// cannot be written without credentials: {error}",
            "set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account, or run `gcloud auth "
            "application-default login`, or give this machine a service account (docs/lakes.md)",
        ) from error
    # Every request of this session may be repeated. If the first attempt created the object but the answer
    # was lost, the repeated request finds the object.
    retries = Retry(
        total=_RETRIES,
        backoff_factor=1,
        status_forcelist=_AGAIN,
        allowed_methods=None,
        raise_on_status=False,
    )
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=retries))
    return session


def _require_success(path: str, answer: Response) -> None:
    """Raises ConfigError or OSError if a request failed."""
    if answer.status_code in _REFUSED:
        raise ConfigError(
            f"gs://{path} cannot be written with these credentials: {answer.status_code} {answer.reason}",
            "give the service account the role Storage Object User on the bucket (docs/lakes.md)",
        )
    if not answer.ok:
        raise OSError(f"gs://{path} cannot be written: {answer.status_code} {answer.reason}")


@contextmanager
def _errors_of(path: str, done: str = "read") -> Iterator[None]:
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
        raise OSError(f"gs://{path} cannot be {done}: {error}") from error
