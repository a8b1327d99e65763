"""Opens the libraries that `make setup` compiles from the folders named `native`.

The libraries are installed below the interpreter's prefix, so that a packed environment contains them. In the
wheel of the package `nightrank`, the libraries are beside the package's folders.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path


def open_library(library: Path, version_function: str, version: int) -> ctypes.CDLL | None:
    """Returns a compiled library; None if it is missing, or if its interface has another version.

    Args:
        library: path below the interpreter's prefix.
        version_function: name of the library's function that returns the version of its interface.
        version: the version of the interface that the caller needs.
    """
    for folder in (Path(__file__).parents[1], Path(sys.prefix)):
        try:
            opened = ctypes.CDLL(str(folder / library))
            version_of = getattr(opened, version_function)
        except (OSError, AttributeError):
            continue
        version_of.restype = ctypes.c_int32
        if version_of() == version:
            return opened
    return None
