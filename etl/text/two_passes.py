"""Processes the days of a log in two passes.

The scan pass publishes the quarantine and the value counts of each day. After the workflow has been fitted,
the encode pass writes the features.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame

from conf.load import config_digest
from conf.names import days_since_epoch
from conf.types import Split
from etl.fit.rounds import TrainingBlocks
from etl.quality.column_summary import LABEL_CELLS, ColumnSummary, CountedColumn, Values
from etl.quality.day_counts import DayCounts, check_day
from etl.quality.report import SplitOfDay
from etl.raw.file_splits import FILE_SPLIT_BYTES, FileSplit, share_threads
from etl.raw.files import RawFiles
from etl.raw.row_rules import bounds_of_day
from etl.raw.splits import CUT, DAY, no_good_row, no_row
from etl.raw.text_values import ARROW_TYPES
from etl.statistics.count_statistics import summarise_and_compare
from etl.statistics.value_counts import BUCKET_BYTES, Counts, buckets_for
from etl.text.encode_pass import TrainingSplit, training_blocks
from etl.text.parse_block import FileLayout, LogRows, SavedBlock, layout_of_days
from etl.text.published_days import (
    EncodeDay,
    EncodePart,
    ScannedDay,
    encode_days,
    publish_counts,
    publish_quarantine,
)
from etl.text.scan_pass import (
    CountedBlock,
    CountedRows,
    CutTask,
    ScanTask,
    collect_summaries,
    count_parts,
    release,
    rows_of_splits,
    scan_splits,
)
from etl.workflow.chains import decoded
from etl.workflow.feature_plan import FeaturePlan
from etl.workflow.fitted_workflow import FittedWorkflow
from spark.rows import frame_of
from spark.workers import LocalWorkers, Workers
from storage.feature_spec import LABEL, ROW_ID
from storage.manifest import (
    Manifest,
    current_manifest,
    data_files,
    digest_of,
    read_manifest,
    require_manifest,
)
from storage.paths import LakePaths
from storage.publish import Rules, new_attempt

log = logging.getLogger("nightrank.etl")

# Version of the file format of value counts. Days whose files have a different version are scanned again.
_COUNTS_FORMAT = 2


@dataclass(frozen=True)
class _ScannedSplit:
    """A file split, and the number of its lines.

    Attributes:
        parts: (split, first line, line after the last one) for each split that contains rows of the file
            split. None if all rows of the day are in one split.
    """

    file_split: FileSplit
    lines: int
    parts: tuple[tuple[Split, int, int], ...] | None = None


class TextPasses:
    """The two passes of a build_features run over raw logs: one scans days, one encodes features."""

    def __init__(self, workers: Workers, plan: FeaturePlan, lake: LakePaths) -> None:
        self._workers, self._plan, self._lake = workers, plan, lake
        self._splits: dict[str, list[_ScannedSplit]] = {}
        # maps each file split that this run has scanned to its scanned blocks
        self._scratch: dict[FileSplit, Sequence[CountedBlock]] = {}

    def scan_days(self, days: Sequence[RawFiles]) -> dict[str, DayCounts]:
        """Scans the days that are not scanned yet, and returns the row counts of each day.

        The days are scanned together. After that, the quarantine and the value counts of each day are
        published.
        """
        missing = [raw for raw in days if not self.is_scanned(raw)]
        if missing:
            self._scan(missing)
        counts = {}
        for raw in days:
            of_quarantine, of_counts = self._inputs(raw)
            quarantine = require_manifest(self._lake.quarantine.partition(raw.dt), of_quarantine)
            counts[raw.dt] = DayCounts.from_manifest(quarantine)
            facts = require_manifest(self._lake.value_counts.partition(raw.dt), of_counts).facts
            parts = facts.get("parts") or [None] * len(facts["slices"])
            self._splits[raw.dt] = [
                _ScannedSplit(FileSplit(path, start, end), lines, of_split and tuple(map(tuple, of_split)))
                for (path, start, end, lines), of_split in zip(facts["slices"], parts, strict=True)
            ]
        return counts

    def is_scanned(self, raw: RawFiles) -> bool:
        """Returns whether quarantine and value counts are published for the current log of a day."""
        tables = (self._lake.quarantine, self._lake.value_counts)
        return all(
            current_manifest(table.partition(raw.dt), inputs) is not None
            for table, inputs in zip(tables, self._inputs(raw), strict=True)
        )

    def counts_of(self, raw: RawFiles, split: Split | None = None) -> Counts:
        """Returns the value counts of a scanned day.

        Args:
            raw: the raw files of the day.
            split: the split whose rows are counted, if the day is divided into splits.
        """
        partition = self._lake.value_counts.partition(raw.dt)
        day = days_since_epoch(raw.dt)
        manifest = require_manifest(partition, self._inputs(raw)[1])
        values = manifest.facts["values"]
        if not self._plan.is_divided:
            return Counts(tuple((path, day) for path in data_files(partition, manifest)), day, values)
        files = tuple((path, day) for path in data_files(partition, manifest, split))
        none = dict.fromkeys((LABEL_CELLS, *self._plan.counted_columns), 0)
        return Counts(files, day, values.get(split, none))

    def figures_of(
        self,
        days: Sequence[SplitOfDay],
        train: Sequence[SplitOfDay],
        day: SplitOfDay,
        columns: Sequence[CountedColumn],
    ) -> tuple[list[dict[str, ColumnSummary]], dict[str, Values]]:
        """Returns summaries of `days`, and the comparison of `day` with the training days.

        See etl.statistics.count_statistics.summarise_and_compare.
        """
        return summarise_and_compare(
            self._workers,
            [self.counts_of(piece.raw, piece.split) for piece in days],
            [self.counts_of(piece.raw, piece.split) for piece in train],
            self.counts_of(day.raw, day.split),
            columns,
        )

    def table_inputs(self, raw: RawFiles) -> dict[str, str]:
        """Returns an empty mapping, because rows that need no preparation are not joined with tables."""
        return {}

    def training_blocks(self, days: Sequence[RawFiles]) -> TrainingBlocks:
        """Returns the training rows of scanned days."""
        splits = []
        for raw in days:
            first_row = 0
            for scanned in self._splits[raw.dt]:
                if scanned.parts is None:
                    splits.append(TrainingSplit(scanned.file_split, raw.dt, first_row))
                else:
                    splits += [
                        TrainingSplit(scanned.file_split, raw.dt, first_row, (first, end))
                        for split, first, end in scanned.parts
                        if split == "train"
                    ]
                first_row += scanned.lines
        return training_blocks(splits, LogRows(self._layout(days)))

    def training_rows(self, days: Sequence[RawFiles]) -> DataFrame:
        """Returns the training rows of scanned days as a frame of Spark, with the column `_day`."""
        return frame_of_blocks(self._workers, self.training_blocks(days), self._plan)

    def encode_days(
        self,
        workflow: FittedWorkflow,
        days: Mapping[str, tuple[RawFiles, DayCounts, dict[str, str]]],
        rules: Rules,
    ) -> dict[str, Manifest]:
        """Writes the feature partitions of scanned days in one pass, and publishes them.

        Args:
            workflow: the fitted workflow, which computes the features.
            days: maps each day to its raw files, its row counts, and the inputs for its manifest.
            rules: checks for the columns of the feature table.
        """
        return encode_days(
            self._workers,
            self._plan,
            self._lake.features(workflow.version),
            workflow,
            LogRows(self._layout([raw for raw, _, _ in days.values()])),
            {
                dt: EncodeDay(self._encode_parts(dt), counts.good, counts, inputs)
                for dt, (_, counts, inputs) in days.items()
            },
            rules,
        )

    def _encode_parts(self, dt: str) -> list[EncodePart]:
        """Returns the parts of a scanned day, in the order of the day's lines.

        A file split whose blocks this machine has saved is divided into several parts, so that several tasks
        encode it.
        """
        parts, first_row = [], 0
        divided = isinstance(self._workers, LocalWorkers)
        for scanned in self._splits[dt]:
            runs = saved_runs(self._scratch.get(scanned.file_split, ()), scanned.lines, divided)
            for run in runs:
                of_run: list[tuple[Split | None, int, int]] = [*run.within(scanned.parts or ())]
                if scanned.parts is None:
                    of_run = [(None, run.first, run.end)]
                saved = tuple(SavedBlock(name, shared=len(of_run) > 1) for name in run.names)
                for split, first, end in of_run:
                    part = EncodePart(scanned.file_split, first_row, split, saved, run.first, (first, end))
                    parts.append(part)
            first_row += scanned.lines
        return parts

    def _layout(self, days: Sequence[RawFiles]) -> FileLayout:
        return layout_of_days(self._plan, days)

    def _inputs(self, raw: RawFiles) -> tuple[dict[str, str], dict[str, str]]:
        """Returns the digest of each input of a day's quarantine, and of each input of its value counts."""
        shared = {"raw": raw.digest, "layout": self._plan.layout}
        counted = {**shared, "columns": digest_of([_COUNTS_FORMAT, *self._plan.counted_columns])}
        if self._plan.is_divided:
            counted["split"] = digest_of([CUT, config_digest(self._plan.config, "split")])
        return shared, counted

    def _scan(self, days: Sequence[RawFiles]) -> None:
        run_id = uuid.uuid4().hex[:12]
        tasks: list[ScanTask] = []
        splits_of_day: dict[str, dict[int, FileSplit]] = {}
        attempts: dict[str, str] = {}
        layout = self._layout(days)
        splits = layout.reader.splits()
        if isinstance(self._workers, LocalWorkers):
            splits = share_threads(splits, self._workers.parallelism)
        split_of = _by_path(splits)
        for raw in days:
            partition = self._lake.value_counts.partition(raw.dt)
            attempts[raw.dt] = new_attempt(partition)
            file_splits = [part for path in raw.paths for part in split_of.get(path, ())]
            splits_of_day[raw.dt] = dict(enumerate(file_splits, start=len(tasks)))
            buckets = buckets_for(sum(file_split.bytes for file_split in file_splits), BUCKET_BYTES)
            for index, file_split in enumerate(file_splits):
                path = partition.file(f"{attempts[raw.dt]}/part-{index:05d}.parquet")
                bounds = bounds_of_day(self._plan.config, raw.dt)
                tasks.append(ScanTask(file_split, path, buckets, f"{run_id}-{len(tasks)}", bounds))
        scanned = scan_splits(self._workers, tasks, layout, self._plan.counted_columns)
        try:
            summaries = collect_summaries(scanned)
            self._scratch |= {tasks[index].file_split: one.blocks for index, one in summaries.items()}
            scanned_days = [ScannedDay(raw, splits_of_day[raw.dt], summaries) for raw in days]
            for day in scanned_days:
                partition = self._lake.quarantine.partition(day.raw.dt)
                publish_quarantine(self._plan, partition, day, scanned, self._inputs(day.raw)[0])
            # If an executor is lost, Spark evaluates `scanned` again, and writes files of counts under new
            # names. The files that the summaries refer to never change.
            for day in scanned_days:
                partition = self._lake.value_counts.partition(day.raw.dt)
                attempt = attempts[day.raw.dt]
                parts = self._count_splits(day, tasks, layout) if self._plan.is_divided else None
                publish_counts(self._plan, partition, day, attempt, self._inputs(day.raw)[1], parts)
        finally:
            release(scanned)

    def _count_splits(
        self, day: ScannedDay, tasks: Sequence[ScanTask], layout: FileLayout
    ) -> list[list[CountedRows]]:
        """Returns, for each file split of a day, the value counts of its blocks in each split.

        Raises:
            DataError: the day has no good row, or too many rows cannot be parsed.
        """
        quarantine = self._lake.quarantine.partition(day.raw.dt)
        counts = DayCounts.from_manifest(read_manifest(quarantine))
        check_day(self._plan, day.raw, counts, quarantine, warn=False)
        if not counts.good:
            raise no_good_row() if counts.rows_in else no_row(day.raw.dt, day.raw.paths[0])
        places = [
            (task, index, block)
            for task in day.splits
            for index, block in enumerate(day.summaries[task].blocks)
        ]
        divided = rows_of_splits([block.good for _, _, block in places], self._plan.config.split)
        first_lines = [
            sum(earlier.lines for earlier in day.summaries[task].blocks[:index]) for task, index, _ in places
        ]
        cut = {
            place: CutTask(
                file_split=tasks[task].file_split,
                index=index,
                first_line=first_lines[place],
                saved=block.saved,
                parts=tuple(divided[place]),
                counts_file=tasks[task].counts_file,
                buckets=tasks[task].buckets,
            )
            for place, (task, index, block) in enumerate(places)
            if len(divided[place]) > 1
        }
        counted = count_parts(self._workers, list(cut.values()), layout, self._plan.counted_columns)
        of_cut = dict(zip(cut, counted, strict=True))
        parts: dict[int, list[CountedRows]] = {task: [] for task in day.splits}
        for place, (task, _, block) in enumerate(places):
            first, end = first_lines[place], first_lines[place] + block.lines
            parts[task] += of_cut.get(place) or [
                CountedRows(part.split, first, end, block.values, block.file) for part in divided[place]
            ]
        return list(parts.values())


