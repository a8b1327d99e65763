"""Loads the library that is compiled from the C++ files of this folder, and declares its functions to ctypes.

`make setup` builds the library into the Python environment. If the library is missing, a warning is logged,
and NumPy and torch compute the same results more slowly.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from conf.compiled import open_library

log = logging.getLogger("nightrank.training")

# The path of the library below sys.prefix. setup/build_native.py writes the library.
LIBRARY = Path("lib/nightrank/libnightrank_training.so")
VERSION = 7  # version of the interface; must equal the number in native/transpose.cpp

# Instruction sets that functions of the library may use: the best one of this processor, the one that all
# x86-64 processors have, AVX2, or AVX-512.
BEST, EVERYWHERE, AVX2, AVX512 = -1, 0, 1, 2

_pointer, _number, _long = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """Returns the library; logs a warning and returns None if it is missing or has another version."""
    opened = open_library(LIBRARY, "nightrank_training_version", VERSION)
    if opened is None:
        log.warning(
            "%s is missing or has another version, so training and scoring are slower: run `make setup`",
            Path(sys.prefix) / LIBRARY,
        )
        return None
    opened.nightrank_transpose.restype = None
    opened.nightrank_transpose.argtypes = (
        _number, _number, _pointer, _pointer, _long, _pointer, _long, _long, _long, _long, _pointer, _pointer,
    )  # fmt: skip
    opened.nightrank_target_rows.restype = None
    opened.nightrank_target_rows.argtypes = (_long, _pointer, _long, _long, _long, _pointer)
    opened.nightrank_write_pool.restype = None
    opened.nightrank_write_pool.argtypes = (_pointer, _long)
    opened.nightrank_group.restype = _long
    opened.nightrank_group.argtypes = (_long, _pointer, _number, _pointer, _pointer, _pointer)
    opened.nightrank_pair_logits.restype = _number
    opened.nightrank_pair_logits.argtypes = (_pointer, _pointer, _long, _number)
    opened.nightrank_interaction.restype = _number
    opened.nightrank_interaction.argtypes = (_pointer, _number, _long, _number)
    opened.nightrank_sampled_products.restype = _number
    opened.nightrank_sampled_products.argtypes = (_pointer, _number, _long, _number)
    opened.nightrank_draw.restype = None
    opened.nightrank_draw.argtypes = (_pointer, _long)
    opened.nightrank_lazy_adam.restype = None
    opened.nightrank_lazy_adam.argtypes = (_pointer, _long, _number)
    return opened


def required_library() -> ctypes.CDLL:
    """Returns the library. Call this only if `library` did not return None.

    Raises:
        RuntimeError: the library is missing.
    """
    opened = library()
    if opened is None:
        raise RuntimeError("internal error, please report: the compiled library was called but is missing")
    return opened


def address(values: Tensor | None, dtype: torch.dtype = torch.float32) -> int | None:
    """Returns the address of the first element of a tensor; None for None.

    Raises:
        TypeError: the tensor has another dtype, or is not on the CPU.
    """
    if values is None:
        return None
    if values.dtype != dtype or values.device.type != "cpu":
        raise TypeError(
            f"internal error, please report: a tensor has {values.dtype} on {values.device}, but needs "
            f"{dtype} on the CPU"
        )
    return values.data_ptr()
