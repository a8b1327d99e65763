"""Looks up features of rows in tables on a device.

On the host, a chain that reads one raw column computes each distinct value once. The results are a look-up
table, with one value for each code. The device looks up the values of all rows, and distributes the rows over
row groups. Then all columns are copied to the host at once. The host computes all other features
(etl/workflow/fitted_chains.py): features of several columns, lists, and features that depend on the position
of a training row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from device.columns import DeviceColumn, DeviceColumns, look_up
from etl.ops.tables import LocalTables
from etl.text.parse_block import ParsedBlock
from etl.workflow.fitted_chains import FEATURE_ARROW_TYPES, FittedChain, RowPlace


@dataclass(frozen=True)
class _Table:
    """The look-up tables of a feature: one for each block.

    Attributes:
        kind: float32 or int32.
        columns: the column of codes of each block.
        values: for each block, one value for each code, (k + 1,). The last value is the value of null.
    """

    kind: pa.DataType
    columns: tuple[DeviceColumn, ...]
    values: tuple[NDArray[Any], ...]


@dataclass(frozen=True)
class DeviceFeatures:
    """The features of the rows of some blocks that a device looks up.

    Attributes:
        tables: the look-up tables of each feature, by name.
    """

    tables: Mapping[str, _Table]

    def dealt(self, groups: int) -> dict[str, pa.Array]:
        """Looks up the features of all rows.

        The rows are distributed to groups in turn (device.columns.look_up).
        """
        if not self.tables:
            return {}
        of_features = list(self.tables.values())
        blocks = [
            [(table.columns[block], table.values[block]) for table in of_features]
            for block in range(len(of_features[0].columns))
        ]
        bits = look_up(blocks, groups)  # (C, n)
        return {
            name: pa.array(values.view(table.kind.to_pandas_dtype()), table.kind)
            for (name, table), values in zip(self.tables.items(), bits, strict=True)
        }


def device_features(
    chains: Sequence[FittedChain],
    blocks: Sequence[ParsedBlock],
    dtypes: Mapping[str, str],
    tables: LocalTables,
    place: RowPlace,
) -> DeviceFeatures:
    """Returns the features that a device can look up. Features that are null in some row are left out.

    Args:
        chains: the fitted chains.
        blocks: the rows, at least one block.
        dtypes: maps each feature to its dtype.
        tables: the tables that steps look up.
        place: the place of the rows in the log.
    """
    looked_up: dict[str, _Table] = {}
    for chain in chains:
        columns = _columns_of(chain, blocks)
        if columns is None or any(place.is_training_row_of(step) for step in chain.steps):
            continue
        names = {name: dtypes[name] for name in chain.outputs if dtypes.get(name) in ("float32", "int32")}
        of_blocks = [chain.compute([_each_code(column)], tables, names) for column in columns]
        for name, dtype in names.items():
            values = [of_block[name] for of_block in of_blocks]
            if not any(_has_null(column, array) for column, array in zip(columns, values, strict=True)):
                filled = tuple(np.asarray(array.fill_null(0)) for array in values)
                looked_up[name] = _Table(FEATURE_ARROW_TYPES[dtype], columns, filled)
    return DeviceFeatures(looked_up)


def _columns_of(chain: FittedChain, blocks: Sequence[ParsedBlock]) -> tuple[DeviceColumn, ...] | None:
    """Returns the only column that a chain reads in each block.

    Returns None if the chain reads several columns, or a column in host memory.
    """
    if len(chain.inputs) != 1:
        return None
    columns = [
        block.columns.on_device(chain.inputs[0])
        for block in blocks
        if isinstance(block.columns, DeviceColumns)
    ]
    found = tuple(column for column in columns if column is not None)
    return found if len(found) == len(blocks) else None


def _each_code(column: DeviceColumn) -> pa.DictionaryArray:
    """Returns k + 1 rows: one with each value of the dictionary, and one with null."""
    codes = np.arange(len(column.dictionary) + 1, dtype=np.int32)
    is_null = codes == len(column.dictionary)
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=is_null), column.dictionary)


def _has_null(column: DeviceColumn, values: pa.Array) -> bool:
    """Returns whether a row has a null value. `values` (k + 1,) has the value of each code."""
    if not values.null_count:
        return False
    return len(column.rows_with(np.asarray(values.is_null()))) > 0
