"""Reads the columns of one row group, and checks them against the manifest and the feature spec.

Petastorm reads all columns except lists of ids. Petastorm's batch reader supports only lists of equal length,
so pyarrow reads the lists of ids. Row groups that are already in memory need neither of the two libraries. In
an environment without Petastorm, pyarrow reads all columns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from conf.errors import DataError
from conf.types import MultiHot
from storage.feature_spec import Feature, FeatureSpec, pad_lists
from training.data.sharding import RowGroup

_REBUILD = "run build_features again for the day of this file"


@dataclass(frozen=True)
class Columns:
    """A row group's columns, in the spec's order. Do not change them: they may be views of shared memory.

    Attributes:
        label: (rows,) float32.
        dense: one float32 array of shape (rows,) per feature.
        categorical: one int32 array per feature of `spec.embedded`: shape (rows,) for single ids, (rows,
            length) for lists of ids.
        cut: maps the name of a feature to the number of its lists that were longer than `length`, and so were
            cut. Features without such lists are left out.
        weight: (rows,) float32, the weights of the rows; None if rows have no weights.
    """

    label: NDArray[np.float32]
    dense: list[NDArray[np.float32]]
    categorical: list[NDArray[np.int32]]
    cut: dict[str, int] = field(default_factory=dict)
    weight: NDArray[np.float32] | None = None

    def in_order(self, order: NDArray[np.int64]) -> Columns:
        """Returns the columns with their rows in the order of the indices `order`, shape (rows,)."""
        return replace(
            self,
            label=self.label[order],
            dense=[column[order] for column in self.dense],
            categorical=[column[order] for column in self.categorical],
            weight=None if self.weight is None else self.weight[order],
        )

    @property
    def size_bytes(self) -> int:
        """Returns the size of all columns in bytes."""
        of_rows = (self.label, *([] if self.weight is None else [self.weight]))
        return sum(column.nbytes for column in (*of_rows, *self.dense, *self.categorical))


def scalar_columns(spec: FeatureSpec) -> dict[str, str]:
    """Returns the dtypes of the label, the weight (if any), and all features that are not lists, by name."""
    scalars = (*spec.dense, *spec.categorical)
    of_rows = [spec.label, *([spec.weight] if spec.weight else [])]
    return {**dict.fromkeys(of_rows, "float32"), **{feature.name: feature.dtype for feature in scalars}}


def read_columns(
    group: RowGroup,
    spec: FeatureSpec,
    multi_hot: MultiHot,
    read: Mapping[str, NDArray[Any]] | None = None,
    *,
    check_ids: bool = True,
) -> Columns:
    """Reads the label, the weight and the features of a row group, in the order of its rows.

    A null list is read as an empty list.

    Args:
        group: the row group.
        spec: the features.
        multi_hot: the lengths to which lists are padded or cut.
        read: the columns `scalar_columns` of the row group, if the caller has already read them.
        check_ids: whether ids are compared with their cardinalities.

    Raises:
        DataError: the file is missing, its number of rows differs from the manifest, or an id is not below
            its feature's cardinality. Also raised if a column is missing, has the wrong type, or contains
            nulls.
    """
    path = group.file.path
    wanted = scalar_columns(spec)
    if group.file.table is None and not Path(group.file.on_disk).is_file():
        raise DataError(f"{path} does not exist although a manifest names it", _REBUILD)
    columns = _read_scalars(group, list(wanted)) if read is None else read
    _require_columns(path, list(wanted), columns)
    rows = {len(values) for values in columns.values()}
    if rows != {group.rows}:
        found = " or ".join(map(str, sorted(rows)))
        raise DataError(f"{_name(group)} has {found} rows, but its manifest says {group.rows}", _REBUILD)
    for name, dtype in wanted.items():
        # An integer column with nulls has the wrong dtype too, because Arrow converts it to float64.
        if columns[name].dtype != dtype:
            raise DataError(
                f"{path}: column {name} was read as {columns[name].dtype}, but must be {dtype}: it has "
                "another type or contains nulls",
                _REBUILD,
            )
    lists = _read_lists(group, spec)
    lengths = dict(zip(lists, spec.list_lengths(multi_hot), strict=True))
    too_long = {
        name: pc.sum(pc.greater(pc.list_value_length(lists[name]), length)).as_py() or 0
        for name, length in lengths.items()
    }
    categorical = [
        *(columns[feature.name] for feature in spec.categorical),
        *(pad_lists(lists[name], length) for name, length in lengths.items()),
    ]
    if check_ids:
        for feature, ids in zip(spec.embedded, categorical, strict=True):
            _check_ids(path, feature, ids)
    return Columns(
        columns[spec.label],
        [columns[feature.name] for feature in spec.dense],
        categorical,
        {name: count for name, count in too_long.items() if count},
        columns[spec.weight] if spec.weight else None,
    )


def _name(group: RowGroup) -> str:
    return group.file.path if group.count == 1 else f"row group {group.index} of {group.file.path}"


def _check_ids(path: str, feature: Feature, ids: NDArray[np.int32]) -> None:
    """Raises DataError if an id is out of range, because a lookup would return a row of another feature."""
    cardinality = int(feature.cardinality or 0)
    if ids.size and int(ids.view(np.uint32).max()) >= cardinality:  # negative ids become large uint32 numbers
        raise DataError(
            f"{path}: {feature.name} has ids from {ids.min()} to {ids.max()}, but ids must be at least 0 "
            f"and below {cardinality}",
            "run build_features again: the features were built with another version of the workflow",
        )


def _read_scalars(group: RowGroup, names: list[str]) -> Mapping[str, NDArray[Any]]:
    """Returns the columns among `names` that the row group has."""
    table = group.file.table
    if table is not None:
        return {name: _values(table.column(name)) for name in names if name in table.column_names}
    if not has_petastorm():
        return _read_with_arrow(group, names)
    from training.data.row_groups import read_row_group  # this import also imports Petastorm

    return read_row_group(group, names)


@cache
def has_petastorm() -> bool:
    """Returns whether Petastorm can be imported in this environment.

    pip cannot install Petastorm beside current releases of torch, so the wheel does not require it. Petastorm
    uses an interface that pyarrow 15 removed.
    """
    return find_spec("petastorm") is not None and int(pa.__version__.split(".")[0]) < 15


def _read_with_arrow(group: RowGroup, names: list[str]) -> dict[str, NDArray[Any]]:
    """Reads columns of a row group with pyarrow; the result is the same as with Petastorm.

    Raises:
        DataError: the file is not a Parquet file, or its number of row groups differs from the manifest.
    """
    try:
        with pq.ParquetFile(group.file.on_disk) as opened:
            if opened.num_row_groups != group.count:
                raise pa.ArrowInvalid(f"it has {opened.num_row_groups} row groups")
            present = [name for name in names if name in opened.schema_arrow.names]
            table = opened.read_row_group(group.index, columns=present)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{group.file.path} is not a Parquet file with {group.count} row groups: {error}", _REBUILD
        ) from error
    return {name: _values(table.column(name)) for name in present}


def _values(column: pa.ChunkedArray) -> NDArray[Any]:
    """Returns the values of a column, without a copy if the column is one array without nulls."""
    if column.num_chunks == 1:
        return np.asarray(column.chunk(0).to_numpy(zero_copy_only=False))
    return np.asarray(column.to_numpy())


def _read_lists(group: RowGroup, spec: FeatureSpec) -> dict[str, pa.ListArray]:
    """Returns, for each list feature, its lists of ids in a row group, in the spec's order."""
    names = [feature.name for feature in spec.multi_hot]
    if not names:
        return {}
    table = _list_table(group, names)
    return {name: _list_column(group.file.path, name, table.column(name)) for name in names}


def _list_table(group: RowGroup, names: list[str]) -> pa.Table:
    """Returns a table that has the columns `names` of the row group."""
    if group.file.table is not None:
        _require_columns(group.file.path, names, group.file.table.column_names)
        return group.file.table
    with pq.ParquetFile(group.file.on_disk) as opened:
        _require_columns(group.file.path, names, opened.schema_arrow.names)
        whole = group.count == 1
        return opened.read(columns=names) if whole else opened.read_row_group(group.index, columns=names)


def _list_column(path: str, name: str, column: pa.ChunkedArray) -> pa.ListArray:
    lists = column.combine_chunks()
    if not pa.types.is_list(column.type) or column.type.value_type != pa.int32():
        problem = f"has type {column.type}, not list<int32>"
    elif lists.values.null_count:
        problem = f"holds {lists.values.null_count} null ids"
    else:
        return lists
    raise DataError(f"{path}: column {name} {problem}", _REBUILD)


def _require_columns(path: str, names: list[str], present: Collection[str]) -> None:
    missing = [name for name in names if name not in present]
    if missing:
        raise DataError(f"{path} lacks the columns {missing}", _REBUILD)
