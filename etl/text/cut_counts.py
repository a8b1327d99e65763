"""Divides the rows of a log into splits by their position, and counts the values of each split.

The scan pass has counted the good rows of each block. These numbers show in which blocks the train split and
the validation split end. Only these blocks are read once more, to count the values of each of their splits.
The scan pass has saved the parsed blocks. They are parsed again only if the saved files are lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import pyarrow as pa

from conf.types import SPLITS, Split, SplitConfig
from etl.quality.column_summary import LABEL_CELLS
from etl.raw.file_splits import FileSplit
from etl.raw.splits import last_ranks
from etl.text.parse_block import FileLayout, ParsedBlock, SavedBlock, columns_to_parse, load, read_split
from etl.text.scan_pass import ValueCounter
from etl.value_counts.count_file_format import write_counts
from spark.workers import Workers
from storage.feature_spec import LABEL


@dataclass(frozen=True)
class SplitRows:
    """The rows of one block that are in one split.

    Attributes:
        split: train, validation or test.
        first, end: the rows have the indices [first, end) among the good rows of the block.
    """

    split: Split
    first: int
    end: int


@dataclass(frozen=True)
class CountedRows:
    """The value counts of the rows of one block that are in one split.

    Attributes:
        split: train, validation or test.
        first_line, end_line: indices in the file split of the line of the first row, and of the line after
            the last row.
        values: maps each counted column to the number of its distinct values.
        file: path of the file with the value counts.
    """

    split: Split
    first_line: int
    end_line: int
    values: Mapping[str, int]
    file: str


def rows_of_splits(good: Sequence[int], config: SplitConfig) -> list[list[SplitRows]]:
    """Returns, for each block, its rows in each split, in the order of the rows.

    Splits without rows are left out.

    Args:
        good: the number of good rows of each block, in the order of the log.
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
    """A block whose rows are in several splits.

    Attributes:
        file_split: the file split of the block.
        index: index of the block in the file split.
        first_line: index in the file split of the first line of the block.
        saved: name under which the scan pass saved the block; empty if it did not save the block.
        parts: the rows of the block in each split.
        counts_file: path of the files to write. Each file gets different digits in its name.
        buckets: number of hash buckets into which the value counts are divided.
    """

    file_split: FileSplit
    index: int
    first_line: int
    saved: str
    parts: tuple[SplitRows, ...]
    counts_file: str
    buckets: int


def count_parts(
    workers: Workers, tasks: Sequence[CutTask], layout: FileLayout, counted: Sequence[str]
) -> list[list[CountedRows]]:
    """Counts the values of the rows of each split, and returns the counts in the order of the tasks."""
    texts = workers.collect(len(tasks), partial(_count_task, tuple(tasks), layout, tuple(counted)))
    return [[CountedRows(**part) for part in json.loads(text)] for text in texts]


def _count_task(tasks: tuple[CutTask, ...], layout: FileLayout, counted: tuple[str, ...], index: int) -> str:
    task = tasks[index]
    block = _block(task, layout, counted)
    results = []
    for part in task.parts:
        counters = {name: ValueCounter() for name in (LABEL_CELLS, *counted)}
        _add(counters, block, part.first, part.end)
        file, values = write_counts(
            task.counts_file, {name: counter.result() for name, counter in counters.items()}, task.buckets
        )
        results.append(
            {
                "split": part.split,
                "first_line": task.first_line + int(block.row_lines[part.first]),
                "end_line": task.first_line + int(block.row_lines[part.end - 1]) + 1,
                "values": values,
                "file": file,
            }
        )
    return json.dumps(results)


def _block(task: CutTask, layout: FileLayout, counted: tuple[str, ...]) -> ParsedBlock:
    needed = columns_to_parse(layout, counted)
    saved = load(SavedBlock(task.saved, shared=True), {LABEL, *counted}) if task.saved else None
    if saved is not None:
        return saved
    return next(islice(read_split(task.file_split, layout, needed), task.index, None))


def _add(counters: Mapping[str, ValueCounter], block: ParsedBlock, first: int, end: int) -> None:
    """Adds the rows [first, end) of a block to the counters of their split."""
    for name, counter in counters.items():
        if name == LABEL_CELLS:
            counter.add(block.columns[LABEL].slice(first, end - first).cast(pa.float64()).dictionary_encode())
        else:
            counter.add(block.columns[name].slice(first, end - first))
