"""The passes over the days of a log whose rows need a preparation, such as histories, negatives or joins.

The scan pass publishes the quarantine of each day, and stores its good rows. They are prepared, and published
in the table `prepared`. Then values are counted and features are computed from prepared files, as from a log
that needs no preparation. Who prepares the rows is what subclasses add: tasks of this machine
(etl.prepare.task_passes) or Spark frames (etl.spark.frame_passes).
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from conf.dates import days_since_epoch
from conf.lazy_pyspark import F
from conf.load import config_digest
from conf.types import SPLITS, Split
from etl.fit.fit_inputs import TrainingBlocks
from etl.prepare.prepared_files import PreparedRows
from etl.quality.column_summary import Summary
from etl.quality.counts import LABEL_CELLS, Column
from etl.quality.day_counts import DayCounts, check_day
from etl.quality.new_values import Values
from etl.quality.profile import Piece
from etl.raw.file_splits import FileSplit
from etl.raw.files import RawFiles, require_raw
from etl.raw.impression_log import impression_inputs
from etl.raw.misdated import bounds_of_day
from etl.split.time_split import DAY, no_good_row, no_row
from etl.text.encoded_days import EncodeDay, EncodePart, encode_days, labelled_file
from etl.text.file_layout import FileLayout
from etl.text.publish_quarantine import publish_quarantine
from etl.text.publish_value_counts import file_name
from etl.text.scan_pass import ScanTask, ValueCounter, collect_summaries, release, scan_splits
from etl.text.scanned_day import ScannedDay
from etl.text.spilled_rows import Spill
from etl.text.stored_rows import RowsFile
from etl.text.training_rows import TrainingSplit, training_blocks
from etl.value_counts.count_file_format import BUCKET_BYTES, buckets_for, write_counts
from etl.value_counts.report_statistics import summarise_and_compare
from etl.value_counts.requests import Counts
from etl.workflow.feature_plan import Plan
from etl.workflow.fitted_workflow import FittedWorkflow
from spark.workers import Workers
from storage.feature_spec import LABEL, ROW_ID
from storage.manifest import (
    Manifest,
    current_manifest,
    data_files,
    digest_of,
    is_published,
    read_manifest,
    require_manifest,
)
from storage.paths import Lake, Partition
from storage.publish import Rules, new_attempt, publish_files, rows_of

if TYPE_CHECKING:  # workers do not import pyspark
    from pyspark.sql import DataFrame

log = logging.getLogger("nightrank.etl")

# Versions of the files of the tables `prepared` and `value_counts`. Days with other ones are written again.
_PREPARED_FORMAT, _COUNTS_FORMAT = 1, 1
_TABLES = ("users", "items")


class PreparedPasses(ABC):
    """The passes over the days of one run of build_features."""

    def __init__(
        self, workers: Workers, plan: Plan, lake: Lake, digest_before: Callable[[str], str] | None
    ) -> None:
        """Creates the passes.

        Args:
            workers, plan, lake: run the tasks; the plan of the run; the lake.
            digest_before: returns a digest of the clicks before a day that histories use; None if there are
                no histories, or if the log is one table.
        """
        self._workers, self._plan, self._lake = workers, plan, lake
        self._digest_before = digest_before
        self._inputs_of: dict[tuple[str, str], dict[str, str]] = {}  # by date and digest of the raw log
        self._kept: set[str] = set()  # the days of `keep_tables`

    def keep_tables(self, days: Collection[str]) -> None:
        """Lets the counted rows of some days be valid after the tables of users and items are replaced.

        A run that applies a workflow calls it before the other functions, for the days whose features are
        published: these keep the attributes that they have. So do days that a job after build_features
        encodes with another workflow. A fit uses the present tables for all days.
        """
        self._kept = set(days)

    # The interface of TextPasses

    def scan_days(self, days: Sequence[RawFiles]) -> dict[str, DayCounts]:
        """Prepares and counts the days that are not counted yet, and returns the row counts of each day.

        Raises:
            DataError: too many rows of a day cannot be parsed, or have times outside of the day.
        """
        self._prepare(
            [
                raw
                for raw in days
                if not self._has_quarantine(raw) or not (self._is_counted(raw) or self._is_prepared(raw))
            ]
        )
        self._count([raw for raw in days if not self._is_counted(raw)])
        counts = {}
        for raw in days:
            partition = self._lake.quarantine.partition(raw.dt)
            counts[raw.dt] = DayCounts.from_manifest(require_manifest(partition, self._log_inputs(raw)))
        return counts

    def is_scanned(self, raw: RawFiles) -> bool:
        """Returns whether the quarantine and the value counts of this log of a day are published."""
        return self._has_quarantine(raw) and self._is_counted(raw)

    def counts_of(self, raw: RawFiles, split: Split | None = None) -> Counts:
        """Returns the value counts of a day.

        Args:
            raw: the raw files of the day.
            split: the split whose rows are counted, if the day is divided into splits.
        """
        partition = self._lake.value_counts.partition(raw.dt)
        day, manifest = days_since_epoch(raw.dt), require_manifest(partition, self._count_inputs(raw))
        label = split if self._plan.is_divided else None
        none = dict.fromkeys((LABEL_CELLS, *self._plan.counted_columns), 0)
        files = tuple((path, day) for path in data_files(partition, manifest, label))
        return Counts(files, day, manifest.facts["values"].get(label or "", none))

    def figures_of(
        self, days: Sequence[Piece], train: Sequence[Piece], day: Piece, columns: Sequence[Column]
    ) -> tuple[list[dict[str, Summary]], dict[str, Values]]:
        """Returns summaries of `days`, and the comparison of `day` with the training days.

        See etl.value_counts.report_statistics.summarise_and_compare.
        """
        return summarise_and_compare(
            self._workers,
            [self.counts_of(piece.raw, piece.split) for piece in days],
            [self.counts_of(piece.raw, piece.split) for piece in train],
            self.counts_of(day.raw, day.split),
            columns,
        )

    def training_blocks(self, days: Sequence[RawFiles]) -> TrainingBlocks:
        """Returns the training rows of scanned days."""
        self._prepare([raw for raw in days if not self._is_prepared(raw)])
        splits = [
            TrainingSplit(file_split, raw.dt)
            for raw in days
            for split, file_split in self._files(raw.dt, read_manifest(self._prepared(raw.dt)))
            if split in (None, "train")
        ]
        return training_blocks(splits, PreparedRows())

    def training_rows(self, days: Sequence[RawFiles]) -> DataFrame:
        """Returns the training rows of scanned days as a frame of Spark, with the column `_day`."""
        self._prepare([raw for raw in days if not self._is_prepared(raw)])
        label: Split | None = "train" if self._plan.is_divided else None
        return reduce(
            lambda rows, more: rows.unionByName(more), [self._frame_of(raw.dt, label) for raw in days]
        )

    def _frame_of(self, dt: str, split: Split | None) -> DataFrame:
        """Returns the prepared rows of a day, or of one of its splits, as a frame with the column `_day`."""
        prepared = self._prepared(dt)
        rows = rows_of(self._workers.spark, prepared, read_manifest(prepared), split)
        return rows.withColumn(DAY, F.lit(dt))

    def encode_days(
        self,
        workflow: FittedWorkflow,
        days: Mapping[str, tuple[RawFiles, DayCounts, dict[str, str]]],
        rules: Rules,
    ) -> dict[str, Manifest]:
        """Writes the feature partitions of days in one pass, and publishes them.

        Args:
            workflow: the fitted workflow, which computes the features.
            days: maps each day to its raw files, its row counts, and the inputs for its manifest.
            rules: checks for the columns of the feature table.
        """
        self._prepare([raw for raw, _, _ in days.values() if not self._is_prepared(raw)])
        of_days = {}
        for dt, (_, counts, inputs) in days.items():
            prepared = read_manifest(self._prepared(dt))
            parts = [EncodePart(file_split, split=split) for split, file_split in self._files(dt, prepared)]
            of_days[dt] = EncodeDay(parts, prepared.rows, counts, inputs)
        table = self._lake.features(workflow.version)
        return encode_days(self._workers, self._plan, table, workflow, PreparedRows(), of_days, rules)

    # Inputs and names

    def _prepared(self, dt: str) -> Partition:
        return self._lake.prepared(self._plan.config.name).partition(dt)

    def _columns(self) -> tuple[str, ...]:
        """Returns the columns of prepared files."""
        read = {name for chain in self._plan.chains for name in chain.inputs}
        read |= {
            name for chain in self._plan.chains for step in chain.steps for name in step.operator.reads()
        }
        fixed = [ROW_ID, *self._plan.fixed_columns]
        return (*fixed, *(name for name in self._plan.columns if name in read and name not in fixed))

    def _log_columns(self) -> tuple[str, ...]:
        """Returns the columns of the good rows that are stored for the preparation."""
        keys = self._plan.config.keys
        needed = {*self._columns(), *(keys.columns if keys else ())}
        # Operators may read any column.
        return self._plan.raw_columns(needed, everything=bool(self._plan.changers))

    def _log_inputs(self, raw: RawFiles) -> dict[str, str]:
        return {"raw": raw.digest, "layout": self._plan.layout}

    def _prepared_inputs(self, raw: RawFiles) -> dict[str, str]:
        """Returns the inputs of the prepared rows of a day, as its manifest names them."""
        known = self._inputs_of.get((raw.dt, raw.digest))
        if known is None:
            inputs = self._find_inputs(raw)
            if raw.dt in self._kept:
                inputs = self._with_counted_tables(raw, inputs)
            known = self._inputs_of[raw.dt, raw.digest] = inputs
        return known

    def _with_counted_tables(self, raw: RawFiles, inputs: dict[str, str]) -> dict[str, str]:
        """Returns the inputs with the tables of the published value counts, if all others are the same."""
        partition = self._lake.value_counts.partition(raw.dt)
        if not is_published(partition):
            return inputs
        counted = read_manifest(partition).inputs
        kept = inputs | {name: counted[name] for name in _TABLES if name in inputs and name in counted}
        return inputs if current_manifest(partition, self._with_counted(kept)) is None else kept

    def table_inputs(self, raw: RawFiles) -> dict[str, str]:
        """Returns the digests of the tables with which the rows of a day were joined, by section."""
        return {name: digest for name, digest in self._prepared_inputs(raw).items() if name in _TABLES}

    def _find_inputs(self, raw: RawFiles) -> dict[str, str]:
        config = self._plan.config
        columns = digest_of([_PREPARED_FORMAT, *self._columns()])
        inputs = {**self._log_inputs(raw), "columns": columns, **self._plan.methods}
        inputs |= impression_inputs(config, raw)
        if config.negatives:
            inputs["drawn"] = config_digest(config, "negatives")
        if self._plan.is_divided:
            inputs["shares"] = config_digest(config, "split")
        for section, table in (("users", config.users), ("items", config.items)):
            if table:
                inputs[section] = require_raw(config, table, raw.dt, f"{section}.path", raw.recorder).digest
        if self._digest_before:
            inputs["earlier_clicks"] = self._digest_before(raw.dt)
        return inputs

    def _count_inputs(self, raw: RawFiles) -> dict[str, str]:
        return self._with_counted(self._prepared_inputs(raw))

    def _with_counted(self, prepared: dict[str, str]) -> dict[str, str]:
        """Returns the inputs of the value counts of a day from those of its prepared rows."""
        return {**prepared, "counted": digest_of([_COUNTS_FORMAT, *self._plan.counted_columns])}

    def _has_quarantine(self, raw: RawFiles) -> bool:
        """Returns whether the quarantine of a day is that of this log and of this layout.

        Another configuration may have replaced it, because all configurations of a lake share this table.
        """
        partition = self._lake.quarantine.partition(raw.dt)
        return current_manifest(partition, self._log_inputs(raw)) is not None

    def _is_prepared(self, raw: RawFiles) -> bool:
        return current_manifest(self._prepared(raw.dt), self._prepared_inputs(raw)) is not None

    def _is_counted(self, raw: RawFiles) -> bool:
        partition = self._lake.value_counts.partition(raw.dt)
        return current_manifest(partition, self._count_inputs(raw)) is not None

    def _files(self, dt: str, manifest: Manifest) -> Iterator[tuple[Split | None, FileSplit]]:
        """Yields the files of the prepared rows of a day, with the split of their rows."""
        for split in SPLITS if self._plan.is_divided else (None,):
            for path in data_files(self._prepared(dt), manifest, split):
                yield split, FileSplit(path, 0, None)

    # Preparing

    def _prepare(self, days: Sequence[RawFiles]) -> None:
        """Scans the raw logs of some days, and publishes their quarantine and their prepared rows."""
        if not days:
            return
        for raw in days:  # their rows get the attributes of the present tables
            self._kept.discard(raw.dt)
            self._inputs_of.pop((raw.dt, raw.digest), None)
        self._prepare_days(days)

    @abstractmethod
    def _prepare_days(self, days: Sequence[RawFiles]) -> None:
        """Does the work of `_prepare` for at least one day. Stored rows are deleted, also after an error.

        Raises:
            DataError: see `_scan`.
        """

    def _splits_of(self, days: Sequence[RawFiles], layout: FileLayout) -> list[list[FileSplit]]:
        """Returns the file splits of each day, in the order of its lines."""
        splits: dict[str, list[FileSplit]] = {}
        for part in layout.reader.splits():
            splits.setdefault(part.path, []).append(part)
        return [[part for path in raw.paths for part in splits.get(path, ())] for raw in days]

    def _scan(
        self,
        days: Sequence[RawFiles],
        layout: FileLayout,
        splits: Sequence[Sequence[FileSplit]],
        store: Callable[[int, int], Spill | RowsFile],
    ) -> list[ScannedDay]:
        """Scans the logs of some days, stores their good rows, and publishes their quarantine.

        Args:
            days, layout: the days, and the layout of their files.
            splits: the file splits of each day.
            store: takes the index of a day and the index of a task; returns how to store its good rows.

        Raises:
            DataError: a day exceeds a limit (etl.quality.day_counts.check_day), or a log that is divided has
                no good row.
        """
        scans: list[ScanTask] = []
        of_days: list[dict[int, FileSplit]] = []
        for index, (raw, parts) in enumerate(zip(days, splits, strict=True)):
            of_days.append(dict(enumerate(parts, start=len(scans))))
            bounds = bounds_of_day(self._plan.config, raw.dt)
            scans += [
                ScanTask(part, "", day=bounds, spill=store(index, task)) for task, part in of_days[-1].items()
            ]
        scanned = scan_splits(self._workers, scans, layout, self._parsed_columns())
        try:
            summaries = collect_summaries(scanned)
            scanned_days = []
            for raw, of_day in zip(days, of_days, strict=True):
                scanned_days.append(ScannedDay(raw, of_day, summaries))
                quarantine = self._lake.quarantine.partition(raw.dt)
                if not self._has_quarantine(raw):
                    inputs = self._log_inputs(raw)
                    publish_quarantine(self._plan, quarantine, scanned_days[-1], scanned, inputs)
                counts = DayCounts.from_manifest(read_manifest(quarantine))
                check_day(self._plan, raw, counts, quarantine, warn=False)
                if self._plan.is_divided and not counts.good:
                    raise no_good_row() if counts.rows_in else no_row(raw.dt, raw.paths[0])
            return scanned_days
        finally:
            release(scanned)

    def _parsed_columns(self) -> tuple[str, ...]:
        return tuple(name for name in self._log_columns() if name in self._plan.config.log.names)

    # Counting

    def _count(self, days: Sequence[RawFiles]) -> None:
        """Publishes the value counts of the prepared rows of some days."""
        self._prepare([raw for raw in days if not self._is_prepared(raw)])
        tasks: list[_CountTask] = []
        of_tasks: list[tuple[str, Split | None]] = []
        attempts: dict[str, str] = {}
        for raw in days:
            partition = self._lake.value_counts.partition(raw.dt)
            attempts[raw.dt] = new_attempt(partition)
            manifest = read_manifest(self._prepared(raw.dt))
            buckets = buckets_for(raw.bytes, BUCKET_BYTES)
            for split, file_split in self._files(raw.dt, manifest):
                name = labelled_file(attempts[raw.dt], split, f"part-{len(tasks):05d}.parquet")
                tasks.append(_CountTask(file_split.path, partition.file(name), buckets))
                of_tasks.append((raw.dt, split))
            if not manifest.files:  # a partition has at least one file
                split = SPLITS[0] if self._plan.is_divided else None
                name = labelled_file(attempts[raw.dt], split, f"part-{len(tasks):05d}.parquet")
                tasks.append(_CountTask(None, partition.file(name), buckets))
                of_tasks.append((raw.dt, split))
        counted = self._workers.collect(
            len(tasks), partial(_count_file, tuple(tasks), tuple(self._plan.counted_columns))
        )
        results = [json.loads(text) for text in counted]
        for raw in days:
            of_day = [
                (split, result) for (dt, split), result in zip(of_tasks, results, strict=True) if dt == raw.dt
            ]
            values: dict[str, dict[str, int]] = {}
            for split, result in of_day:
                known = values.setdefault(split or "", dict.fromkeys(result["values"], 0))
                values[split or ""] = {name: known[name] + n for name, n in result["values"].items()}
            publish_files(
                self._lake.value_counts.partition(raw.dt),
                {
                    labelled_file(attempts[raw.dt], split, file_name(result["file"])): split
                    for split, result in of_day
                },
                inputs=self._count_inputs(raw),
                expected_rows=sum(sum(of_split.values()) for of_split in values.values()),
                facts={"values": values},
                grace_hours=self._plan.config.output.grace_hours,
            )


@dataclass(frozen=True)
class _CountTask:
    """A prepared file whose values are counted (None: a day without rows), and the file to write."""

    path: str | None
    counts_file: str
    buckets: int


def _count_file(tasks: tuple[_CountTask, ...], counted: tuple[str, ...], index: int) -> str:
    task = tasks[index]
    counters = {name: ValueCounter() for name in (LABEL_CELLS, *counted)}
    blocks = PreparedRows().blocks(FileSplit(task.path, 0, None), counted) if task.path else ()
    for block in blocks:
        for name, counter in counters.items():
            values = block.columns[LABEL].cast(pa.float64()) if name == LABEL_CELLS else block.columns[name]
            is_encoded = isinstance(values, pa.DictionaryArray)
            counter.add(values if is_encoded else values.dictionary_encode())
    results = {name: counter.result() for name, counter in counters.items()}
    file, values_of = write_counts(task.counts_file, results, task.buckets)
    return json.dumps({"file": file, "values": values_of})
