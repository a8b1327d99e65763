"""The compiled sums of bootstrap replicates (native/replicates.cpp), which `make setup` builds.

If the library is missing, metrics/bootstrap.py does the same with NumPy, which is slower.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from conf.compiled import open_library

log = logging.getLogger("nightrank.evaluate_model")

# Below sys.prefix; setup/build_native.py puts it there.
LIBRARY = Path("lib/nightrank/libnightrank_metrics.so")
VERSION = 1  # version of the interface; must equal the number in native/replicates.cpp
REPLICATES = 32  # number of replicates in a block; must equal kReplicates in native/replicates.cpp

_pointer, _long = ctypes.c_void_p, ctypes.c_int64


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """Returns the library; logs a warning and returns None if it is missing or has another version."""
    opened = open_library(LIBRARY, "nightrank_metrics_version", VERSION)
    if opened is None:
        log.warning(
            "%s is missing or of another version: the gate is slower; run `make setup`",
            Path(sys.prefix) / LIBRARY,
        )
        return None
    opened.nightrank_replicate_sums.restype = None
    opened.nightrank_replicate_sums.argtypes = (_long, *[_pointer] * 5)
    return opened


def replicate_sums(
    opened: ctypes.CDLL,
    units: NDArray[np.int32],
    clicks: NDArray[np.bool_],
    tied: NDArray[np.bool_],
    weights: NDArray[np.uint8],
) -> NDArray[np.int64]:
    """Returns the sums over n rows, in ascending order of their scores, for one block of replicates.

    The result has the shape (3, REPLICATES): the weights of the clicks, the weights of the other rows, and
    twice the weight of the pairs of a click and another row that the scores put in the right order. A pair
    of equal scores counts half.

    Args:
        opened: the library.
        units: (n,) index of the unit of each row.
        clicks: (n,) whether each row is a click.
        tied: (n,) whether the score of each row equals that of the row before.
        weights: (units, REPLICATES), the weight of each unit in each replicate, at most 15.
    """
    sums = np.empty((3, REPLICATES), np.int64)
    arrays = [np.ascontiguousarray(array) for array in (units, clicks, tied, weights)]
    opened.nightrank_replicate_sums(len(units), *(array.ctypes.data for array in arrays), sums.ctypes.data)
    return sums
