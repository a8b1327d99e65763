"""Converts lists of integers to pairs of row number and value, without torch and scipy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def pairs_of(lists: pa.ListArray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the row number and the value of each element of the lists, as two arrays.

    A null list has no elements.
    """
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    values = lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
    return np.repeat(np.arange(len(lists)), lengths), values
