"""Checks written files before they are published."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from conf.errors import DataError
from storage.feature_spec import FLOAT32_MAX
from storage.manifest import FileEntry
from storage.paths import Partition

FINITE = (-FLOAT32_MAX, math.inf)  # the range of a dense feature


@dataclass(frozen=True)
class Rules:
    """Conditions on every written row.

    Attributes:
        not_null: the columns that must not contain nulls.
        ranges: maps a column to (low, high): each value must be at least low and below high.
    """

    not_null: Sequence[str] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class WrittenFile:
    """A written file and its Parquet statistics.

    Attributes:
        entry: the file, as the manifest will name it.
        statistics: maps each column to (number of nulls, lowest value, highest value).
    """

    entry: FileEntry
    statistics: Mapping[str, tuple[int, Any, Any]]


def verify(
    partition: Partition,
    files: Sequence[WrittenFile],
    schema: tuple[tuple[str, str], ...],
    expected_rows: int | None,
    rules: Rules,
) -> None:
    """Checks the written files against the expected rows, the schema and the rules.

    Raises:
        DataError: the files do not meet a condition; the message names the column, the problem and the
            remedy.
    """
    written = sum(file.entry.rows for file in files)
    if expected_rows is not None and written != expected_rows:
        raise DataError(
            f"{partition.path}: {written} rows were written, {expected_rows} expected",
            "rerun the job: its input probably changed while it ran; if that fails too, please report it",
        )
    names = {name for name, _ in schema}
    for column in [*rules.not_null, *rules.ranges]:
        if column not in names:
            raise DataError(f"{partition.path}: the column {column} was not written", "rerun the job")
    for column in rules.not_null:
        nulls = sum(file.statistics[column][0] for file in files)
        if nulls:
            raise null_column(partition.path, column, nulls, written)
    for column, (low, high) in rules.ranges.items():
        bounds = [file.statistics[column][1:] for file in files if file.entry.rows]
        lowest = min((least for least, _ in bounds if least is not None), default=low)
        highest = max((most for _, most in bounds if most is not None), default=low)
        if math.isinf(lowest) or math.isinf(highest):
            raise DataError(
                f"{partition.path}: {column} is infinite in some rows (values in [{lowest}, {highest}])",
                f"add `clip` as the last operator of {column} in `features`, or correct the raw log",
            )
        if lowest < low or highest >= high:
            raise DataError(
                f"{partition.path}: {column} has values in [{lowest}, {highest}], allowed is [{low}, {high})",
                "the rows do not fit the workflow version: run build_features for this date again, then this "
                "job",
            )


def null_column(path: str, column: str, nulls: int, rows: int) -> DataError:
    """Returns the error for nulls in a column that must have none.

    Args:
        path: the file with the column, or the file from which its rows were computed.
        column: name of the column.
        nulls, rows: number of nulls, and number of rows.
    """
    return DataError(
        f"{path}: {column} is null in {nulls} of {rows} rows",
        f"add the operator `fill` for {column} (and `clip` before `log1p`) in `features`, or correct the raw "
        "log",
    )
