"""The keys of rows as seven int32 columns of a batch. Random draws for a row hash these keys.

    0, 1  row_id, an int64 in two halves, the lower half first
    2, 3  a 64-bit hash of user_key
    4, 5  a 64-bit hash of item_key
    6     the date of the row's feature partition, in days since 1970-01-01

The loader processes these columns like ids, because they are int32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from conf.errors import DataError
from conf.names import days_since_epoch
from storage.feature_spec import EVENT_TIME, ITEM_KEY, ROW_ID, USER_KEY
from training.data.sharding import RowGroup

ROW_KEY_COLUMNS = 7


def read_columns_of_group(group: RowGroup, names: Sequence[str]) -> pa.Table:
    """Reads some columns of a row group that is on local disk, without nulls.

    Raises:
        DataError: a column is missing, or it has nulls.
    """
    with pq.ParquetFile(group.file.on_disk) as opened:
        missing = [name for name in names if name not in opened.schema_arrow.names]
        if missing:
            raise DataError(
                f"{group.file.path} lacks the columns {missing}. They are needed by train.negatives, by "
                "train.unknown_share, by train.shuffle=users, and by train.loss full_softmax and "
                "in_batch_softmax",
                "set the columns of the user and the item in the section keys, and run build_features again",
            )
        table = (
            opened.read(columns=list(names))
            if group.count == 1
            else opened.read_row_group(group.index, columns=list(names))
        )
    for name in names:
        if table.column(name).null_count:
            raise DataError(
                f"{group.file.path}: column {name} has {table.column(name).null_count} nulls",
                "run build_features again for the day of this file",
            )
    return table


def order_by_user(group: RowGroup) -> NDArray[np.int64]:
    """Returns the order of a row group's rows by user, time and row id, (N,).

    If the log has no times, the order is by user and row id. Users are ordered by their first row in the row
    group. The row group is on local disk.

    Raises:
        DataError: a column is missing, or it has nulls.
    """
    with pq.ParquetFile(group.file.on_disk) as opened:
        times = [EVENT_TIME] if EVENT_TIME in opened.schema_arrow.names else []
    table = read_columns_of_group(group, [USER_KEY, ROW_ID, *times])
    users = table.column(USER_KEY).combine_chunks().dictionary_encode().indices.to_numpy()
    by_time = [table.column(name).to_numpy() for name in (ROW_ID, *times)]
    return np.lexsort([*by_time, users])


def hash_keys(keys: pa.ChunkedArray) -> NDArray[np.int64]:
    """Returns a 64-bit hash of each user key or item key, (N,). It depends only on the key."""
    import pandas as pd  # imported here, because nightrank's wheel trains without pandas

    encoded = keys.combine_chunks().dictionary_encode()
    hashes = pd.util.hash_array(encoded.dictionary.to_numpy(zero_copy_only=False), categorize=False)
    return hashes.view(np.int64)[encoded.indices.to_numpy()]


def read_row_keys(group: RowGroup) -> NDArray[np.int32]:
    """Reads the seven columns (N, 7) of a row group that is on local disk.

    Raises:
        DataError: a column is missing, or it has nulls.
    """
    table = read_columns_of_group(group, [ROW_ID, USER_KEY, ITEM_KEY])
    wide = np.stack(
        [
            table.column(ROW_ID).to_numpy().astype(np.int64),
            hash_keys(table.column(USER_KEY)),
            hash_keys(table.column(ITEM_KEY)),
        ],
        axis=1,
    )
    day = np.full((table.num_rows, 1), days_since_epoch(group.file.dt), np.int32)
    return np.concatenate([wide.view(np.int32), day], axis=1)


def split_row_keys(row_keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns row id, hash of the user, hash of the item, and day, each (L,) int64, from (L, 7) int32."""
    # Copy the columns to a new tensor, because a slice of a wider matrix cannot be viewed as int64.
    wide = row_keys[:, :6].clone(memory_format=torch.contiguous_format).view(torch.int64)
    return wide[:, 0], wide[:, 1], wide[:, 2], row_keys[:, 6].long()


# The code below computes 64-bit hashes of integers in tensors. They are the same on every device and for
# every number of ranks.

_INCREMENT = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def mix(values: Tensor) -> Tensor:
    """Returns SplitMix64 of each int64 number (Steele et al. 2014, OOPSLA, section 5), as int64.

    Sums and products of int64 tensors drop all bits above the lowest 64, as the method requires.
    """
    state = values + _INCREMENT
    state = (state ^ _shift_right(state, 30)) * _FIRST
    state = (state ^ _shift_right(state, 27)) * _SECOND
    return state ^ _shift_right(state, 31)


def uniform(values: Tensor) -> Tensor:
    """Returns the upper 53 bits of each int64 hash as a float64 number in [0, 1)."""
    return _shift_right(values, 11).double() * 2.0**-53


def _shift_right(values: Tensor, bits: int) -> Tensor:
    """Shifts int64 numbers to the right and fills the upper bits with zeros."""
    return (values >> bits) & (2 ** (64 - bits) - 1)
