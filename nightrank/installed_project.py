"""Finds the project whose jobs the command `nightrank` starts, and installs it from the wheel.

The project is a checkout, or the copy of its files that the wheel contains. Its packages cannot be resolved
together from a package index, so `setup/install.py` installs them from lock files into their own environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from conf.errors import ConfigError

HOME_VARIABLE = "NIGHTRANK_HOME"
_ARCHIVE = Path(__file__).with_name("_project.tar")  # setup/python_wheel.py puts it into the wheel
_KEPT = (".venv", ".bootstrap", ".setup.lock")  # if a newer release is installed over an older one


def default_folder() -> Path:
    """Returns the folder of the project below this environment."""
    return Path(sys.prefix) / "share" / "nightrank"


def find_project() -> Path | None:
    """Returns the folder of the project whose environment was made; None if there is none.

    Raises:
        ConfigError: the variable NIGHTRANK_HOME names a folder without the project.
    """
    named = os.environ.get(HOME_VARIABLE)
    if named:
        if not _is_ready(Path(named)):
            raise ConfigError(
                f"{HOME_VARIABLE}={named} is no installed project",
                f"run `make setup` in a checkout, or `nightrank setup --folder {named}`",
            )
        return Path(named).absolute()
    # In a checkout, and in an unpacked archive for clusters, the environment is a folder of the project.
    return next((folder for folder in (Path(sys.prefix).parent, default_folder()) if _is_ready(folder)), None)


def _is_ready(folder: Path) -> bool:
    interpreters = [folder / name / "bin/python" for name in (".venv", "environment")]
    return (folder / "jobs/nightly.py").is_file() and any(path.exists() for path in interpreters)


def install_project(folder: Path | None, python: str) -> int:
    """Unpacks the project, and makes its environment.

    Args:
        folder: where; None for the folder below this environment.
        python: the program of a Python 3.11.

    Returns:
        The exit code of the installation.

    Raises:
        ConfigError: this package is part of a checkout, there is no such Python, or the folder contains
            something else or cannot be written.
    """
    if not _ARCHIVE.is_file():
        raise ConfigError(
            "this package is not from the wheel, so it has no project to install", "run `make setup`"
        )
    if (program := shutil.which(python)) is None:
        raise ConfigError(
            f"{python} is not on PATH", "install Python 3.11, or pass --python /path/to/python3.11"
        )
    target = (folder or default_folder()).absolute()
    try:
        _unpack(target)
    except OSError as error:
        raise ConfigError(
            f"{target} cannot be written: {error}", f"pass --folder FOLDER, and set {HOME_VARIABLE}=FOLDER"
        ) from error
    # The project's modules, such as `setup`, are found in the folder. Variables of this environment would
    # add other packages.
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    code = subprocess.run([program, "-m", "setup.install"], cwd=target, env=clean, check=False).returncode
    if code == 0:
        needs = "" if folder is None else f"\nset {HOME_VARIABLE}={target}"
        print(f"the project is installed in {target}; try: nightrank demo{needs}")
    return code


def _unpack(target: Path) -> None:
    """Replaces the files of the project in a folder, but keeps its environment.

    Raises:
        ConfigError: the folder exists and is no project.
    """
    if target.is_dir() and any(target.iterdir()) and not (target / "jobs/nightly.py").is_file():
        raise ConfigError(f"{target} contains other files", "pass an empty or a new folder")
    scratch = target.with_name(f"{target.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    with tarfile.open(_ARCHIVE) as packed:
        packed.extractall(scratch, filter="data")
    for name in _KEPT:
        if (target / name).exists():
            (target / name).rename(scratch / name)
    shutil.rmtree(target, ignore_errors=True)
    scratch.rename(target)
