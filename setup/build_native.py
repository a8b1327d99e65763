"""Compiles the C++ sources in the folders named `native`, and copies the libraries into an environment.

These sources contain loops that are too slow in Python. Compiling them takes a few seconds and needs the same
g++ as the build of Horovod. The cache keeps each library under a digest of its sources and compiler flags.
The libraries use only instructions that every 64-bit x86 processor has, so they run on every machine on which
a packed environment can be installed.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from setup.build_horovod import compiler
from setup.console import SetupError, cache_folder

FLAGS = (
    "-std=c++17",
    "-O3",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fPIC",
    "-pthread",
    "-shared",
    "-fvisibility=hidden",
)
# Maps each folder of sources to the path of its library below the environment.
LIBRARIES = {
    "etl/native": Path("lib/nightrank/libnightrank.so"),  # etl/native/library.py loads it
    "training/native": Path("lib/nightrank/libnightrank_training.so"),  # training/native/library.py loads it
    "metrics/native": Path("lib/nightrank/libnightrank_metrics.so"),  # metrics/bootstrap.py loads it
}


def sources(root: Path, folder: str) -> list[Path]:
    """The source files of a folder's library."""
    return sorted([*(root / folder).glob("*.cpp"), *(root / folder).glob("*.h")])


def all_sources(root: Path) -> list[Path]:
    """The sources of all libraries."""
    return [path for folder in LIBRARIES for path in sources(root, folder)]


def build(root: Path, venv: Path) -> list[Path]:
    """Compiles all libraries, copies them into an environment and returns their paths.

    Raises:
        SetupError: a library does not compile. The message contains the compiler's output.
    """
    return [_build(root, venv, folder, library) for folder, library in LIBRARIES.items()]


def _build(root: Path, venv: Path, folder: str, library: Path) -> Path:
    """Copies a library into an environment, after compiling it if necessary. Returns the library's path."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for source in sources(root, folder):
        digest.update(source.name.encode() + source.read_bytes())
    kept = cache_folder() / "native" / digest.hexdigest()[:16] / library.name
    if not kept.is_file():
        _compile([path for path in sources(root, folder) if path.suffix == ".cpp"], kept, folder)
    target = venv / library
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_suffix(".new")
    shutil.copyfile(kept, scratch)
    scratch.replace(target)  # a worker that has loaded the old file can still use it
    return target


def _compile(sources: list[Path], kept: Path, folder: str) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    scratch = kept.with_suffix(".new")
    command = [compiler(), *FLAGS, "-o", str(scratch), *map(str, sources)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SetupError(f"{compiler()} cannot be run: {error}\n  install it: apt-get install g++") from error
    if done.returncode != 0:
        raise SetupError(f"{folder} does not compile; {' '.join(command)} says:\n{done.stderr[-4000:]}")
    scratch.replace(kept)
