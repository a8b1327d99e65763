"""File systems of paths, and small files on them: read, list, and replace atomically.

A replacement is a rename on a local file system and one upload on an object store, which appears when it is
complete: a reader sees the old bytes or the new ones. `create_json` writes a file only where there is none.
HDFS is read through the Hadoop client of a Spark session, which a job hands in.
"""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from conf.errors import ConfigError, DataError, InfrastructureError
from conf.names import scheme_of

# The errors of link(2) on a file system without hard links.
_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)

_hdfs: Callable[[], fs.FileSystem] | None = None


def read_hdfs_through(hdfs: Callable[[], fs.FileSystem] | None) -> None:
    """Sets what reads hdfs:// in this process from now on. It is called at the first path on HDFS."""
    global _hdfs
    _hdfs = hdfs


def filesystem(path: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URI, and the path within it. A plain path is local, relative to the cwd.

    For s3:// and s3a://, AWS's environment variables count (docs/lakes.md). A path has no escapes.

    Raises:
        ConfigError: no reader supports the scheme.
    """
    scheme, inner = scheme_of(path), path.split("://", 1)[-1]
    if scheme in ("", "file"):
        return fs.LocalFileSystem(), os.path.abspath(inner)
    if scheme in ("s3", "s3a"):
        return _s3(inner.split("/", 1)[0], *s3_place()), inner.rstrip("/")
    if scheme == "hdfs" and _hdfs is not None:
        return _hdfs(), inner.rstrip("/")
    try:
        files, inner = fs.FileSystem.from_uri(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigError(
            f"{path} cannot be opened here: {error}",
            "use a local path, file://, s3a://, or hdfs:// for the raw log",
        ) from error
    return files, inner


def s3_place() -> tuple[str, str]:
    """(endpoint, region) from AWS's environment variables; empty if these are not set."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    return endpoint.rstrip("/"), os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""


@lru_cache(maxsize=16)
def _s3(bucket: str, endpoint: str, region: str) -> fs.FileSystem:
    """A client, whose connections are reused. It finds credentials by AWS's rules."""
    if endpoint:
        scheme, _, host = endpoint.rpartition("://")
        return fs.S3FileSystem(endpoint_override=host, scheme=scheme or "https", region=region or "us-east-1")
    return fs.S3FileSystem(region=region or fs.resolve_s3_region(bucket))


def is_local(path: str) -> bool:
    """Whether a path is on a local file system."""
    return scheme_of(path) in ("", "file")


def exists(path: str) -> bool:
    """Whether there is a file or folder at a path."""
    files, inner = filesystem(path)
    return bool(files.get_file_info(inner).type != fs.FileType.NotFound)


def sizes(paths: Sequence[str]) -> list[int | None]:
    """Bytes of each file; None for a file that does not exist. All files must be on one file system."""
    if not paths:
        return []
    files = filesystem(paths[0])[0]
    infos = files.get_file_info([filesystem(path)[1] for path in paths])
    return [info.size if info.is_file else None for info in infos]


def make_durable(paths: Iterable[str], root: str) -> None:
    """Flushes local files, and their folders up to `root`, to disk, so that they survive a power cut.

    A file on an object store is durable as soon as it exists.

    Raises:
        InfrastructureError: a file or folder cannot be flushed.
    """
    top = Path(filesystem(root)[1])
    files = [Path(filesystem(name)[1]) for name in paths if is_local(name)]
    folders = {folder for file in files for folder in file.parents if folder.is_relative_to(top)}
    try:
        for path in [*files, *sorted(folders, reverse=True)]:
            flush(path)
    except OSError as error:
        raise InfrastructureError(
            f"cannot flush {error.filename or top} to disk: {error}", "check the disk, then rerun"
        ) from error


def flush(path: Path) -> None:
    """Flushes a file's bytes, or a folder's names, to disk. Raises OSError."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def read_text(path: str) -> str:
    """The text of a file.

    Raises:
        FileNotFoundError: there is no such file.
    """
    files, inner = filesystem(path)
    with files.open_input_stream(inner) as stream:
        return str(stream.read().decode("utf-8"))


def read_json(path: str) -> Any:
    """The parsed JSON of a file. Raises DataError with the path if it does not parse."""
    text = read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path} is not JSON: {error}", "delete the damaged file and rerun the job that writes it"
        ) from error


def list_files(path: str, recursive: bool = False) -> list[fs.FileInfo]:
    """Entries below a folder, sorted by path; empty if the folder does not exist."""
    files, inner = filesystem(path)
    infos = files.get_file_info(fs.FileSelector(inner, allow_not_found=True, recursive=recursive))
    return sorted(infos, key=lambda info: info.path)


def delete_file(path: str) -> None:
    """Deletes a file. Raises OSError if it cannot be deleted."""
    files, inner = filesystem(path)
    files.delete_file(inner)


def replace_text(path: str, text: str) -> None:
    """Replaces a small file in one step: readers see the whole old content or the whole new content.

    Raises:
        InfrastructureError: the file could not be written.
    """
    with _writing(path):
        if is_local(path):
            _replace_local(Path(filesystem(path)[1]), text)
        else:
            _upload(path, text)


def replace_json(path: str, value: Any) -> None:
    """Writes a small JSON file as `replace_text` does."""
    replace_text(path, _dump(value))


def create_json(path: str, value: Any) -> bool:
    """Writes a small file unless it exists already. Returns whether the file holds `value` afterwards.

    Readers see a whole file or none. On a local file system exactly one of several concurrent callers gets
    True.

    pyarrow's clients of object stores have no conditional write, and some local file systems have no hard
    links. There the file is written if none is seen, and read back. Of concurrent callers the last one wins;
    an earlier one gets True too if it reads back before it is overwritten. So callers must keep whatever
    their `value` refers to.

    Args:
        value: must differ from what any other caller writes there.

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
        if exists(path):
            return False
        replace_text(path, text)
        return read_text(path) == text


def _dump(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, allow_nan=False)


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
        # NFS repeats a request whose answer was lost. Then it reports that our own link exists.
        return os.stat(scratch).st_nlink > 1
    finally:
        scratch.unlink(missing_ok=True)
    flush(path.parent)
    return True


def _write_scratch(path: Path, text: str) -> Path:
    """Writes a file with a unique name in the folder of `path`, and flushes it to disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(scratch, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        scratch.unlink(missing_ok=True)  # on a full disk, failed attempts must leave no file
        raise
    return scratch


def utc_now() -> str:
    """The time of day in UTC, to the second, as ISO 8601."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
