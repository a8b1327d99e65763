"""The passes over the days of a log whose rows need a preparation, such as histories, negatives or joins.

The scan pass publishes the quarantine of each day, and stores its good rows. These rows are prepared, and
published in the table `prepared`. The second pass reads the prepared files as it would read a log that needs
no preparation. It counts values and computes features. A subclass prepares the rows: `TaskPasses` with tasks
of this machine (etl.prepare.task_passes), or `FramePasses` with Spark frames (etl.spark.frame_passes).
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial, reduce
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from conf.errors import DataError
from conf.lazy_imports import F
from conf.load import config_digest
from conf.names import days_since_epoch
from conf.types import SPLITS, Split
from etl.fit.rounds import TrainingBlocks
from etl.native.scan import NOTHING_REJECTED
from etl.ops.arrays import whole
from etl.quality.column_summary import LABEL_CELLS, ColumnSummary, CountedColumn, Values
from etl.quality.day_counts import DayCounts, check_day
from etl.quality.report import SplitOfDay
from etl.raw.file_splits import FileSplit
from etl.raw.files import ALL_DAYS, RawFiles, copies_of, find_raw, impression_inputs, require_raw
from etl.raw.row_rules import bounds_of_day
from etl.raw.splits import DAY, no_good_row, no_row
from etl.statistics.count_statistics import summarise_and_compare
from etl.statistics.value_counts import BUCKET_BYTES, Counts, buckets_for, write_counts
from etl.text.encode_pass import TrainingSplit, training_blocks
from etl.text.parse_block import FileLayout, ParsedBlock
from etl.text.published_days import (
    EncodeDay,
    EncodePart,
    ScannedDay,
    encode_days,
    file_name,
    labelled_file,
    publish_quarantine,
)
from etl.text.scan_pass import ScanTask, ValueCounter, collect_summaries, release, scan_splits
from etl.text.stored_rows import RowsFile, Spill
from etl.workflow.feature_plan import FeaturePlan, copied_tables
from spark.workers import TaskArguments, Workers
from storage.feature_spec import EVENT_TIME, GROUP_KEY, ITEM_KEY, LABEL, ROW_ID, USER_KEY, WEIGHT
from storage.file_digests import new_file, open_file
from storage.manifest import (
    Manifest,
    current_manifest,
    data_files,
    digest_of,
    is_published,
    read_manifest,
    require_manifest,
)
from storage.paths import LakePaths, Partition
from storage.publish import Rules, new_attempt, own_path, publish_files, rows_of, with_footer
from storage.read_parquet import errors_of_file
from storage.remove import is_younger, remove, written_dates

if TYPE_CHECKING:  # Python workers import this module, but they do not need pyspark.
    from pyspark.sql import DataFrame

    from etl.workflow.fitted_workflow import FittedWorkflow

log = logging.getLogger("nightrank.etl")

# Versions of the files of the tables `prepared` and `value_counts`. If a version changes, build_features
# writes these files again.
_PREPARED_FORMAT, _COUNTS_FORMAT = 1, 1
_TABLES = ("users", "items")


class EarlierDays(Protocol):
    """A reader of a table of earlier days, such as the clicks before a day."""

    def digest_before(self, day: str) -> str:
        """Returns a digest of the rows that are joined with the rows of a day."""


def earlier_digests(
    clicks: EarlierDays | None, values: EarlierDays | None
) -> dict[str, Callable[[str], str]]:
    """Maps the name of each table of earlier days to a function that takes a day and returns a digest.

    The rows of each day are joined with these tables. The digest covers the joined rows of the table.

    Args:
        clicks: the reader of earlier clicks; None if there are no histories, or if the log is not stored by
            day.
        values: the reader of last values; None without `last_values`.
    """
    readers = {"earlier_clicks": clicks, "earlier_values": values}
    return {name: reader.digest_before for name, reader in readers.items() if reader is not None}


class PreparedPasses(ABC):
    """The passes of a build_features run over days whose rows need histories, joins or other changes."""

    def __init__(
        self,
        workers: Workers,
        plan: FeaturePlan,
        lake: LakePaths,
        earlier: Mapping[str, Callable[[str], str]],
    ) -> None:
        """Creates the passes.

        Args:
            workers: the processes that run the tasks.
            plan: the plan of the run.
            lake: data lake that the run reads and writes.
            earlier: maps the name of each table of earlier days to a function. The function takes a day, and
                returns a digest of the table's rows that are joined with the rows of this day.
        """
        self._workers, self._plan, self._lake = workers, plan, lake
        self._earlier_digests = earlier
        self._inputs_of: dict[tuple[str, str], dict[str, str]] = {}  # The keys are (date, digest of raw log).
        self._kept: set[str] = set()  # The days that were passed to `keep_tables`.

    def keep_tables(self, days: Collection[str]) -> None:
        """Keeps prepared rows of some days valid even if a table of users or items is replaced later.

        A run that applies a workflow calls this method first, with the days whose features are published. The
        rows of these days keep the attributes with which they were joined. A later job that encodes the days
        with another workflow uses the same attributes. A fit uses the current tables for all days.
        """
        self._kept = set(days)

    # The following methods have the same interface as the methods of TextPasses (etl/text/two_passes.py).

    def scan_days(self, days: Sequence[RawFiles]) -> dict[str, DayCounts]:
        """Prepares and counts the days that are not counted yet, and returns the row counts of each day.

        Raises:
            DataError: too many rows of a day cannot be parsed, or have times outside the day.
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
        """Returns whether quarantine and value counts are published for the current log of a day."""
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
        self,
        days: Sequence[SplitOfDay],
        train: Sequence[SplitOfDay],
        day: SplitOfDay,
        columns: Sequence[CountedColumn],
    ) -> tuple[list[dict[str, ColumnSummary]], dict[str, Values]]:
        """Returns summaries of all `days`, and the comparison of `day` with the training days.

        See etl.statistics.count_statistics.summarise_and_compare.
        """
        return summarise_and_compare(
            self._workers,
            [self.counts_of(piece.raw, piece.split) for piece in days],
            [self.counts_of(piece.raw, piece.split) for piece in train],
            self.counts_of(day.raw, day.split),
            columns,
        )

    def training_blocks(self, days: Sequence[RawFiles]) -> TrainingBlocks:
        """Returns the training rows of scanned days as blocks."""
        self._prepare([raw for raw in days if not self._is_prepared(raw)])
        splits = [
            TrainingSplit(file_split, raw.dt)
            for raw in days
            for split, file_split in self._files(raw.dt, read_manifest(self._prepared(raw.dt)))
            if split in (None, "train")
        ]
        return training_blocks(splits, PreparedRows())

    def training_rows(self, days: Sequence[RawFiles]) -> DataFrame:
        """Returns the training rows of scanned days as a Spark frame, with the column `_day`."""
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
            days: maps each day to its raw files, its row counts, and the inputs for its manifest. The digests
                of `table_inputs` are added to these inputs.
            rules: checks for the columns of the feature table.
        """
        self._prepare([raw for raw, _, _ in days.values() if not self._is_prepared(raw)])
        of_days = {}
        for dt, (raw, counts, inputs) in days.items():
            prepared = read_manifest(self._prepared(dt))
            parts = [EncodePart(file_split, split=split) for split, file_split in self._files(dt, prepared)]
            of_days[dt] = EncodeDay(parts, prepared.rows, counts, inputs | self.table_inputs(raw))
        table = self._lake.features(workflow.version)
        return encode_days(self._workers, self._plan, table, workflow, PreparedRows(), of_days, rules)

    # Inputs and names

    def _prepared(self, dt: str) -> Partition:
        return self._lake.prepared(self._plan.config.name).partition(dt)

    def _columns(self) -> tuple[str, ...]:
        """Returns the columns of the files with prepared rows."""
        read = {name for chain in self._plan.chains for name in chain.inputs}
        read |= {
            name for chain in self._plan.chains for step in chain.steps for name in step.operator.reads()
        }
        fixed = [ROW_ID, *self._plan.fixed_columns]
        return (*fixed, *(name for name in self._plan.columns if name in read and name not in fixed))

    def _log_columns(self) -> tuple[str, ...]:
        """Returns the columns of the log that are stored, so that its good rows can be prepared."""
        keys = self._plan.config.keys
        needed = {*self._columns(), *(keys.columns if keys else ())}
        # Operators of `prepare` may read any column of the log.
        return self._plan.raw_columns(needed, everything=bool(self._plan.changers))

    def _log_inputs(self, raw: RawFiles) -> dict[str, str]:
        return {"raw": raw.digest, "layout": self._plan.layout}

    def _prepared_inputs(self, raw: RawFiles) -> dict[str, str]:
        """Returns the digests from which a day's prepared rows are computed, as in their manifest."""
        known = self._inputs_of.get((raw.dt, raw.digest))
        if known is None:
            inputs = self._find_inputs(raw)
            if raw.dt in self._kept:
                inputs = self._with_counted_tables(raw, inputs)
            known = self._inputs_of[raw.dt, raw.digest] = inputs
        return known

    def _with_counted_tables(self, raw: RawFiles, inputs: dict[str, str]) -> dict[str, str]:
        """Returns `inputs` with the digests of users and items that the day's value counts recorded.

        If another input of the day's value counts has changed, returns `inputs` unchanged.
        """
        partition = self._lake.value_counts.partition(raw.dt)
        if not is_published(partition):
            return inputs
        counted = read_manifest(partition).inputs
        kept = inputs | {name: counted[name] for name in _TABLES if name in inputs and name in counted}
        return inputs if current_manifest(partition, self._with_counted(kept)) is None else kept

    def table_inputs(self, raw: RawFiles) -> dict[str, str]:
        """Returns the digest of each table with which the rows of a day are joined.

        The names are `users`, `items` and those of the tables of earlier days (`earlier_digests`).
        """
        joined = {*_TABLES, *self._earlier_digests}
        return {name: digest for name, digest in self._prepared_inputs(raw).items() if name in joined}

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
        return inputs | {name: digest(raw.dt) for name, digest in self._earlier_digests.items()}

    def _count_inputs(self, raw: RawFiles) -> dict[str, str]:
        return self._with_counted(self._prepared_inputs(raw))

    def _with_counted(self, prepared: dict[str, str]) -> dict[str, str]:
        """Derives the inputs of a day's value counts from the inputs of the day's prepared rows."""
        return {**prepared, "counted": digest_of([_COUNTS_FORMAT, *self._plan.counted_columns])}

    def _has_quarantine(self, raw: RawFiles) -> bool:
        """Returns whether the quarantine of a day was computed from its current log with the current layout.

        Another configuration may have replaced the quarantine, because all configurations of a lake share
        this table.
        """
        partition = self._lake.quarantine.partition(raw.dt)
        return current_manifest(partition, self._log_inputs(raw)) is not None

    def _is_prepared(self, raw: RawFiles) -> bool:
        return current_manifest(self._prepared(raw.dt), self._prepared_inputs(raw)) is not None

    def _is_counted(self, raw: RawFiles) -> bool:
        partition = self._lake.value_counts.partition(raw.dt)
        return current_manifest(partition, self._count_inputs(raw)) is not None

    def _files(self, dt: str, manifest: Manifest) -> Iterator[tuple[Split | None, FileSplit]]:
        """Yields each file with prepared rows of a day, and the split of these rows."""
        for split in SPLITS if self._plan.is_divided else (None,):
            for path in data_files(self._prepared(dt), manifest, split):
                yield split, FileSplit(path, 0, None)

    # Preparing

    def _prepare(self, days: Sequence[RawFiles]) -> None:
        """Scans the raw logs of some days, and publishes their quarantine and their prepared rows."""
        if not days:
            return
        for raw in days:  # Rows that are prepared again are joined with the current tables of attributes.
            self._kept.discard(raw.dt)
            self._inputs_of.pop((raw.dt, raw.digest), None)
        self._prepare_days(days)

    @abstractmethod
    def _prepare_days(self, days: Sequence[RawFiles]) -> None:
        """Publishes the quarantine and the prepared rows of at least one day.

        Deletes the stored good rows at the end, even after an error.

        Raises:
            DataError: see `_scan`.
        """

    def _splits_of(self, days: Sequence[RawFiles], layout: FileLayout) -> list[list[FileSplit]]:
        """Returns the file splits of each day, in the order of the day's lines."""
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
            store: function that takes the index of a day and the index of a task, and returns how this task
                stores good rows.

        Raises:
            DataError: a day exceeds a limit (etl.quality.day_counts.check_day), or a log that is divided into
                splits has no good row.
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
            len(tasks), partial(_count_file, TaskArguments(tasks), tuple(self._plan.counted_columns))
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
    """A task that counts the values of a prepared file, and writes them to a file of counts.

    `path` is the prepared file. It is None for a day without rows.
    """

    path: str | None
    counts_file: str
    buckets: int


