"""Finds the file system of a path, and reads, lists and atomically replaces small files.

On a local file system and on HDFS, a rename replaces a file. On an object store, an upload replaces a file,
and becomes visible when it is complete. So a reader sees either the old bytes or the new ones. `create_json`
writes a file only if the path has no file yet. storage/remote implements HDFS, Google Cloud Storage and
Azure.

A JSON file of a lake contains a checksum of all other values in the file (`with_checksum`). Without it, a
flipped bit in a number would give another number and no error. Files of earlier releases have no checksum, so
their values are not checked.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TextIO

from pyarrow import fs

from conf.errors import ConfigError, DataError, InfrastructureError
from conf.names import scheme_of
from storage.remote import StoreHandler
from storage.remote.azure import azure_storage
from storage.remote.google import google_storage
from storage.remote.hdfs import hdfs

REPAIR_JSON = "delete the damaged file and rerun the job that writes it"
CHECKSUM = "checksum"  # the key of the checksum in a JSON file

# The errors of link(2) on a file system without hard links.
_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
# Characters with a meaning in the patterns of paths that Hadoop expands.
_OF_PATTERNS = re.compile(r"[\\\[\]{}*?]")
# Largest number of attempts to create a file's folder, which other processes may delete again.
_MOST_TRIES = 20


def filesystem(path: str) -> tuple[fs.FileSystem, str]:
    """Returns the file system of a path or URI, and the path within this file system.

    A plain path is local; if it is relative, it starts at the current directory. The credentials of other
    file systems come from the environment (docs/lakes.md). Percent escapes such as %20 are not decoded.

    Raises:
        ConfigError: the scheme of the URI is not supported, the package for this scheme is missing, or the
            path is not UTF-8.
    """
    scheme, inner = scheme_of(path), path.split("://", 1)[-1]
    _require_utf8(path)
    if scheme in ("", "file"):
        return fs.LocalFileSystem(), os.path.abspath(inner)
    inner = inner.rstrip("/")
    if scheme in ("s3", "s3a"):
        return _s3(inner.split("/", 1)[0], *s3_place()), inner
    if scheme == "hdfs":
        return hdfs(), inner
    if scheme == "gs":
        return google_storage(), inner
    if scheme in ("abfss", "abfs", "az"):
        return azure_storage(), inner
    raise ConfigError(
        f"{path} cannot be opened here: {scheme}:// is not supported",
        "use a local path, or a URI that begins with file://, s3a://, hdfs://, gs:// or abfss://",
    )


def _require_utf8(path: str) -> None:
    """Raises ConfigError if a path has bytes that are not UTF-8, which pyarrow cannot open."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"the path {path!r} is not UTF-8", "rename the file or folder") from error


def s3_place() -> tuple[str, str]:
    """Returns (endpoint, region) of S3 from AWS's environment variables; each is '' if it is not set."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    return endpoint.rstrip("/"), os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""


@lru_cache(maxsize=16)
def _s3(bucket: str, endpoint: str, region: str) -> fs.FileSystem:
    """Returns a client for S3. It reuses connections, and finds credentials by AWS's rules."""
    if endpoint:
        scheme, _, host = endpoint.rpartition("://")
        return fs.S3FileSystem(endpoint_override=host, scheme=scheme or "https", region=region or "us-east-1")
    return fs.S3FileSystem(region=region or fs.resolve_s3_region(bucket))


def resolved(path: str) -> str:
    """Returns a string that is the same for all spellings of the path of one file or folder.

    Symbolic links of local paths are followed. `s3` and `s3a` are the same scheme.
    """
    if is_local(path):
        return os.path.realpath(filesystem(path)[1])
    scheme, _, inner = path.partition("://")
    parts = [part for part in inner.split("/") if part not in ("", ".")]
    return f"{'s3a' if scheme == 's3' else scheme}://{'/'.join(parts)}"


def is_local(path: str) -> bool:
    """Returns whether a path is on a local file system."""
    return scheme_of(path) in ("", "file")


