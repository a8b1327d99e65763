"""Compiles the C++ sources with sanitizers, and lets a process load these libraries instead of those of `make setup`."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from setup import build_native
from setup.build_horovod import compiler
from tests.processes import ROOT

FAILED = 77  # exit code of a process that a sanitizer ends
_FLAGS = (
    *(flag for flag in build_native.FLAGS if flag not in ("-O3", "-Werror")),
    *("-O1", "-g1", "-fno-omit-frame-pointer", "-Wno-psabi"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
    # Indices and iterators of std::vector are checked, and memory that a vector has reserved must not be read.
    *("-D_GLIBCXX_ASSERTIONS", "-D_GLIBCXX_SANITIZE_VECTOR"),
)


@cache
def runtime() -> tuple[Path, ...]:
    """Returns the libraries that a process must load first; nothing if the compiler has no sanitizers.

    They are the address sanitizer's library, and the library of C++, whose exceptions the sanitizer intercepts.
    """
    paths = []
    for name in ("libasan.so", "libstdc++.so.6"):
        try:
            done = subprocess.run(
                [compiler(), f"-print-file-name={name}"], capture_output=True, text=True, check=False
            )
        except OSError:  # there is no compiler
            return ()
        paths.append(Path(done.stdout.strip()))  # the name itself if there is no such library
    return tuple(paths) if all(path.is_absolute() and path.exists() for path in paths) else ()


def build(folder: str, into: Path) -> Path:
    """Compiles the library of a folder of the checkout unless this was done before. Returns its prefix.

    Args:
        folder: a key of `setup.build_native.LIBRARIES`.
        into: the folder of all libraries.
    """
    sources, library = build_native.sources(ROOT, folder), build_native.LIBRARIES[folder]
    digest = hashlib.sha256(" ".join(_FLAGS).encode())
    for source in sources:
        digest.update(source.name.encode() + source.read_bytes())
    prefix = into / digest.hexdigest()[:16]
    compile_library([path for path in sources if path.suffix == ".cpp"], prefix / library)
    return prefix


def compile_library(sources: Sequence[Path], library: Path) -> None:
    """Compiles a library unless it exists, in one process at a time. Raises CalledProcessError if the sources do not compile."""
    library.parent.mkdir(parents=True, exist_ok=True)
    with library.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if library.exists():
            return
        scratch = library.with_suffix(".new")
        subprocess.run([compiler(), *_FLAGS, "-o", str(scratch), *map(str, sources)], check=True)
        scratch.replace(library)


def environment(most_bytes: int) -> dict[str, str]:
    """Returns the environment of a process that can load such libraries.

    All memory comes from the C library's `malloc`, which the sanitizer replaces: memory of Arrow and Python too.

    Args:
        most_bytes: the process ends with FAILED if it uses more memory.
    """
    options = {
        "detect_leaks": 0,  # Python does not free all objects when it ends
        "exitcode": FAILED,
        "allocator_may_return_null": 1,
        "hard_rss_limit_mb": most_bytes >> 20,
    }
    return {
        "LD_PRELOAD": ":".join(map(str, runtime())),
        "ASAN_OPTIONS": ":".join(f"{name}={value}" for name, value in options.items()),
        "UBSAN_OPTIONS": f"print_stacktrace=1:exitcode={FAILED}",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "PYTHONMALLOC": "malloc",
    }


def load(prefix: Path, opened: Callable[[], Any]) -> None:
    """Calls a function that opens the library below sys.prefix and keeps it, with another prefix.

    Raises:
        RuntimeError: the function has opened another library.
    """
    before, sys.prefix = sys.prefix, str(prefix)
    try:
        library = opened()
    finally:
        sys.prefix = before
    if library is None or not library._name.startswith(str(prefix)):
        raise RuntimeError(f"the library below {prefix} was not loaded, but {library}")