def _count_file(tasks: TaskArguments[_CountTask], counted: tuple[str, ...], index: int) -> str:
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


# The code below writes and reads the files of the table `prepared`.
#
# A file has rows of one split, with row_id, keys, label, event_time and the raw columns that features read.
# Strings and lists of strings are dictionary-encoded. Tasks read such columns as dictionary arrays.

# Number of rows of a row group. It is small, because a task reads a whole row group at a time, and a history
# may have 50 values in each row.
ROW_GROUP_ROWS = 131_072
_FIXED = (ROW_ID, USER_KEY, ITEM_KEY, GROUP_KEY, EVENT_TIME, LABEL, WEIGHT)
_REPAIR = "delete the partition of the table `prepared`; build_features computes it again"


def write_prepared(rows: pa.Table, path: str) -> str:
    """Writes rows to a new file. Returns its name (storage.publish.with_footer).

    The name has different digits in each attempt.
    """
    with new_file(own_path(path)) as file:
        pq.write_table(
            rows,
            file.sink,
            compression="zstd",
            row_group_size=ROW_GROUP_ROWS,
            use_dictionary=[path for path in _parquet_paths(rows.schema) if path != ROW_ID],
            column_encoding={ROW_ID: "DELTA_BINARY_PACKED"},
            write_statistics=False,
            # If the file stored the Arrow schema, other readers could not read dictionaries as strings.
            store_schema=False,
        )
    return with_footer(file.name)


