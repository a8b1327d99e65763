"""Checks that the machine meets the requirements, before anything large is downloaded."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import sys
import sysconfig
from pathlib import Path

from setup.console import SetupError, cache_folder, capture, say


def check_machine(root: Path, needed_bytes: int, environment: Path) -> None:
    """Raises one SetupError that lists all unmet requirements, so that the user can correct all at once.

    Args:
        root: the checkout.
        needed_bytes: the size of the environment.
        environment: the folder of the environment, which need not exist.
    """
    problems = [*_platform_problems(), *_tool_problems(), *_folder_problems(root, needed_bytes, environment)]
    if problems:
        raise SetupError(
            "this machine does not meet the requirements:\n"
            + "\n".join(f"  - {problem}" for problem in problems)
        )


def _platform_problems() -> list[str]:
    problems = []
    if sys.version_info[:2] != (3, 11):
        problems.append(
            f"this is Python {platform.python_version()}; 3.11 is needed (make PYTHON=/path/to/python3.11)"
        )
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        problems.append(
            f"the lock files are for Linux on x86_64, this is {sys.platform} on {platform.machine()}"
        )
    return problems


def _tool_problems() -> list[str]:
    problems = []
    if importlib.util.find_spec("ensurepip") is None:
        problems.append("Python has no venv: apt-get install python3.11-venv")
    if shutil.which("g++") is None:
        problems.append("no g++, which compiles Horovod: apt-get install g++")
    if shutil.which("make") is None:
        problems.append("no make, which Horovod's build runs: apt-get install make")
    return problems


def _folder_problems(root: Path, needed_bytes: int, environment: Path) -> list[str]:
    problems = []
    if any(character.isspace() for character in str(root)):
        problems.append(
            f"the path of the checkout contains white space, and then Spark's scripts fail: {str(root)!r}"
        )
    disk = next(folder for folder in (environment, *environment.parents) if folder.exists())
    free_bytes = shutil.disk_usage(disk).free
    if free_bytes < needed_bytes:
        free, needed = (f"{size / 1024**3:.1f} GiB" for size in (free_bytes, needed_bytes))
        problems.append(f"the disk of {disk} has only {free} free, but {needed} are needed")
    return problems


def python_headers() -> Path | None:
    """A folder to add to the compiler's include path, or None if Python's headers are installed.

    In Debian, Python's headers are in a separate package. If this package is not installed, its files are
    unpacked into the cache. This needs no root rights and changes nothing else on the machine.
    """
    if (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return None
    unpacked = cache_folder() / "python-headers" / sysconfig.get_config_var("LDVERSION")
    if not (unpacked / "usr/include/python3.11/Python.h").is_file():
        _unpack_debian_headers(unpacked)
    return unpacked / "usr/include"


def _unpack_debian_headers(target: Path) -> None:
    advice = (
        "Python's headers (Python.h) are missing, and Horovod needs them to compile: "
        "apt-get install python3.11-dev"
    )
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise SetupError(advice)
    say("    Python.h is not installed: unpacking Debian's libpython3.11-dev into the cache")
    target.mkdir(parents=True, exist_ok=True)
    try:
        capture(["apt-get", "download", "libpython3.11-dev"], cwd=target)
        for package in target.glob("libpython3.11-dev_*.deb"):
            capture(["dpkg-deb", "-x", package, target])
            package.unlink()
    except SetupError as error:
        raise SetupError(
            f"{advice}\n(setup tried to download the headers without installing them, but failed: {error})"
        ) from error