def for_spark(path: str) -> str:
    """Returns a path for Spark's JVM that leads to the same file as `path` in this module.

    A local path gets `file://`. The JVM looks for a path without a scheme on Hadoop's default file system. On
    YARN, this is usually HDFS.
    """
    return f"file://{filesystem(path)[1]}" if is_local(path) else path


def for_spark_reader(path: str) -> str:
    """Returns a path for Spark's readers that leads to the same file as `path` in this module."""
    return escaped(for_spark(path))


def escaped(path: str) -> str:
    """Returns a pattern that matches only `path`, because Spark's readers expand brackets, `*` and `?`."""
    return _OF_PATTERNS.sub(r"\\\g<0>", path)


def local_folder(path: str) -> Path:
    """Returns the absolute path of a local folder, which need not exist.

    Raises:
        ConfigError: the path is empty, or it is a URI of an object store.
    """
    if not path or not is_local(path):
        raise ConfigError(f"{path!r} is not a local folder", "pass the path of a folder on this machine")
    return Path(filesystem(path)[1])


def exists(path: str) -> bool:
    """Returns whether there is a file or folder at a path."""
    files, inner = filesystem(path)
    return bool(files.get_file_info(inner).type != fs.FileType.NotFound)


def sizes(paths: Sequence[str]) -> list[int | None]:
    """Returns the number of bytes of each file; None for a missing file.

    All files must be on one file system.
    """
    if not paths:
        return []
    files = filesystem(paths[0])[0]
    infos = files.get_file_info([filesystem(path)[1] for path in paths])
    return [info.size if info.is_file else None for info in infos]


def leaves(path: str, depth: int = 0) -> bool:
    """Returns whether a path is absolute or leads outside of a folder, and so must not be followed.

    A relative path starts `depth` levels below this folder.

    Files of a lake name other files by relative paths. Without this check, a damaged or forged file could
    name any file of the machine.
    """
    inner = path
    for _ in range(depth):
        inner = inner.removeprefix("../")
    is_relative = bool(inner) and not inner.startswith("/") and not scheme_of(inner)
    return not is_relative or "\0" in inner or ".." in inner.split("/")


def make_durable(paths: Iterable[str], root: str) -> None:
    """Flushes local files and their folders up to `root` to disk, so that they survive a power cut.

    A file on a store is durable as soon as it exists. The function checks that such files still exist.

    Raises:
        InfrastructureError: a file is missing, or a file or folder cannot be flushed.
    """
    names = list(paths)
    if missing := _missing([name for name in names if not is_local(name)]):
        raise InfrastructureError(
            f"{missing} is missing, although it has been written: another run has probably deleted it, "
            "because it was older than output.grace_hours and not published yet",
            "run the job again. If this repeats, set output.grace_hours to more hours than the longest run "
            "takes",
        )
    top = Path(filesystem(root)[1])
    files = [Path(filesystem(name)[1]) for name in names if is_local(name)]
    folders = {folder for file in files for folder in file.parents if folder.is_relative_to(top)}
    try:
        for path in [*files, *sorted(folders, reverse=True)]:
            flush(path)
    except OSError as error:
        raise InfrastructureError(
            f"cannot flush {error.filename or top} to disk: {error}", "check the disk, then rerun"
        ) from error


def _missing(paths: Sequence[str]) -> str | None:
    """Returns the first file that is not on its store; None if all are there. Lists each folder once."""
    folders = {path.rpartition("/")[0] for path in paths}
    there = {info.path for folder in folders for info in list_files(folder) if info.is_file}
    return next((path for path in paths if filesystem(path)[1] not in there), None)


