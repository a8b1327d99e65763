"""One file's columns, checked against the manifest and the feature spec.

Petastorm reads them, but for lists of ids: its batch reader takes lists of one length alone, so these come from pyarrow.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from petastorm.reader import Reader, make_batch_reader

from conf.errors import DataError
from conf.feature_spec import FeatureSpec
from conf.types import MultiHot
from training.inputs import pad_lists
from training.reading.sharding import DataFile


@dataclass(frozen=True)
class Columns:
    """A file's columns, in the spec's order.

    Attributes:
        label: (rows,) float32.
        dense: (rows,) float32 each.
        categorical: int32, a feature of `spec.embedded` each: (rows,) for one id, (rows, length) for a list of ids.
        cut: features that hold lists longer than that → how many.
    """

    label: NDArray[np.float32]
    dense: list[NDArray[np.float32]]
    categorical: list[NDArray[np.int32]]
    cut: dict[str, int] = field(default_factory=dict)


def read_columns(file: DataFile, spec: FeatureSpec, multi_hot: MultiHot) -> Columns:
    """The label and the features of a file, in the order of its rows.

    Raises:
        DataError: the file is missing, holds another number of rows than its manifest says, or a column is missing,
            of another type, or has nulls. A null list counts as an empty one.
    """
    scalars = (*spec.dense, *spec.categorical)
    wanted = {spec.label: "float32", **{each.name: each.dtype for each in scalars}}
    found = _read(file, list(wanted))
    rows = {name: len(values) for name, values in found.items()}
    if set(rows.values()) != {file.rows}:
        raise DataError(
            f"{file.path} gave {sorted(set(rows.values()))} rows, its manifest says {file.rows}",
            "run build_features again for the day of this file",
        )
    for name, dtype in wanted.items():
        if found[name].dtype != dtype:  # Arrow turns integers with nulls into float64
            raise DataError(
                f"{file.path}: column {name} arrives as {found[name].dtype}, not {dtype}: another type, or nulls in it",
                "run build_features again for the day of this file",
            )
    lists = _read_lists(file, spec)
    lengths = dict(zip(lists, spec.list_lengths(multi_hot), strict=True))
    longer = {
        name: pc.sum(pc.greater(pc.list_value_length(lists[name]), length)).as_py() or 0
        for name, length in lengths.items()
    }
    return Columns(
        found[spec.label],
        [found[each.name] for each in spec.dense],
        [
            *(found[each.name] for each in spec.categorical),
            *(pad_lists(lists[name], length) for name, length in lengths.items()),
        ],
        {name: count for name, count in longer.items() if count},
    )


def _read_lists(file: DataFile, spec: FeatureSpec) -> dict[str, pa.ListArray]:
    """The lists of ids of a file, a feature each, in the spec's order."""
    names = [each.name for each in spec.multi_hot]
    if not names:
        return {}
    with pq.ParquetFile(file.path) as opened:
        _require_columns(file, names, opened.schema_arrow.names)
        table = opened.read(columns=names)
    return {name: _list_column(file, name, table.column(name)) for name in names}


def _list_column(file: DataFile, name: str, column: pa.ChunkedArray) -> pa.ListArray:
    lists = column.combine_chunks()
    if not pa.types.is_list(column.type) or column.type.value_type != pa.int32():
        problem = f"arrives as {column.type}, not list<int32>"
    elif lists.values.null_count:
        problem = f"holds {lists.values.null_count} null ids"
    else:
        return lists
    raise DataError(
        f"{file.path}: column {name} {problem}", "run build_features again for the day of this file"
    )


def _require_columns(file: DataFile, names: list[str], held: Collection[str]) -> None:
    missing = [name for name in names if name not in held]
    if missing:
        raise DataError(
            f"{file.path} lacks the columns {missing}", "run build_features again for the day of this file"
        )


def _read(file: DataFile, names: list[str]) -> dict[str, NDArray[Any]]:
    if not Path(file.path).is_file():
        raise DataError(
            f"{file.path} does not exist although a manifest names it",
            "run build_features again for the day of this file",
        )
    # Petastorm works on an interface that pyarrow 14 still has and warns about. The filter stays: this runs in a
    # background thread, and warnings.catch_warnings() is not made for threads.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"petastorm\.")
    reader = _open(file, names)
    batches = [batch._asdict() for batch in reader]
    # Reader.__exit__ would print a line to standard output, so it is closed by hand.
    reader.stop()
    reader.join()
    _require_columns(file, names, batches[0] if batches else ())
    return {name: np.concatenate([batch[name] for batch in batches]) for name in names}


def _open(file: DataFile, names: list[str]) -> Reader:
    """A reader over all row groups of one file, in order and in this thread.

    The `dummy` pool is the one that neither reorders row groups nor, with a finite number of epochs, loses any.
    """
    return make_batch_reader(
        [f"file://{file.path}"],  # Petastorm takes the path as it stands: no percent-encoding
        # One pattern: the time Petastorm takes to match grows with patterns times columns.
        schema_fields=["|".join(re.escape(name) for name in names)],
        reader_pool_type="dummy",
        shuffle_row_groups=False,
        num_epochs=1,
    )
