"""A folder for the temporary files of one process. It is deleted when the process ends.

If the process is killed, its folder remains. So each process that creates a folder first deletes those of
dead processes. A lock on a file shows whether the process of a folder is alive.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import uuid
from pathlib import Path

from storage.private_folder import open_file, private_folder

_PREFIX, _LOCK = "workers-", ".lock"


class ScratchFolder:
    """The folder of this process.

    Attributes:
        path: the folder, which only this user can read.
    """

    def __init__(self, below: str | None = None) -> None:
        """Creates the folder.

        Args:
            below: where to create it; None for the system's folder of temporary files.

        Raises:
            ConfigError, InfrastructureError: see storage.private_folder.private_folder.
        """
        private = private_folder(below, "spark.local.dir")
        _delete_abandoned(private)
        name = f"{_PREFIX}{uuid.uuid4().hex[:12]}"
        # The lock is taken before the folder exists, so that another process never finds it unlocked.
        self._lock_path = private / f"{name}{_LOCK}"
        self._lock = open_file(self._lock_path)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = private / name
        self.path.mkdir(mode=0o700)
        atexit.register(self.delete)

    def new_name(self) -> str:
        """Returns a path in the folder that no other file has as a prefix."""
        return str(self.path / uuid.uuid4().hex[:12])

    def delete(self) -> None:
        """Deletes the folder."""
        atexit.unregister(self.delete)
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)


def _delete_abandoned(private: Path) -> None:
    """Deletes the folders of processes that have ended without deleting them."""
    for folder in private.glob(f"{_PREFIX}*"):
        if folder.suffix == _LOCK:
            continue
        lock_path = folder.with_name(folder.name + _LOCK)
        lock = open_file(lock_path)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            lock_path.unlink(missing_ok=True)
        except BlockingIOError:
            pass  # its process is alive
        finally:
            os.close(lock)