def flush(path: Path) -> None:
    """Flushes the bytes of a file, or the entries of a folder, to disk. Raises OSError if the flush fails."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def read_text(path: str) -> str:
    """Reads the text of a file.

    Raises:
        FileNotFoundError: there is no such file.
        DataError: the path is that of a folder or a pipe, or the bytes of the file are not UTF-8.
    """
    files, inner = filesystem(path)
    # Opening a pipe would block until another process writes to the pipe.
    if is_local(path) and not stat.S_ISREG(os.stat(inner).st_mode):
        raise DataError(f"{path} is damaged: it is not a regular file", REPAIR_JSON)
    with files.open_input_stream(inner) as stream:
        content = stream.read()
    try:
        return str(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is damaged: it is not text in UTF-8: {error}", REPAIR_JSON) from error


def read_json(path: str) -> Any:
    """Reads and parses a JSON file. Returns its value without the checksum.

    Raises:
        FileNotFoundError: there is no such file.
        DataError: the file is not JSON, its values are nested too deeply, or they do not match the checksum
            in the file.
    """
    return parse_json(read_text(path), path)


def parse_json(text: str, path: str) -> Any:
    """Parses the text of a JSON file, and returns its value without the checksum.

    Raises:
        DataError: the text is damaged (see `read_json`). The message contains the path.
    """
    try:
        value = json.loads(text)
        named = value.pop(CHECKSUM, None) if isinstance(value, dict) else None
        if named is not None and named != _checksum_of(value):
            raise DataError(f"{path} is damaged: its values do not match the checksum in it", REPAIR_JSON)
    except RecursionError as error:
        raise DataError(f"{path} is damaged: its JSON values are nested too deeply", REPAIR_JSON) from error
    except ValueError as error:  # JSONDecodeError, or int() refused more than 4,300 digits
        raise DataError(f"{path} is not JSON: {error}", REPAIR_JSON) from error
    return value


def with_checksum(values: Mapping[str, Any]) -> dict[str, Any]:
    """Adds a checksum to the values of a JSON file. `parse_json` verifies it.

    Raises:
        TypeError, ValueError: a value is not a JSON value.
    """
    plain = {key: value for key, value in values.items() if key != CHECKSUM}
    # json writes keys that are numbers as strings, which sort in another order than numbers. So the checksum
    # is computed from the values as they will be read.
    return {**plain, CHECKSUM: _checksum_of(json.loads(json.dumps(plain, allow_nan=False)))}


def _checksum_of(values: Mapping[str, Any]) -> str:
    """Returns 32 hex digits of the SHA-256 of JSON values.

    Spaces and the order of keys do not change the digest.
    """
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


def list_files(path: str, recursive: bool = False) -> list[fs.FileInfo]:
    """Lists the files and folders in a folder, sorted by path; empty if the folder does not exist.

    Raises:
        DataError: the name of a file is not UTF-8.
    """
    files, inner = filesystem(path)
    infos = files.get_file_info(fs.FileSelector(inner, allow_not_found=True, recursive=recursive))
    try:
        return sorted(infos, key=lambda info: info.path)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} has a file whose name is not UTF-8: {error.object!r}", "rename or move this file"
        ) from error


def delete_file(path: str) -> None:
    """Deletes a file. Raises OSError if it cannot be deleted."""
    files, inner = filesystem(path)
    files.delete_file(inner)


def delete_if_present(path: str) -> bool:
    """Deletes a file that another process may delete too. Returns whether this call deleted it.

    Raises:
        OSError: the file exists and cannot be deleted.
    """
    try:
        delete_file(path)
    except FileNotFoundError:
        return False
    return True


def delete_empty_folder(path: str) -> None:
    """Deletes an empty folder. Does nothing if the folder contains something, or does not exist.

    On an object store, an empty folder exists only if an object represents it. On S3, such objects stay,
    because pyarrow's client would also delete files that other processes have written meanwhile.

    Raises:
        OSError: the store cannot be reached.
    """
    files, inner = filesystem(path)
    if is_local(path):
        with suppress(OSError):  # the folder contains something, or another process has deleted it
            os.rmdir(inner)
    elif (store := _store(files)) is not None:
        store.delete_empty_folder(inner)


def _store(files: fs.FileSystem) -> StoreHandler | None:
    """Returns the handler of HDFS, Google Cloud Storage or Azure; None for another file system."""
    return files.handler if isinstance(files, fs.PyFileSystem) else None


def replace_text(path: str, text: str) -> None:
    """Replaces a small file atomically: readers see either the old text or the new one, never a part.

    Raises:
        InfrastructureError: the file could not be written.
    """
    with _writing(path):
        if is_local(path):
            _replace_local(Path(filesystem(path)[1]), text)
        else:
            _upload(path, text)


def replace_json(path: str, value: Any) -> None:
    """Replaces a small JSON file atomically (see `replace_text`).

    If `value` is an object, the file also gets a checksum.
    """
    replace_text(path, _dump(value))


def create_json(path: str, value: Any) -> bool:
    """Writes a small JSON file if it does not exist. Returns whether the file then contains `value`.

    Readers see the complete file or no file. On a local file system, HDFS, Google Cloud Storage and Azure,
    exactly one of several concurrent callers gets True.

    pyarrow's client for S3 has no conditional write, and some local file systems have no hard links. In these
    cases the function writes the file if the path has no file yet, and then reads it back. If
    several callers write at the same time, the file of the last one remains. An earlier caller also gets True
    if it reads the file back before the last one overwrites the file. So if `value` names other files, no
    caller may delete these files.

    Args:
        value: must differ from the values that all other callers write to this path.

    Raises:
        InfrastructureError: the file could not be written.
    """
    text = _dump(value)
    with _writing(path):
        if is_local(path):
            try:
                return _create_local(Path(filesystem(path)[1]), text)
            except OSError as error:
                if error.errno not in _NO_HARD_LINKS:
                    raise
        files, inner = filesystem(path)
        if (store := _store(files)) is not None:
            with suppress(FileExistsError):
                store.create_file(inner, text.encode("utf-8"))
                return True
            # If the answer to a request is lost, the client repeats the request. So our own first request may
            # have created the file.
            return read_text(path) == text
        if exists(path):
            return False
        replace_text(path, text)
        return read_text(path) == text


def _dump(value: Any) -> str:
    stored = with_checksum(value) if isinstance(value, Mapping) else value
    return json.dumps(stored, indent=1, sort_keys=True, allow_nan=False)


@contextmanager
def _writing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InfrastructureError(
            f"cannot write {path}: {error}", "check disk space and permissions, then rerun"
        ) from error


def _upload(path: str, text: str) -> None:
    files, inner = filesystem(path)
    with files.open_output_stream(inner) as stream:
        stream.write(text.encode("utf-8"))


def _replace_local(path: Path, text: str) -> None:
    os.replace(_write_scratch(path, text), path)
    flush(path.parent)


def _create_local(path: Path, text: str) -> bool:
    scratch = _write_scratch(path, text)
    try:
        os.link(scratch, path)
    except FileExistsError:
        # NFS repeats a request if the answer was lost. The repeated request fails, because the first one has
        # created our link.
        return os.stat(scratch).st_nlink > 1
    finally:
        scratch.unlink(missing_ok=True)
    flush(path.parent)
    return True


def _write_scratch(path: Path, text: str) -> Path:
    """Writes a file with a unique name in the folder of `path`, and flushes it to disk."""
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    created = _create_with_folder(scratch)
    try:
        with created as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        scratch.unlink(missing_ok=True)  # do not leave an incomplete file, for example if the disk is full
        raise
    return scratch


def _create_with_folder(path: Path) -> TextIO:
    """Creates a file and its folder, and opens the file for writing.

    Until the file exists, another process may delete the folder, because it is empty (`delete_empty_folder`).
    The folder is then created again.
    """
    tries = 0
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return open(path, "w", encoding="utf-8")
        except (FileExistsError, FileNotFoundError):
            tries += 1
            if tries == _MOST_TRIES:
                raise


def utc_now() -> str:
    """Returns the current date and time in UTC, to the second, as ISO 8601."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
