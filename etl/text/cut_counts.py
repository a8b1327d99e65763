"""Divides the rows of a log into splits by their position, and counts the values of each split.

The scan pass has counted the good rows of each file split, so it is known in which file splits train and
validation end. Only these file splits are read once more, to count the values on both sides of the cut.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from conf.types import SPLITS, Split, SplitConfig
from etl.quality.counts import LABEL_CELLS
from etl.raw.file_splits import FileSplit
from etl.split.time_split import last_ranks
from etl.text.file_layout import FileLayout
from etl.text.parse_block import ParsedBlock, read_split
from etl.text.row_source import columns_to_parse
from etl.text.scan_pass import ValueCounter
from etl.text.spilled_rows import used_values
from etl.value_counts.count_file_format import write_counts
from spark.workers import Workers
from storage.feature_spec import LABEL


@dataclass(frozen=True)
class SplitRows:
    """The rows of one file split that are in one split.

    Attributes:
        split: the split.
        first, end: index among the good rows of the file split of the first of these rows, and of the row
            after the last one.
    """

    split: Split
    first: int
    end: int


@dataclass(frozen=True)
class CountedRows:
    """The value counts of the rows of one file split that are in one split.

    Attributes:
        split: the split.
        first_line, end_line: index in the file split of the line of the first row, and of the line after
            that of the last row.
        values: maps each counted column to the number of its distinct values.
        file: path of the file with the value counts.
    """

    split: Split
    first_line: int
    end_line: int
    values: Mapping[str, int]
    file: str


def rows_of_splits(good: Sequence[int], config: SplitConfig) -> list[list[SplitRows]]:
    """Returns, for each file split, its rows in each split, in order. Splits without rows are left out.

    Args:
        good: the number of good rows of each file split, in the order of the log.
        config: the shares of train and validation. At least one row must be good.
    """
    total = sum(good)
    last_train, last_validation = last_ranks(total, config)
    ends = dict(zip(SPLITS, (last_train + 1, last_validation + 1, total), strict=True))
    divided, before = [], 0
    for rows in good:
        parts, first = [], 0
        for split, end in ends.items():
            stop = min(max(end - before, first), rows)
            if stop > first:
                parts.append(SplitRows(split, first, stop))
                first = stop
        divided.append(parts)
        before += rows
    return divided


@dataclass(frozen=True)
class CutTask:
    """A file split whose rows are in several splits.

    Attributes:
        file_split: the file split to read.
        parts: its rows in each split.
        counts_file: path of the files to write; each has other digits in its name.
        buckets: number of hash buckets into which the value counts are divided.
    """

    file_split: FileSplit
    parts: tuple[SplitRows, ...]
    counts_file: str
    buckets: int


def count_parts(
    workers: Workers, tasks: Sequence[CutTask], layout: FileLayout, counted: Sequence[str]
) -> list[list[CountedRows]]:
    """Counts the values of the rows of each split, and returns the counts of each task in order."""
    texts = workers.collect(len(tasks), partial(_count_task, tuple(tasks), layout, tuple(counted)))
    return [[CountedRows(**part) for part in json.loads(text)] for text in texts]


def _count_task(tasks: tuple[CutTask, ...], layout: FileLayout, counted: tuple[str, ...], index: int) -> str:
    task = tasks[index]
    counters = [{name: ValueCounter() for name in (LABEL_CELLS, *counted)} for _ in task.parts]
    lines = [[-1, -1] for _ in task.parts]
    before, lines_before = 0, 0
    for block in read_split(task.file_split, layout, columns_to_parse(layout, counted)):
        rows = len(block.row_lines)
        for part, of_part, place in zip(task.parts, counters, lines, strict=True):
            first, end = max(part.first - before, 0), min(part.end - before, rows)
            if first < end:
                _add(of_part, block, first, end)
                if place[0] < 0:
                    place[0] = lines_before + int(block.row_lines[first])
                place[1] = lines_before + int(block.row_lines[end - 1]) + 1
        before += rows
        lines_before += block.lines
    results = []
    for part, of_part, (first_line, end_line) in zip(task.parts, counters, lines, strict=True):
        file, values = write_counts(
            task.counts_file, {name: counter.result() for name, counter in of_part.items()}, task.buckets
        )
        results.append(
            {
                "split": part.split,
                "first_line": first_line,
                "end_line": end_line,
                "values": values,
                "file": file,
            }
        )
    return json.dumps(results)


def _add(counters: Mapping[str, ValueCounter], block: ParsedBlock, first: int, end: int) -> None:
    """Adds the rows [first, end) of a block to the counters of their split."""
    for name, counter in counters.items():
        if name == LABEL_CELLS:
            counter.add(block.columns[LABEL].slice(first, end - first).cast(pa.float64()).dictionary_encode())
        else:
            counter.add(used_values(block.columns[name].slice(first, end - first)))
