"""Checks that the lake can be read and written, and that exactly one of two writers creates a file."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from conf.errors import NightrankError
from setup.doctor.findings import Finding
from storage import file_io

_LEAST_FREE_BYTES = 20 * 2**30


def lake(path: str) -> Iterator[Finding]:
    """Writes, reads, replaces and deletes a small file in the new folder `_doctor-<random>` below `path`."""
    folder = f"{path.rstrip('/')}/_doctor-{uuid.uuid4().hex}"
    try:
        local = file_io.is_local(path)
        yield from _probed(path, f"{folder}/probe.json")
    except (NightrankError, OSError) as error:
        problem = error.problem if isinstance(error, NightrankError) else str(error)
        remedy = error.remedy if isinstance(error, NightrankError) else "correct the path, or its owner"
        yield Finding("lake", problem, remedy)
        return
    finally:
        with suppress(NightrankError, OSError):
            files, inner = file_io.filesystem(folder)
            files.delete_dir(inner)
    if local:
        here = Path(file_io.filesystem(path)[1])
        free = shutil.disk_usage(next(parent for parent in (here, *here.parents) if parent.exists())).free
        text = f"{free / 2**30:.1f} GiB are free"
        yield Finding("lake", text, None if free >= _LEAST_FREE_BYTES else "free 20 GiB, or move the lake")


def _probed(path: str, probe: str) -> Iterator[Finding]:
    first, second = {"writer": 1, "process": os.getpid()}, {"writer": 2, "process": os.getpid()}
    created = file_io.create_json(probe, first)
    again = file_io.create_json(probe, second)
    if not created or again or file_io.read_json(probe) != first:
        yield Finding(
            "lake",
            f"{path}: two writers could create the same file",
            "use a file system that creates files atomically (docs/lakes.md)",
        )
        return
    file_io.replace_json(probe, second)
    if file_io.read_json(probe) != second:
        yield Finding(
            "lake",
            f"{path}: after a file is replaced, a read returns the old content",
            "use storage with strong consistency",
        )
        return
    yield Finding("lake", f"{path} can be read and written; only one of two writers can create a file")
