"""Small files on local disks and object stores: read, list, and replace atomically; and where the file system of a path is.

A replacement is a rename on a local file system and one upload on an object store, which appears when it is complete: a
reader sees the old bytes or the new ones. HDFS is read through the Hadoop client of a Spark session, which a job hands in.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from conf.errors import ConfigError, DataError, InfrastructureError

_hdfs: Callable[[], fs.FileSystem] | None = None


def read_hdfs_through(hdfs: Callable[[], fs.FileSystem] | None) -> None:
    """Says what reads hdfs:// in this process from now on; it is asked for when a path is met."""
    global _hdfs
    _hdfs = hdfs


def scheme_of(path: str) -> str:
    """`s3a` of s3a://bucket/key; empty for a plain path."""
    return path.split("://", 1)[0] if "://" in path else ""


def filesystem(path: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URI, and the path within it. A plain path is local, relative to the cwd.

    s3:// and s3a:// follow AWS's own environment variables (docs/lakes.md); nothing in a path is an escape.

    Raises:
        ConfigError: there is no reader for the scheme.
    """
    scheme, inner = scheme_of(path), path.split("://", 1)[-1]
    if scheme in ("", "file"):
        return fs.LocalFileSystem(), os.path.abspath(inner)
    if scheme in ("s3", "s3a"):
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""
        return _s3(inner.split("/", 1)[0], endpoint.rstrip("/"), region), inner.rstrip("/")
    if scheme == "hdfs" and _hdfs is not None:
        return _hdfs(), inner.rstrip("/")
    try:
        found, inner = fs.FileSystem.from_uri(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigError(
            f"{path} cannot be opened here: {error}",
            "use a local path, file://, s3a://, or hdfs:// for the raw log",
        ) from error
    return found, inner


@lru_cache(maxsize=16)
def _s3(bucket: str, endpoint: str, region: str) -> fs.FileSystem:
    """A client, whose connections are kept; credentials are found by AWS's own rules."""
    if endpoint:
        scheme, _, host = endpoint.rpartition("://")
        return fs.S3FileSystem(endpoint_override=host, scheme=scheme or "https", region=region or "us-east-1")
    return fs.S3FileSystem(region=region or fs.resolve_s3_region(bucket))


def is_local(path: str) -> bool:
    return scheme_of(path) in ("", "file")


def exists(path: str) -> bool:
    files, inner = filesystem(path)
    return bool(files.get_file_info(inner).type != fs.FileType.NotFound)


def read_text(path: str) -> str:
    """The text of a file.

    Raises:
        FileNotFoundError: there is no such file.
    """
    files, inner = filesystem(path)
    with files.open_input_stream(inner) as stream:
        return str(stream.read().decode("utf-8"))


def read_json(path: str) -> Any:
    """Parsed JSON of a file; DataError names the file when it does not parse."""
    text = read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path} is not JSON: {error}", "delete the damaged file and rerun the job that writes it"
        ) from error


def list_files(path: str, recursive: bool = False) -> list[fs.FileInfo]:
    """Entries below a folder, sorted by path; empty when the folder does not exist."""
    files, inner = filesystem(path)
    found = files.get_file_info(fs.FileSelector(inner, allow_not_found=True, recursive=recursive))
    return sorted(found, key=lambda info: info.path)


def delete_file(path: str) -> None:
    files, inner = filesystem(path)
    files.delete_file(inner)


def replace_text(path: str, text: str) -> None:
    """Writes a small file so that readers see the old content or the new, whole.

    Raises:
        InfrastructureError: the file could not be written.
    """
    try:
        if is_local(path):
            _replace_local(Path(filesystem(path)[1]), text)
        else:
            files, inner = filesystem(path)
            with files.open_output_stream(inner) as stream:
                stream.write(text.encode("utf-8"))
    except OSError as error:
        raise InfrastructureError(
            f"cannot write {path}: {error}", "check disk space and permissions, then rerun"
        ) from error


def replace_json(path: str, value: Any) -> None:
    replace_text(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False))


def _replace_local(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    with open(scratch, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, path)
    folder = os.open(path.parent, os.O_RDONLY)  # the rename itself must survive a power cut
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def utc_now() -> str:
    """The time of day in UTC, to the second, as ISO 8601."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
