"""Files on the local disk that one Python worker writes and all workers of a machine map into memory.

Large tables need gigabytes, and a copy in every worker would not fit. The first worker that needs a table
writes it to Spark's local directory, while the others wait. Spark, or the process that started the workers,
deletes the directory at the end. If the directory does not exist or is full, each worker keeps the table in
its own memory.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from etl.native.library import is_built
from storage.manifest import digest_of

Opened = TypeVar("Opened")


def open_mapped(
    kind: str,
    identity: list[object],
    write: Callable[[Path], Opened | None],
    load: Callable[[Path], Opened],
    read: Callable[[], Opened],
) -> Opened:
    """Returns a table that is mapped from a file of this machine.

    Args:
        kind: a word for the name of the file.
        identity: JSON values that identify the content of the file.
        write: writes the file to a path; returns the table instead if it is too small for a file.
        load: maps a file that `write` wrote.
        read: returns the table in the memory of this process, if it cannot be mapped.
    """
    folders = os.environ.get("SPARK_LOCAL_DIRS")
    if not folders or not is_built():
        return read()
    path = Path(folders.split(",")[0]) / f"nightrank-{kind}-{digest_of(identity)}"
    try:
        if not path.exists():
            # The lock ends with the process that holds it, so a killed worker does not block the others.
            with path.with_name(f".{path.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not path.exists():
                    written = path.with_suffix(f".{os.getpid()}")
                    small = write(written)
                    if small is not None:
                        return small
                    written.replace(path)
        return load(path)
    except OSError:  # the directory is full or does not exist
        return read()