def _by_path(file_splits: Sequence[FileSplit]) -> dict[str, list[FileSplit]]:
    """Returns the file splits of each file, in the order of the lines."""
    by_path: dict[str, list[FileSplit]] = {}
    for part in file_splits:
        by_path.setdefault(part.path, []).append(part)
    return by_path


# The code below divides the saved blocks of a file split into runs of consecutive blocks. One task encodes
# each run.


@dataclass(frozen=True)
class SavedRun:
    """Consecutive lines of a file split that one task encodes.

    Attributes:
        first, end: the first line, and the line after the last one.
        names: the names of the saved blocks with these lines; empty if a block was not saved.
    """

    first: int
    end: int
    names: tuple[str, ...] = ()

    def within(self, parts: Sequence[tuple[Split, int, int]]) -> Iterator[tuple[Split, int, int]]:
        """Yields `parts` (split, first line, end), cut to the lines of this object, without empty ones."""
        for split, first, end in parts:
            if max(first, self.first) < min(end, self.end):
                yield split, max(first, self.first), min(end, self.end)


def saved_runs(blocks: Sequence[CountedBlock], lines: int, divided: bool) -> list[SavedRun]:
    """Divides a file split into runs of consecutive lines, and returns the runs in order.

    The split is one run if `divided` is false or a block was not saved. Otherwise, a run has as many rows as
    the encode pass writes at once. So the row groups do not depend on the number of runs.

    Args:
        blocks: the blocks of the split; empty if this process has not scanned the split.
        lines: number of lines of the split.
        divided: whether every worker can read every saved block.
    """
    if not blocks or not all(block.saved for block in blocks):
        return [SavedRun(0, lines)]
    if not divided:
        return [SavedRun(0, lines, tuple(block.saved for block in blocks))]
    runs: list[SavedRun] = []
    first, end, size = 0, 0, 0
    names: list[str] = []
    for index, block in enumerate(blocks):
        end += block.lines
        size += block.bytes
        names.append(block.saved)
        # A block of a compressed file usually has about FILE_SPLIT_BYTES, so it becomes a run of its own.
        if size + block.bytes // 2 >= FILE_SPLIT_BYTES or index == len(blocks) - 1:
            runs.append(SavedRun(first, end, tuple(names)))
            first, size, names = end, 0, []
    return runs


