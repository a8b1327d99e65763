"""Small files on any file system pyarrow knows: read, list, and replace atomically.

A replacement is a rename on a local file system and a single PUT on an object store: a reader sees the old bytes or
the new ones.
"""

from __future__ import annotations

import json
import os
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyarrow import fs

from conf.errors import DataError, InfrastructureError


def filesystem(path: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URI, and the path within it. A plain path is local, relative to the cwd."""
    if "://" not in path:
        return fs.LocalFileSystem(), os.path.abspath(path)
    found, inner = fs.FileSystem.from_uri(path.replace("s3a://", "s3://", 1))
    return found, inner


def is_local(path: str) -> bool:
    return "://" not in path or path.startswith("file://")


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
