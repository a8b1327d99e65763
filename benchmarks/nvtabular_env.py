"""The Python environment of NVTabular, whose last release (23.8) needs pandas 1 and an older Dask than ours.

It is installed from the locked requirements/benchmark-nvtabular.txt into the cache folder when it is first
needed.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements/benchmark-nvtabular.txt"


class Missing(str):
    """The reason why there is no environment."""


def interpreter(cache: Path, install: bool) -> Path | Missing:
    """Returns the interpreter of the environment. If it is missing and `install` is true, it is installed.

    Returns:
        The path of the interpreter, or Missing with the reason if it is not or cannot be installed.
    """
    if not LOCK.exists():
        return Missing(f"{LOCK.relative_to(ROOT)} does not exist")
    folder = cache / "nvtabular"
    python, stamp = folder / "bin/python", folder / "locked.sha256"
    wanted = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    if not install:
        return Missing("its environment is not installed; a run without --quick installs it")
    shutil.rmtree(folder, ignore_errors=True)
    commands = (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps", "-r", str(LOCK)],
        [str(python), "-c", "import nvtabular"],
    )
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
            return Missing(f"it cannot be installed: {last[0]}")
    stamp.write_text(wanted)
    return python
