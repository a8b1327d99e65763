"""The folder of a model repository: its lock, its scratch folder, and the description of a version."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conf.errors import DataError, InfrastructureError


def read_served(path: Path) -> dict[str, Any]:
    """Returns the content of a file served.json.

    Raises:
        DataError: the file is damaged.
    """
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if {"version", "model_version", "workflow_version", "inputs"} <= set(facts):
            return facts
    except (ValueError, TypeError) as error:
        raise DataError(f"{path} is damaged: {error}", "export the model to another folder") from error
    raise DataError(f"{path} is damaged: it lacks keys", "export the model to another folder")


@contextmanager
def locked_with_scratch(folder: Path) -> Iterator[Path]:
    """Creates a repository if it does not exist, and locks it. Yields an empty folder for unfinished files.

    Raises:
        InfrastructureError: the repository cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder), _scratch_beside(folder) as scratch:
            yield scratch
    except OSError as error:
        raise InfrastructureError(
            f"{folder} cannot be written: {error}",
            "choose another folder, or free disk space; the folder and its parent must be on one file system",
        ) from error


@contextmanager
def _scratch_beside(repository: Path) -> Iterator[Path]:
    """Creates a folder on the file system of a repository. Within it, servers would take it for a model."""
    with tempfile.TemporaryDirectory(
        prefix=f".{repository.name}.", dir=repository.parent, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Waits for other processes that write to this folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
