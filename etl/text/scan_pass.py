"""The scan pass: parses every line of some days once, counts values, and returns rejected lines.

Each task reads one file split. The task writes the value counts of each block as Parquet. It returns the
rejected lines for the quarantine and the number of lines. The driver computes row_ids from the numbers of
lines of all tasks.

If the rows of a log are divided into train, validation and test by their position, the rows of a block may
be in several of these splits. The values of such a block are counted again, separately for each split.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.types import SPLITS, Split, SplitConfig
from device.columns import DeviceColumn, DeviceColumns
from etl.native.scan import Rejections
from etl.quality.column_summary import LABEL_CELLS
from etl.raw.erased_users import ERASED
from etl.raw.file_splits import FileSplit
from etl.raw.row_rules import MISDATED, NO_ROWS, Misdated, count_misdated, reasons_left_out
from etl.raw.splits import last_ranks
from etl.raw.text_values import text_array
from etl.statistics.value_counts import write_counts
from etl.text import parse_block
from etl.text.gpu_tasks import GpuTasks, gpu_tasks
from etl.text.parse_block import (
    FileLayout,
    ParsedBlock,
    SavedBlock,
    columns_to_parse,
    load,
    read_split,
    unify,
)
from etl.text.stored_rows import RowsFile, RowsFileWriter, Spill, SpillWriter
from spark.workers import TaskArguments, Workers
from storage.feature_spec import EVENT_TIME, LABEL

if TYPE_CHECKING:  # Python workers import this module, but they do not need pyspark.
    from pyspark.sql import DataFrame

# Number of blocks whose counts a task keeps before it merges them. This limits the memory of a task.
_MERGE_EVERY = 8


@dataclass(frozen=True)
class ScanTask:
    """One file split to scan.

    Attributes:
        file_split: the file split to read.
        counts_file: path from which the names of the files with value counts are made, one file per block.
            Each name gets additional digits, so that it is unique.
        buckets: number of hash buckets into which the value counts are divided.
        scratch: the name for saved blocks of the split. The name of a block is this name, a dot and the index
            of the block. If `scratch` is None, no block is saved.
        day: the bounds between which the times of rows should be (etl.raw.row_rules); None for no such check.
        spill: where to store the good rows until they are prepared; None to count their values instead.
    """

    file_split: FileSplit
    counts_file: str
    buckets: int = 1
    scratch: str | None = None
    day: tuple[int, int] | None = None
    spill: Spill | RowsFile | None = None


@dataclass(frozen=True)
class CountedBlock:
    """One block of a scanned file split, whose values were counted.

    Attributes:
        lines: number of lines.
        good: number of lines that are valid rows.
        bytes: number of bytes of the block's text.
        values: maps each counted column to the number of its distinct values.
        file: path of the file with the value counts of the block.
        saved: name under which the parsed block is saved on the worker's disk; empty if it is not saved.
    """

    lines: int
    good: int
    bytes: int
    values: Mapping[str, int]
    file: str
    saved: str = ""


@dataclass(frozen=True)
class SplitSummary:
    """Counts of one scanned file split.

    Attributes:
        lines: number of lines.
        good: number of lines that are valid rows.
        dropped: maps each reason to the number of lines that were rejected for this reason.
        not_kept: maps reasons to the number of lines that are counted in `dropped`, but not returned for the
            quarantine, because the split has too many of them (`_KEPT_LINES`).
        blocks: the blocks of the split, in the order of the lines; at least one, unless the rows were stored.
            The values of stored rows are counted after the rows are prepared.
        stored: path of the file with the stored rows; empty if there are none, or if they are on the local
            disk.
        misdated: number of good lines whose event_time is outside the day, with the first and the last of
            these times.
    """

    lines: int
    good: int
    dropped: Mapping[str, int]
    blocks: Sequence[CountedBlock] = ()
    misdated: Misdated = NO_ROWS
    stored: str = ""
    not_kept: Mapping[str, int] = field(default_factory=dict)


SCAN_SCHEMA = pa.schema(
    [
        ("task", pa.int32()),
        ("summary", pa.string()),
        ("line", pa.int64()),
        ("reason", pa.string()),
        ("text", pa.string()),
    ]
)


def scan_splits(
    workers: Workers, tasks: Sequence[ScanTask], layout: FileLayout, counted: Sequence[str]
) -> pa.Table | DataFrame:
    """Returns the results of all tasks: a persisted frame, or a table in the order of the tasks.

    The result has one row (task, summary) per task, and one row (task, line, reason, text) per quarantined
    line. Here `line` is the index of the line in its split. If Spark evaluates the frame again, it writes the
    files of value counts again, under new names. So first publish the files that the summaries refer to, and
    then release the frame.

    Args:
        workers: the processes that run the tasks.
        tasks: the file splits to scan.
        layout: the layout of the log.
        counted: raw columns whose values are counted. Labels are counted too, under the name LABEL_CELLS.
    """
    on_gpus = gpu_tasks(workers, layout, len(tasks))
    if on_gpus is None:
        task = partial(_scan_task, TaskArguments(tasks), layout, tuple(counted))
        scanned = workers.run(len(tasks), task, SCAN_SCHEMA)
    else:
        group = partial(_scan_group, on_gpus, TaskArguments(tasks), layout, tuple(counted))
        scanned = workers.run(len(on_gpus.groups), group, SCAN_SCHEMA)
    return scanned if isinstance(scanned, pa.Table) else scanned.persist()


def _scan_task(
    tasks: TaskArguments[ScanTask], layout: FileLayout, counted: tuple[str, ...], index: int
) -> Iterator[pa.RecordBatch]:
    return scan_file_split(index, tasks[index], layout, counted)


def _scan_group(
    on_gpus: GpuTasks,
    tasks: TaskArguments[ScanTask],
    layout: FileLayout,
    counted: tuple[str, ...],
    index: int,
) -> Iterator[pa.RecordBatch]:
    def scan(task: int, on_device: FileLayout) -> list[pa.RecordBatch]:
        return [*scan_file_split(task, tasks[task], on_device, counted)]

    for batches in on_gpus.run(index, layout, scan):
        yield from batches


def collect_summaries(scanned: pa.Table | DataFrame) -> dict[int, SplitSummary]:
    """Returns the summary of each file split, by the index of its task. Collects one row per task."""
    if isinstance(scanned, pa.Table):
        rows = scanned.filter(pc.is_valid(scanned["summary"])).select(["task", "summary"]).to_pylist()
    else:
        rows = [
            row.asDict() for row in scanned.where("summary is not null").select("task", "summary").collect()
        ]
    return {row["task"]: _summary(json.loads(row["summary"])) for row in rows}


def _summary(values: dict[str, Any]) -> SplitSummary:
    blocks = tuple(CountedBlock(**block) for block in values["blocks"])
    return SplitSummary(**{**values, "blocks": blocks, MISDATED: Misdated(**values[MISDATED])})


def release(scanned: pa.Table | DataFrame) -> None:
    """Unpersists the result of `scan_splits`."""
    if not isinstance(scanned, pa.Table):
        scanned.unpersist()


def scan_file_split(
    index: int, task: ScanTask, layout: FileLayout, counted: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Scans one file split in a worker. Yields batches of rejected lines, then a batch with the summary."""
    lines, good, dropped, misdated = 0, 0, Counter[str](), NO_ROWS
    blocks: list[CountedBlock] = []
    needed = columns_to_parse(layout, counted)
    left_out = frozenset(
        (
            ERASED,
            *reasons_left_out(layout.label, layout.keys),
            *(row_filter.reason for row_filter in layout.filters),
        )
    )
    sample = _Sample()
    with _writer(task.spill, index) if task.spill else nullcontext() as spilled:
        for parsed in read_split(task.file_split, layout, needed):
            yield from _rejected_lines(index, lines, parsed, left_out, sample)
            if spilled is not None:
                spilled.add(parsed, lines)
            else:
                blocks.append(_counted(task, len(blocks), parsed, counted))
            lines += parsed.lines
            good += len(parsed.row_lines)
            dropped.update(parsed.rejected.counts())
            if task.day is not None:
                times = parsed.columns[EVENT_TIME].to_numpy(zero_copy_only=False)
                misdated += count_misdated(times, task.day)
    if not blocks and task.spill is None:
        nothing = {name: ValueCounter().result() for name in (LABEL_CELLS, *counted)}
        file, values = write_counts(task.counts_file, nothing, task.buckets)
        blocks.append(CountedBlock(0, 0, 0, values, file))
    stored = spilled.path if isinstance(spilled, RowsFileWriter) else ""
    counts: dict[str, Any] = {"lines": lines, "good": good, "dropped": dropped, "stored": stored}
    counts["blocks"] = [asdict(block) for block in blocks]
    counts["not_kept"] = sample.not_kept
    summary = json.dumps({**counts, MISDATED: misdated.to_facts()})
    row = (index, summary, None, None, None)
    yield pa.RecordBatch.from_arrays(
        [pa.array([value], field.type) for value, field in zip(row, SCAN_SCHEMA, strict=True)],
        schema=SCAN_SCHEMA,
    )


