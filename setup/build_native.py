"""Compiles etl/files/native into the environment: the loop over raw text that Python cannot run fast enough.

A few seconds with the g++ that builds Horovod. The library is kept in the cache under a name that says its sources and flags,
and needs no instruction that a 64-bit processor may lack, so that it runs wherever a packed environment goes.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from setup.build_horovod import compiler
from setup.console import SetupError, cache_folder

FLAGS = ("-std=c++17", "-O3", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden")
LIBRARY = Path("lib/nightrank/libnightrank.so")  # below the environment; etl/files/library.py looks there


def sources(root: Path) -> list[Path]:
    """All files that the library is made of."""
    return sorted([*(root / "etl/files/native").glob("*.cpp"), *(root / "etl/files/native").glob("*.h")])


def build(root: Path, venv: Path) -> Path:
    """Puts the library into an environment and returns its path.

    Raises:
        SetupError: it does not compile; with the compiler's words.
    """
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for source in sources(root):
        digest.update(source.name.encode() + source.read_bytes())
    kept = cache_folder() / "native" / digest.hexdigest()[:16] / LIBRARY.name
    if not kept.is_file():
        _compile([path for path in sources(root) if path.suffix == ".cpp"], kept)
    target = venv / LIBRARY
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_suffix(".new")
    shutil.copyfile(kept, scratch)
    scratch.replace(target)  # a worker that has the old one open keeps it
    return target


def _compile(sources: list[Path], kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    scratch = kept.with_suffix(".new")
    command = [compiler(), *FLAGS, "-o", str(scratch), *map(str, sources)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SetupError(f"{compiler()} cannot be run: {error}\n  apt-get install g++") from error
    if done.returncode != 0:
        raise SetupError(
            f"etl/files/native does not compile; {' '.join(command)} says:\n{done.stderr[-4000:]}"
        )
    scratch.replace(kept)
