"""The compiled transposition of columns to rows (native/transpose.cpp), which `make setup` builds.

The library is installed below the interpreter's prefix, so that a packed environment contains it. If the
library is missing, transpose.py does the same with NumPy, which is slower, and a warning is logged.
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

from conf.compiled import open_library
from training.data.row_order import BLOCK_ROWS

log = logging.getLogger("nightrank.training")

# Below sys.prefix; setup/build_native.py puts it there.
LIBRARY = Path("lib/nightrank/libnightrank_reading.so")
VERSION = 2  # version of the interface; must equal the number in native/transpose.cpp

_pointer, _number, _long = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """Returns the library; logs a warning and returns None if it is missing or has another version."""
    opened = _open()
    if opened is None:
        log.warning(
            "%s is missing or of another version: the loader is slower; run `make setup`",
            Path(sys.prefix) / LIBRARY,
        )
    return opened


def _open() -> ctypes.CDLL | None:
    opened = open_library(LIBRARY, "nightrank_reading_version", VERSION)
    if opened is None:
        return None
    opened.nightrank_transpose.restype = None
    opened.nightrank_transpose.argtypes = (
        _number, _number, _pointer, _pointer, _long, _pointer, _long, _long, _long, _long, _pointer, _pointer,
    )  # fmt: skip
    opened.nightrank_target_rows.restype = None
    opened.nightrank_target_rows.argtypes = (_long, _pointer, _long, _long, _long, _pointer)
    return opened


def _required_library() -> ctypes.CDLL:
    opened = library()
    if opened is None:
        raise RuntimeError("internal error, please report: the compiled library was called but is missing")
    return opened


def target_rows(
    rows: int, order: NDArray[np.int64] | None, shard_rows: int, batch_rows: int, first: int
) -> NDArray[np.int64]:
    """Computes `transpose.target_rows` in compiled code."""
    targets = np.empty(rows, dtype=np.int64)
    order_address = None if order is None else order.ctypes.data
    _required_library().nightrank_target_rows(
        rows, order_address, shard_rows, batch_rows, first, targets.ctypes.data
    )
    return targets


class CompiledTransposer:
    """A `transpose.Transposer` in compiled code. The compiled code releases Python's global interpreter lock.

    Raises:
        ValueError: the dtype of a column does not have 4 bytes.
    """

    def __init__(self, columns: Sequence[NDArray[Any]]) -> None:
        if any(column.itemsize != 4 for column in columns):
            dtypes = [str(column.dtype) for column in columns]
            raise ValueError(f"columns have dtypes {dtypes}: only dtypes of 4 bytes are supported")
        self._columns = [np.ascontiguousarray(column) for column in columns]
        self._singles = sum(column.ndim == 1 for column in columns)
        self._lengths = np.array([column.shape[1] for column in columns[self._singles :]], dtype=np.int64)
        self._addresses = np.array([column.ctypes.data for column in self._columns], dtype=np.int64)
        self._row_bytes = np.array([column.strides[0] for column in self._columns], dtype=np.int64)

    def transpose(
        self,
        first: int,
        blocks: NDArray[np.int64] | None,
        rows: range,
        target_rows: NDArray[np.int64],
        into: NDArray[Any],
    ) -> None:
        """See `transpose.Transposer.transpose`."""
        addresses = self._addresses + first * self._row_bytes
        _required_library().nightrank_transpose(
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
            target_rows.ctypes.data,
            into.ctypes.data,
        )
