"""One file's columns through Petastorm, checked against the manifest and the feature spec."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from petastorm.reader import Reader, make_batch_reader

from conf.errors import DataError
from conf.feature_spec import FeatureSpec
from training.sharding import DataFile


@dataclass(frozen=True)
class Columns:
    """A file's columns, each (rows,): label float32, dense float32, categorical int32, in the spec's order."""

    label: NDArray[np.float32]
    dense: list[NDArray[np.float32]]
    categorical: list[NDArray[np.int32]]


def read_columns(file: DataFile, spec: FeatureSpec) -> Columns:
    """The label and the features of a file, in the order of its rows.

    Raises:
        DataError: the file is missing, holds another number of rows than its manifest says, or a column is missing,
            of another type, or has nulls.
    """
    wanted = {spec.label: "float32", **{each.name: each.dtype for each in spec.features}}
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
    return Columns(
        found[spec.label],
        [found[each.name] for each in spec.dense],
        [found[each.name] for each in spec.categorical],
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
    missing = [name for name in names if not batches or name not in batches[0]]
    if missing:
        raise DataError(
            f"{file.path} lacks the columns {missing}", "run build_features again for the day of this file"
        )
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