def _writer(spill: Spill | RowsFile, index: int) -> SpillWriter | RowsFileWriter:
    return SpillWriter(spill) if isinstance(spill, Spill) else RowsFileWriter(spill, index)


def _counted(task: ScanTask, index: int, parsed: ParsedBlock, counted: Sequence[str]) -> CountedBlock:
    """Counts the values of a block, and saves the block if the task has a `scratch` name.

    A block that a device has scanned is not saved, because the device can scan it again in less time than the
    host needs to save and load it. Blocks of compressed files are saved, because the host would have to
    decompress them again.
    """
    name = f"{task.scratch}.{index}" if task.scratch else ""
    if isinstance(parsed.columns, DeviceColumns) and task.file_split.end is not None:
        name = ""
    saved = name if name and parse_block.save(name, parsed) else ""
    value_counts = {}
    for column in (LABEL_CELLS, *counted):
        counter = ValueCounter()
        if column == LABEL_CELLS:
            counter.add(parsed.columns[LABEL].cast(pa.float64()).dictionary_encode())
        elif isinstance(parsed.columns, DeviceColumns) and (on_device := parsed.columns.on_device(column)):
            counter.add_counts(*_counts_on(on_device, parsed.counts.get(column)))
        else:
            counter.add(parsed.columns[column], parsed.counts.get(column))
        value_counts[column] = counter.result()
    file, values = write_counts(task.counts_file, value_counts, task.buckets)
    return CountedBlock(parsed.lines, len(parsed.row_lines), parsed.bytes, values, file, saved)