def _parquet_paths(schema: pa.Schema) -> list[str]:
    return [f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name for field in schema]


@dataclass(frozen=True)
class PreparedRows:
    """Reads the rows of prepared files. Implements the interface etl.text.parse_block.RowSource."""

    def blocks(self, file_split: FileSplit, features: Sequence[str]) -> Iterator[ParsedBlock]:
        """Yields the rows of a file, row group by row group.

        The attribute `row_lines` of a block contains the row_ids.

        Raises:
            DataError: the file is missing or damaged.
        """
        with errors_of_file(file_split.path, _REPAIR), open_file(file_split.path) as source:
            texts = _text_columns(pq.read_schema(source))
            source.seek(0)
            parquet = pq.ParquetFile(source, read_dictionary=texts)
            names = [name for name in parquet.schema_arrow.names if name in (*_FIXED, *features)]
            for group in range(parquet.num_row_groups):
                yield _block(parquet.read_row_group(group, columns=names, use_threads=False))


def _text_columns(schema: pa.Schema) -> list[str]:
    """Returns the Parquet paths of the columns that contain strings or lists of strings."""
    paths = []
    for field in schema:
        kind = field.type.value_type if pa.types.is_list(field.type) else field.type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if pa.types.is_string(kind):
            paths.append(f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name)
    return paths


