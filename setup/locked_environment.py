"""Virtual environments below the cache folder, each installed from one lock file.

They are separate from the environment of the jobs.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

from setup.console import cache_folder, locked, run, step

ROOT = Path(__file__).resolve().parent.parent


def is_installed(name: str, lock: Path) -> bool:
    """Whether this version of Python installed the environment from the current lock file."""
    stamp = _stamp(name)
    return stamp.is_file() and stamp.read_text() == _digest(lock)


def locked_environment(name: str, lock: Path, check: str) -> Path:
    """The folder of an environment. Installs it if it is missing or if its lock file has changed.

    Args:
        name: name of the environment's folder below the cache folder.
        lock: requirements file with exact versions and hashes.
        check: Python statement that must succeed in the environment, such as `import mkdocs`.

    Raises:
        SetupError: a package cannot be installed, or the check fails.
    """
    folder = cache_folder() / name
    with locked(folder.with_suffix(".lock")):
        if is_installed(name, lock):
            return folder
        with step(f"installing {lock.name} into {folder}"):
            shutil.rmtree(folder, ignore_errors=True)
            run([sys.executable, "-m", "venv", folder])
            options = ["--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps"]
            run([folder / "bin/python", "-m", "pip", "install", *options, "-r", lock])
            run([folder / "bin/python", "-c", check])
            _stamp(name).write_text(_digest(lock))
    return folder


def _stamp(name: str) -> Path:
    """The file with the digest of the installed lock file. It is written last."""
    return cache_folder() / name / "locked.sha256"


def _digest(lock: Path) -> str:
    return hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()