def _counts_on(column: DeviceColumn, counts: np.ndarray | None) -> tuple[pa.Array, np.ndarray, int]:
    """Returns the values of a column, the number of rows with each value, and the number of nulls.

    Args:
        column: a column whose codes are on a device.
        counts: the number of rows with each value; None to count them on the device.
    """
    if counts is None:
        counts, nulls = np.split(column.count(), [len(column.dictionary)])
        return column.dictionary, counts, int(nulls[0])
    return column.dictionary, counts, column.codes.shape[0] - int(counts.sum())


# Limits of the number of lines that the quarantine stores for a file split. A split that contains garbage can
# have tens of millions of rejected lines. Lines beyond the limits are only counted.
_KEPT_LINES = 100_000
# This number of lines is kept for each reason, even if the lines of other reasons have reached the limit.
_KEPT_OF_REASON = 1_000
_KEPT_BYTES = 64 << 20
# The first line of each reason that has at most this number of characters is kept even beyond _KEPT_BYTES, so
# that error messages can show it.
_SHORT_LINE = 1 << 16


class _Sample:
    """Chooses which rejected lines of one file split the quarantine stores: the first ones, up to the limits.

    A short line of each reason is always chosen.

    Attributes:
        not_kept: maps reasons to the number of lines that were not chosen.
    """

    def __init__(self) -> None:
        self.not_kept = Counter[str]()
        self._kept = Counter[str]()
        self._bytes = 0

    def choose(
        self, rejected: Rejections, texts: Callable[[Sequence[int]], list[str]]
    ) -> tuple[Rejections, list[str]]:
        """Returns the chosen lines of the next block with their texts.

        Args:
            rejected: the rejected lines of the block.
            texts: returns the texts of lines by their indices.
        """
        chosen = np.arange(len(rejected)) < _KEPT_LINES - self._kept.total()
        for code, reason in enumerate(rejected.reasons):
            of_reason = np.flatnonzero(rejected.codes == code)
            chosen[of_reason[: max(_KEPT_OF_REASON - self._kept[reason], 0)]] = True
        kept = rejected.where(chosen)
        lines_of_texts = texts(kept.indices.tolist())
        sizes = np.array([len(text) for text in lines_of_texts], np.int64)
        fits = self._bytes + np.cumsum(sizes) <= _KEPT_BYTES
        for code, reason in enumerate(kept.reasons):
            if not self._kept[reason]:
                fits[np.flatnonzero((kept.codes == code) & (sizes <= _SHORT_LINE))[:1]] = True
        self._bytes += int(sizes[fits].sum())
        kept = kept.where(fits)
        self._kept.update(kept.counts())
        self.not_kept.update(rejected.counts())
        self.not_kept.subtract(kept.counts())
        self.not_kept = +self.not_kept  # the unary plus removes reasons whose count is zero
        return kept, [lines_of_texts[line] for line in np.flatnonzero(fits)]