def _block(rows: pa.Table) -> ParsedBlock:
    columns = {name: whole(rows.column(name)) for name in rows.column_names}
    row_ids = np.asarray(columns.pop(ROW_ID))
    return ParsedBlock(rows.nbytes, len(rows), row_ids, columns, {}, NOTHING_REJECTED)


# The functions below delete prepared rows, and copies of tables of Spark's catalogue, that no run needs.


def delete_unneeded_days(plan: FeaturePlan, lake: LakePaths, first_day: str) -> None:
    """Deletes the days that no run needs any more in the tables `prepared` and (in older lakes) `typed`.

    The run needs the days from `first_day` on. With the sections `history` and `last_values`, it also needs
    the earlier days whose events it reads. A day before the first needed day is deleted if it was published
    more than `output.grace_hours` ago. A day whose raw log no longer exists is deleted at once. A later run
    that needs a deleted day parses it again.

    A copy of a table of Spark's catalogue is deleted if its day is before the first needed day, or if the
    configuration no longer lists the table. It is kept for `output.grace_hours` too.
    """
    grace_hours = plan.config.output.grace_hours
    if not plan.is_divided:
        first = date.fromisoformat(first_day) - timedelta(days=plan.config.days_before)
        first_day = first.isoformat()
    unrecorded = LakePaths(lake.root)  # reads through this object are not recorded as inputs of the run
    for kind, table in (("typed", unrecorded.typed), ("prepared", unrecorded.prepared(plan.config.name))):
        for dt in written_dates(table):
            partition = table.partition(dt)
            try:
                if find_raw(plan.config, plan.config.log, dt) is None:
                    log.info(
                        "the %s rows of %s are deleted, because this day has no raw log any more", kind, dt
                    )
                    remove(partition, 0)
                elif dt < first_day and not is_younger(partition, grace_hours):
                    log.info(
                        "the %s rows of %s are deleted, because the first day that this run needs is %s",
                        kind,
                        dt,
                        first_day,
                    )
                    remove(partition, grace_hours)
            except (OSError, DataError) as error:  # for example, another job has deleted the same day
                log.warning(
                    "the %s rows of %s cannot be deleted; the next run tries again: %s", kind, dt, error
                )
    _delete_copies(plan, unrecorded, first_day)


def _delete_copies(plan: FeaturePlan, lake: LakePaths, first_day: str) -> None:
    """Deletes copied rows of days before `first_day`, and of tables that the configuration does not list."""
    config, grace_hours = plan.config, plan.config.output.grace_hours
    used = {copies_of(config, one.table).name for one in copied_tables(plan)}
    for table in lake.tables_of_copies(config.name):
        for dt in written_dates(table):
            if table.name in used and (dt == ALL_DAYS or dt >= first_day):
                continue
            partition = table.partition(dt)
            try:
                if not is_younger(partition, grace_hours):
                    log.info(
                        "the copied rows of %s in %s are deleted, because no run needs them", dt, table.path
                    )
                    remove(partition, grace_hours)
            except (OSError, DataError) as error:
                log.warning("%s cannot be deleted; the next run tries again: %s", partition.path, error)
