"""Pads lists of ids to a matrix. Programs without torch use this module too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from storage.feature_spec import PAD_ID

if TYPE_CHECKING:
    import pyarrow as pa  # a step that does not use our loader does not need pyarrow


def pad_lists(lists: pa.ListArray, length: int) -> NDArray[np.int32]:
    """Returns the first `length` ids of each list, padded with PAD_ID: (rows, length) int32.

    A null list is treated as an empty list.
    """
    offsets = lists.offsets.to_numpy()
    starts = offsets[:-1].astype(np.int64)
    counts = np.minimum(np.diff(offsets), length)
    if lists.null_count:
        counts = np.where(lists.is_null().to_numpy(zero_copy_only=False), 0, counts)
    columns = np.arange(length)
    filled = columns < counts[:, None]  # (rows, length)
    padded = np.full((len(lists), length), PAD_ID, dtype=np.int32)
    padded[filled] = lists.values.to_numpy()[(starts[:, None] + columns)[filled]]
    return padded
