"""The Python environment of NVTabular.

NVTabular's last release (23.8) needs pandas 1 and an older Dask than our environment has. The environment of
NVTabular is installed from requirements/benchmark-nvtabular.txt into the cache folder when it is first needed.
"""

from __future__ import annotations

from pathlib import Path

from setup.console import SetupError
from setup.locked_environment import is_installed, locked_environment

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements/benchmark-nvtabular.txt"


class Missing(str):
    """The reason why NVTabular's environment does not exist."""


def interpreter(install: bool) -> Path | Missing:
    """Returns the path of the Python interpreter of NVTabular's environment.

    Args:
        install: True to install the environment if it is missing.

    Returns:
        The path, or Missing with the reason if the environment is missing and was not installed.
    """
    if not install and not is_installed("nvtabular", LOCK):
        return Missing("NVTabular's Python environment is not installed; a run without --quick installs it")
    try:
        return locked_environment("nvtabular", LOCK, "import nvtabular") / "bin/python"
    except SetupError as error:
        return Missing(f"NVTabular's Python environment cannot be installed: {error}")
