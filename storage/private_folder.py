"""Folders for temporary files, which no other user of the machine can create in advance, read or lock.

Every user can write to /tmp, and other users can guess the names of our files there. So the folder has mode
0700, and each call of `private_folder` checks this mode. Files in the folder are opened without following
symbolic links.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conf.errors import ConfigError, InfrastructureError

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_POLL_S = 0.05


def private_folder(below: str | None, setting: str) -> Path:
    """Returns the path of the folder `nightrank-<user id>` in another folder. Creates it if it is missing.

    Args:
        below: the other folder; None means the folder of temporary files ($TMPDIR, or /tmp).
        setting: the configuration key that sets `below`, for error messages.

    Raises:
        ConfigError: the path is not a folder, or other users may write to it.
        InfrastructureError: the folder cannot be created.
    """
    path = Path(below or tempfile.gettempdir()).absolute() / f"nightrank-{os.getuid()}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            _require_private(path, setting)
    except OSError as error:
        raise InfrastructureError(
            f"cannot make the folder {path}: {error}",
            f"check disk space and permissions, or set {setting} to a folder that this user can write",
        ) from error
    return path


def _require_private(path: Path, setting: str) -> None:
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        problem = "is a symbolic link" if stat.S_ISLNK(status.st_mode) else "is not a folder"
    elif status.st_uid != os.getuid():
        problem = f"belongs to user {status.st_uid}, not to user {os.getuid()}"
    elif status.st_mode & _OTHERS_WRITE:
        problem = f"is writable by other users (mode {stat.S_IMODE(status.st_mode):04o})"
    else:
        if stat.S_IMODE(status.st_mode) != 0o700:  # other users could open and lock its files
            os.chmod(path, 0o700)
        return
    raise ConfigError(
        f"{path} {problem}: another user may have prepared it",
        f"look at {path} and delete it, or set {setting} to a folder that only you can write",
    )


def open_file(path: Path) -> int:
    """Opens a file to read and write, and creates it if it is missing. Returns its descriptor.

    Raises:
        ConfigError: the path is a symbolic link.
    """
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if path.is_symlink():
            raise ConfigError(
                f"{path} is a symbolic link: another user may have prepared it", f"delete {path.parent}"
            ) from error
        raise


@contextmanager
def locked(path: Path, patience_s: float) -> Iterator[None]:
    """Holds the lock on a file until the block or the process ends.

    Raises:
        InfrastructureError: another process still holds the lock after `patience_s` seconds.
        ConfigError: the path is a symbolic link.
    """
    file = open_file(path)
    try:
        lock(file, path, patience_s)
        yield
    finally:
        os.close(file)


def lock(file: int, path: Path, patience_s: float) -> None:
    """Locks an open file until it is closed. `path` is its name. Raises the errors of `locked`."""
    end = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > end:
                raise InfrastructureError(
                    f"another process has held the lock on {path} for {patience_s:.0f} s",
                    f"see who holds it (`fuser -v {path}`), end that process or delete {path.parent}, "
                    "then rerun",
                ) from error
            time.sleep(_POLL_S)


# A folder for the temporary files of one process. It is deleted when the process ends.
#
# If the process is killed, its folder remains. So a process that creates a folder first deletes the folders
# of dead processes. A lock on a file shows whether the process of a folder is alive.

_PREFIX, _LOCK = "workers-", ".lock"


class ScratchFolder:
    """A folder for the temporary files of this process.

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
        """Returns a unique path in the folder, to which the caller may append a suffix."""
        return str(self.path / uuid.uuid4().hex[:12])

    def delete(self) -> None:
        """Deletes the folder."""
        atexit.unregister(self.delete)
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)


def _delete_abandoned(private: Path) -> None:
    """Deletes the folders that killed processes have left."""
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
            pass  # the process of this folder still runs, and holds the lock
        finally:
            os.close(lock)