# The functions below convert training rows that tasks read as blocks to a Spark frame.


def frame_of_blocks(workers: Workers, blocks: TrainingBlocks, plan: FeaturePlan) -> DataFrame:
    """Returns the training rows as a lazy frame: row_id, label, the day `_day`, and the chains' inputs.

    Args:
        workers: Spark's workers, which read the blocks.
        blocks: the training rows.
        plan: the plan of the run, which has the chains of operators.
    """
    read = {name for chain in plan.chains for name in chain.inputs}
    read |= {name for chain in plan.chains for step in chain.steps for name in step.operator.reads()}
    types = {name: ARROW_TYPES[kind] for name, kind in plan.columns.items() if name in read - {LABEL}}
    fixed = [(ROW_ID, pa.int64()), (LABEL, pa.float32()), (DAY, pa.string())]
    schema = pa.schema([*fixed, *types.items()])
    task = partial(_read, blocks, tuple(types), schema)
    return frame_of(workers.spark, workers.run(blocks.tasks, task, schema))


def _read(
    blocks: TrainingBlocks, names: tuple[str, ...], schema: pa.Schema, index: int
) -> Iterator[pa.RecordBatch]:
    """Runs one task: reads the training rows of one part (`TrainingBlocks.read`)."""
    for batch in blocks.read(index, frozenset((LABEL, *names))):
        day = pa.repeat(batch.dt, len(batch.row_ids))
        fixed = [pa.array(batch.row_ids, pa.int64()), batch.columns[LABEL], day]
        columns = [decoded(batch.columns[name]).cast(schema.field(name).type) for name in names]
        yield pa.RecordBatch.from_arrays([*fixed, *columns], schema=schema)
