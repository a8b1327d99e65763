"""Gives the training rows to a fit as blocks, which tasks read from the raw log or from prepared files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from etl.fit.fit_inputs import RowBatch, TrainingBlocks
from etl.raw.file_splits import FileSplit
from etl.text.encode_pass import rows_in
from etl.text.row_source import RowSource
from storage.feature_spec import LABEL


@dataclass(frozen=True)
class TrainingSplit:
    """A file split with training rows.

    Attributes:
        file_split: the file split.
        dt: the day of the rows, as an ISO date.
        first_row: the row_id of the first line of the file split.
        lines: first line, and the line after the last one, of the training rows; None for all rows.
    """

    file_split: FileSplit
    dt: str
    first_row: int = 0
    lines: tuple[int, int] | None = None


def training_blocks(splits: Sequence[TrainingSplit], source: RowSource) -> TrainingBlocks:
    """Returns the training rows of file splits. Each file split is one task."""
    return TrainingBlocks(len(splits), partial(_read, tuple(splits), source))


def _read(
    splits: tuple[TrainingSplit, ...], source: RowSource, index: int, wanted: frozenset[str]
) -> Iterator[RowBatch]:
    split = splits[index]
    names, lines = sorted(wanted - {LABEL}), 0
    for block in source.blocks(split.file_split, names):
        rows = rows_in(block, split.lines, lines)
        columns = {name: rows.columns[name] for name in names}
        columns[LABEL] = rows.columns[LABEL].cast(pa.float32())
        yield RowBatch(split.first_row + lines + rows.row_lines, split.dt, columns)
        lines += block.lines
