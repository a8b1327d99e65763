"""Loads the library that is compiled from the C++ files of this folder, and declares its functions to ctypes.

`make setup` builds the library into the Python environment, so that a packed environment contains the
library.
"""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from conf.compiled import open_library
from conf.errors import InfrastructureError

# Path of the library below sys.prefix. setup/build_native.py copies the library to this path.
LIBRARY = Path("lib/nightrank/libnightrank.so")
VERSION = 6  # version of the interface; etl/native/scan.cpp must have the same number

_pointer, _number, _long, _byte = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_uint8
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "scan": (_pointer, (_pointer, _long, _byte, _byte, _number, _pointer, _number)),
    "scan_json": (_pointer, (_pointer, _long, _number, _pointer, _pointer, _pointer, _pointer)),
    "merged": (_pointer, (_long, _long, _long)),
    "merge": (_byte, (_pointer, _long, _pointer, _pointer, _long, _pointer, _pointer, _long)),
    "pages": (_pointer, (_long, _long, _long)),
    "begin_chunk": (_byte, (_pointer, _long, ctypes.c_uint32, _pointer, _long)),
    "add_page": (_byte, (_pointer, _long, _pointer, _long, _pointer, _long)),
    "end_pages": (None, (_pointer,)),
    "give": (_byte, (_pointer, _number, _long, _pointer, _pointer, _pointer)),
    "rows": (None, (_pointer, _pointer, _pointer)),
    "column": (None, (_pointer, _number, _pointer, _pointer)),
    "free": (None, (_pointer,)),
    "sums": (_pointer, (_number,)),
    "add": (_byte, (_pointer, _number, _long, _pointer, _pointer, _pointer, _number, _pointer)),
    "summed": (None, (_pointer, _pointer, _pointer)),
    "free_sums": (None, (_pointer,)),
    "lookup": (_pointer, (_long, _pointer, _pointer)),
    "table": (None, (_pointer, _pointer, _pointer)),
    "find": (None, (_pointer, _long, _pointer, _pointer, _long, _long, _pointer, _pointer, _pointer)),
    "free_lookup": (None, (_pointer,)),
    "buckets": (None, (_long, _pointer, _pointer, ctypes.c_uint32, _pointer)),
}


def is_built() -> bool:
    """Returns whether the Python environment contains the library in the version that this code needs."""
    return _open() is not None


def library() -> ctypes.CDLL:
    """Returns the compiled library. The first call loads the library.

    Raises:
        InfrastructureError: the library is missing or has another version.
    """
    opened = _open()
    if opened is None:
        raise InfrastructureError(
            f"the compiled library {Path(sys.prefix) / LIBRARY} is missing or has another version",
            "run `make setup` again; if the environment was packed, pack it again afterwards",
        )
    return opened


@lru_cache(maxsize=1)
def _open() -> ctypes.CDLL | None:
    opened = open_library(LIBRARY, "nightrank_version", VERSION)
    if opened is None:
        return None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(opened, f"nightrank_{name}")
        function.restype, function.argtypes = result, arguments
    return opened


class Handle:
    """A reference to an object that the compiled library has allocated.

    The object is freed when this reference and all arrays that use the object's memory have been deleted.

    Raises:
        MemoryError: the address is null, because the library could not allocate the object.
    """

    def __init__(self, address: int | None, free: str) -> None:
        if not address:
            raise MemoryError
        self.address, self._free = address, getattr(library(), f"nightrank_{free}")

    def __del__(self) -> None:
        if hasattr(self, "_free"):
            self._free(self.address)

    def describe(self, function: str, *arguments: int) -> tuple[list[int], list[int | None]]:
        """Calls a library function, which returns the sizes and the addresses of the object's arrays."""
        sizes, addresses = (ctypes.c_int64 * 4)(), (ctypes.c_void_p * 5)()
        getattr(library(), f"nightrank_{function}")(self.address, *arguments, sizes, addresses)
        return list(sizes), list(addresses)

    def buffer(self, address: int | None, size_bytes: int) -> pa.Buffer:
        """Returns `size_bytes` bytes of the object's memory as an Arrow buffer, without a copy."""
        return pa.foreign_buffer(address, size_bytes, self) if size_bytes else pa.py_buffer(b"")

    def numbers(self, address: int | None, count: int, dtype: Any) -> np.ndarray:
        """Returns `count` numbers in the object's memory as a read-only array (count,), without a copy."""
        return np.frombuffer(self.buffer(address, count * np.dtype(dtype).itemsize), dtype)

    def strings(self, count: int, offsets: int | None, data: int | None, size_bytes: int) -> pa.StringArray:
        """Returns `count` strings in the object's memory as an Arrow array, without a copy."""
        buffers = [None, self.buffer(offsets, 4 * (count + 1)), self.buffer(data, size_bytes)]
        return pa.Array.from_buffers(pa.string(), count, buffers, null_count=0)


def string_addresses(values: pa.StringArray) -> tuple[int, int]:
    """Returns the memory addresses of the offsets and of the bytes of an array of strings without nulls.

    Arrow stores n strings as n + 1 offsets and the bytes of all strings. The addresses are valid as long as
    `values` exists.
    """
    _, offsets, data = values.buffers()
    return offsets.address + 4 * values.offset, data.address if data is not None else offsets.address
