"""The Python environment of Airflow.

The environment shares no package with the jobs, because Airflow starts the jobs with spark-submit. It is
created in the cache folder when it is first needed (660 MB), from the lock file requirements/airflow.txt.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

from setup.console import cache_folder, locked, run, step

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements/airflow.txt"


def environment() -> Path:
    """The folder of the environment, which is created if it is missing or if the lock file has changed.

    Raises:
        SetupError: the environment cannot be created.
    """
    folder = cache_folder() / "airflow"
    if is_current(folder):
        return folder
    with locked(folder.with_suffix(".lock")):
        if not is_current(folder):  # another process may have created it while this process waited
            with step(f"installing Airflow ({folder}, 660 MB)"):
                _make(folder)
    return folder


def is_current(folder: Path) -> bool:
    """Whether the environment was created from the current lock file by this version of Python."""
    stamp = folder / "locked.sha256"
    return stamp.is_file() and stamp.read_text() == _wanted()


def _make(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-m", "venv", folder])
    options = ["--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps", "-r", str(LOCK)]
    run([folder / "bin/python", "-m", "pip", "install", *options])
    run([folder / "bin/python", "-c", "import airflow.providers.apache.spark.hooks.spark_submit"])
    (folder / "locked.sha256").write_text(_wanted())


def _wanted() -> str:
    return hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()
