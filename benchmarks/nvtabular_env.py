"""The Python environment of NVTabular, whose last release (23.8) needs pandas 1 and an older Dask than ours.

It is installed from the locked requirements/benchmark-nvtabular.txt into the cache folder when it is first
needed.
"""

from __future__ import annotations

from pathlib import Path

from setup.console import SetupError
from setup.locked_environment import is_installed, locked_environment

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements/benchmark-nvtabular.txt"


class Missing(str):
    """The reason why there is no environment."""


def interpreter(install: bool) -> Path | Missing:
    """Returns the interpreter of the environment. If it is missing and `install` is true, it is installed.

    Returns:
        The path of the interpreter, or Missing with the reason if it is not or cannot be installed.
    """
    if not install and not is_installed("nvtabular", LOCK):
        return Missing("its environment is not installed; a run without --quick installs it")
    try:
        return locked_environment("nvtabular", LOCK, "import nvtabular") / "bin/python"
    except SetupError as error:
        return Missing(f"it cannot be installed: {error}")