def _rejected_lines(
    index: int, lines_before: int, parsed: ParsedBlock, left_out: frozenset[str], sample: _Sample
) -> Iterator[pa.RecordBatch]:
    """Yields the lines for the quarantine.

    Lines that were rejected for one of the reasons `left_out` are omitted.
    """
    wanted = np.array([reason not in left_out for reason in parsed.rejected.reasons], bool)
    kept, texts = sample.choose(parsed.rejected.where(wanted[parsed.rejected.codes]), parsed.texts)
    if len(kept):
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([index] * len(kept), pa.int32()),
                pa.nulls(len(kept), pa.string()),
                pa.array(kept.indices + lines_before),
                pa.array([kept.reasons[code] for code in kept.codes.tolist()], pa.string()),
                pa.array(texts, pa.string()),
            ],
            schema=SCAN_SCHEMA,
        )


def _texts(values: pa.Array) -> pa.Array:
    """Returns the texts of n values. Numbers can be parsed back exactly; -0.0 is counted as 0.0."""
    return text_array(pc.add(values, 0.0) if pa.types.is_floating(values.type) else values)


class ValueCounter:
    """A counter of the distinct values of one column over the blocks of a file split."""

    def __init__(self) -> None:
        self._parts: list[pa.DictionaryArray] = []
        self._counts: list[np.ndarray] = []
        self._nulls = 0

    def add(self, encoded: pa.Array, counts: np.ndarray | None = None) -> None:
        """Adds the values of a block.

        If `counts` is not None, counts[i] is the number of rows with the value i of the block's dictionary.
        A raw column named `event_time` has no dictionary, because the computed event time replaces it.
        """
        if not isinstance(encoded, pa.DictionaryArray):
            encoded, counts = encoded.dictionary_encode(), None
        codes, nulls = encoded.indices, encoded.indices.null_count
        if counts is None:
            null = len(encoded.dictionary)
            codes = codes.fill_null(null) if codes.null_count else codes
            counts = np.bincount(codes.to_numpy(zero_copy_only=False), minlength=null + 1)[:null]
        self.add_counts(encoded.dictionary, counts, nulls)

    def add_counts(self, values: pa.Array, counts: np.ndarray, nulls: int) -> None:
        """Adds the values of a block, with the number of rows with each value, and the number of nulls."""
        self._nulls += nulls
        # Keep only distinct values, with one code for each. Then `unify` can merge the dictionaries of
        # several blocks.
        all_codes = pa.array(np.arange(len(values), dtype=np.int32))
        self._parts.append(pa.DictionaryArray.from_arrays(all_codes, values))
        self._counts.append(counts)
        if len(self._parts) >= _MERGE_EVERY:
            self._merge()

    def _merge(self) -> None:
        merged = unify(self._parts)
        codes = merged.indices.to_numpy(zero_copy_only=False)
        # np.bincount adds float64 weights, which are exact for counts up to 2**53.
        counts = np.bincount(codes, np.concatenate(self._counts), len(merged.dictionary)).astype(np.int64)
        all_codes = pa.array(np.arange(len(counts), dtype=np.int32))
        self._parts = [pa.DictionaryArray.from_arrays(all_codes, merged.dictionary)]
        self._counts = [counts]

    def result(self) -> tuple[pa.Array, np.ndarray]:
        """Returns (values, counts): n distinct values as texts, and their numbers of rows, shape (n,).

        If null occurs, it is the last value.
        """
        if not self._parts:
            return pa.array([], pa.string()), np.zeros(0, np.int64)
        if len(self._parts) > 1:
            self._merge()
        values, counts = _texts(self._parts[0].dictionary), self._counts[0]
        # Omit values that occur only in rejected rows.
        if not (counts > 0).all():
            codes = np.flatnonzero(counts > 0)
            values, counts = values.take(pa.array(codes)), counts[codes]
        if self._nulls:
            values = pa.concat_arrays([values, pa.nulls(1, pa.string())])
            counts = np.append(counts, self._nulls)
        return values, counts


# The code below divides the rows of a log into splits by their position, and counts the values of each split.


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
        first_line, end_line: the line of the first row, and the line after the last row, as indices into the
            lines of the file split.
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
        good: the number of good rows of each block, in the order of the log. At least one row must be good.
        config: the shares of train and validation.
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
        first_line: the first line of the block, as an index into the lines of the file split.
        saved: name under which the scan pass saved the block; empty if it did not save the block.
        parts: the rows of the block in each split.
        counts_file: path from which the names of the files to write are made. Each name gets additional
            digits, so that it is unique.
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
    texts = workers.collect(len(tasks), partial(_count_task, TaskArguments(tasks), layout, tuple(counted)))
    return [[CountedRows(**part) for part in json.loads(text)] for text in texts]


def _count_task(
    tasks: TaskArguments[CutTask], layout: FileLayout, counted: tuple[str, ...], index: int
) -> str:
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
