"""The compiled way from columns to rows (native/turn.cpp), which `make setup` builds: found, checked, and called.

It is looked for below the interpreter's prefix, so that it travels in a packed environment. Without it NumPy does the same
(stacking.py) more slowly, and the log says so.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.data.row_order import BLOCK_ROWS

log = logging.getLogger("nightrank.training")

# Below sys.prefix; setup/build_native.py puts it there.
LIBRARY = Path("lib/nightrank/libnightrank_reading.so")
VERSION = 1  # of the interface; native/turn.cpp says the same number

_pointer, _number, _long = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The library; None, and a warning, where this environment lacks it or has that of another version."""
    found = _open()
    if found is None:
        log.warning(
            "%s is missing or of another version: the loader is slower; run `make setup`",
            Path(sys.prefix) / LIBRARY,
        )
    return found


def _open() -> ctypes.CDLL | None:
    try:
        found = ctypes.CDLL(str(Path(sys.prefix) / LIBRARY))
        version = found.nightrank_reading_version
    except (OSError, AttributeError):
        return None
    version.restype = ctypes.c_int32
    if version() != VERSION:
        return None
    found.nightrank_turn.restype = None
    found.nightrank_turn.argtypes = (
        _number, _number, _pointer, _pointer, _long, _pointer, _long, _long, _long, _long, _pointer, _pointer,
    )  # fmt: skip
    found.nightrank_places.restype = None
    found.nightrank_places.argtypes = (_long, _pointer, _long, _long, _long, _pointer)
    return found


def places(rows: int, order: NDArray[np.int64] | None, own: int, batch: int, first: int) -> NDArray[np.int64]:
    """As stacking.places."""
    found = library()
    assert found is not None  # or NumPy would have been asked
    made = np.empty(rows, dtype=np.int64)
    at = None if order is None else order.ctypes.data
    found.nightrank_places(rows, at, own, batch, first, made.ctypes.data)
    return made


class CompiledSource:
    """See stacking.Source. Rows are written without the interpreter's lock.

    Raises:
        ValueError: a column's numbers are not of 4 bytes.
    """

    def __init__(self, columns: Sequence[NDArray[Any]]) -> None:
        if any(each.itemsize != 4 for each in columns):
            raise ValueError(f"columns of {[str(each.dtype) for each in columns]}: only numbers of 4 bytes")
        self._columns = [np.ascontiguousarray(each) for each in columns]
        self._singles = sum(each.ndim == 1 for each in columns)
        self._lengths = np.array([each.shape[1] for each in columns[self._singles :]], dtype=np.int64)
        self._addresses = np.array([each.ctypes.data for each in self._columns], dtype=np.int64)
        self._row_bytes = np.array([each.strides[0] for each in self._columns], dtype=np.int64)

    def turn(
        self,
        first: int,
        blocks: NDArray[np.int64] | None,
        rows: range,
        places: NDArray[np.int64],
        into: NDArray[Any],
    ) -> None:
        addresses = self._addresses + first * self._row_bytes
        found = library()
        assert found is not None  # or there would be no CompiledSource
        found.nightrank_turn(
            self._singles,
            len(self._lengths),
            addresses.ctypes.data,
            self._lengths.ctypes.data,
            into.shape[1],
            None if blocks is None else blocks.ctypes.data,
            0 if blocks is None else len(blocks),
            BLOCK_ROWS,
            rows.start,
            rows.stop,
            places.ctypes.data,
            into.ctypes.data,
        )
