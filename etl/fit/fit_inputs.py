"""The inputs of a fit: the training rows, as frames or as blocks, and their value counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from conf.types import Config, JoinedTable
from etl.value_counts.requests import Counts

if TYPE_CHECKING:  # workers do not import pyspark
    from pyspark.sql import DataFrame

# Reads an external table: (configuration, table, key column, section for error messages, date of the path).
ReadTable: TypeAlias = "Callable[[Config, JoinedTable, str, str, str], pa.Table | DataFrame]"


@dataclass(frozen=True)
class RowBatch:
    """Some training rows of one day.

    Attributes:
        row_ids: (n,) int64, the ids of the rows.
        dt: the day of the rows, as an ISO date.
        columns: maps raw columns to arrays of n values: int64, double, string, or lists of int64 or string.
            Arrays, and the elements of lists, may be dictionary-encoded. LABEL is float32.
    """

    row_ids: np.ndarray
    dt: str
    columns: Mapping[str, pa.Array]


@dataclass(frozen=True)
class TrainingBlocks:
    """The training rows, which tasks read block by block. Objects are pickled.

    Attributes:
        tasks: number of tasks. Each training row belongs to one task.
        read: takes the index of a task and the wanted raw columns (LABEL for the label). Yields the training
            rows of this task, which are the same in each call.
    """

    tasks: int
    read: Callable[[int, frozenset[str]], Iterator[RowBatch]]


@dataclass(frozen=True)
class TrainingDays:
    """The training days that a fit reads.

    If a new workflow is fitted, these are all training days. If a workflow is extended, these are only the
    days that the workflow's vocabularies do not include yet.

    Attributes:
        rows: returns the training rows of these days as a frame of Spark; None if there are blocks.
        value_counts: the value counts of these days; None if there are no value counts.
        days: ISO dates, in ascending order.
        latest: the last day that the fitted workflow includes, in days since 1970-01-01. If a workflow is
            extended, this day may be later than the days in `days`.
        read_table: reads the tables of `join_external`: a table with blocks, and a frame or a table with a
            frame.
        blocks: the training rows of these days as blocks; None if there is a frame.
    """

    rows: Callable[[], DataFrame] | None
    value_counts: Counts | None
    days: Sequence[str]
    latest: int
    read_table: ReadTable
    blocks: TrainingBlocks | None = None
