"""The passes over the days of a log whose rows need a preparation, such as histories, negatives or joins.

The scan pass publishes the quarantine of each day, and stores its good rows. Tasks prepare these rows, and
publish them in the table `prepared`. Then values are counted and features are computed from prepared files,
as from a log that needs no preparation. All work is done by processes of this machine.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from conf.dates import days_since_epoch
from conf.errors import InfrastructureError
from conf.load import config_digest
from conf.types import SPLITS, Config, RawTable, Split
from etl.fit.fit_inputs import TrainingBlocks
from etl.prepare.attributes import read_attribute_table
from etl.prepare.click_tables import ClickTables, click_tables
from etl.prepare.negatives import merge_items
from etl.prepare.positions import impressions_table
from etl.prepare.prepare_tasks import (
    BucketTask,
    DayInputs,
    Preparation,
    PreparedFile,
    items_of_buckets,
    load_table,
    prepare_buckets,
    save_table,
    times_of,
)
from etl.prepare.prepared_files import PreparedRows
from etl.prepare.row_operators import keep_users_together, require_table_forms
from etl.prepare.splits import Cuts, position_cuts, time_cuts
from etl.quality.column_summary import Summary
from etl.quality.counts import LABEL_CELLS, Column
from etl.quality.new_values import Values
from etl.quality.profile import Piece
from etl.raw.file_splits import FileSplit, compression
from etl.raw.files import RawFiles, require_raw
from etl.raw.impression_log import impression_inputs
from etl.raw.layout_digest import layout_digest
from etl.raw.misdated import bounds_of_day
from etl.spark.prepared_rows import preparation as preparation_methods
from etl.spark.quarantine import DayCounts, check_day
from etl.split.time_split import no_good_row, no_row
from etl.text.encoded_days import EncodeDay, EncodePart, encode_days, labelled_file
from etl.text.file_layout import FileLayout, layout_of_days
from etl.text.publish_quarantine import publish_quarantine
from etl.text.publish_value_counts import file_name
from etl.text.scan_pass import ScanTask, ValueCounter, collect_summaries, scan_splits
from etl.text.scanned_day import ScannedDay
from etl.text.spilled_rows import Spill, delete_spilled_of, spilled_lines
from etl.text.training_rows import TrainingSplit, training_blocks
from etl.value_counts.count_file_format import BUCKET_BYTES, buckets_for, write_counts
from etl.value_counts.report_statistics import summarise_and_compare
from etl.value_counts.requests import Counts
from etl.workflow.feature_plan import Plan, plan
from etl.workflow.fitted_workflow import FittedWorkflow
from spark.local_workers import LocalWorkers
from storage.feature_spec import EVENT_TIME, LABEL, ROW_ID, USER_KEY, WEIGHT, raw_keys
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
from storage.publish import Rules, new_attempt, publish_files

log = logging.getLogger("nightrank.etl")

# Versions of the files of the tables `prepared` and `value_counts`. Days with other ones are written again.
_PREPARED_FORMAT, _COUNTS_FORMAT = 1, 1
# A task that prepares rows has this many bytes of raw text. Histories and negatives need much more memory.
_TASK_BYTES = 8 * 2**20
_MAX_BUCKETS = 256
_COMPRESSED = 5  # text is about so many times as large as its compressed file
_TABLES = ("users", "items")
_ARROW_TYPES = {
    "int": pa.int64(),
    "float": pa.float64(),
    "string": pa.string(),
    "ints": pa.list_(pa.int64()),
    "strings": pa.list_(pa.string()),
}


class PreparedPasses:
    """The passes over the days of one run of build_features."""

    def __init__(self, workers: LocalWorkers, config: Config, lake: Lake) -> None:
        """Creates the passes.

        Raises:
            ConfigError: an operator of `prepare` has only a form for Spark frames.
        """
        self._workers, self._config, self._lake = workers, config, lake
        self._plan: Plan = plan(config)
        require_table_forms(self._plan.changers)
        self._clicks: ClickTables | None = click_tables(workers, config, lake)
        self._saved: dict[tuple[str, ...], str] = {}  # maps a table of attributes to the file with its rows
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
        label = split if self._is_divided else None
        none = dict.fromkeys((LABEL_CELLS, *self._counted_columns()), 0)
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
        return encode_days(self._workers, self._config, table, workflow, PreparedRows(), of_days, rules)

    # Inputs and names

    @property
    def _is_divided(self) -> bool:
        """Returns whether a day has rows of several splits."""
        return self._config.split.by != "day"

    def _prepared(self, dt: str) -> Partition:
        return self._lake.prepared(self._config.name).partition(dt)

    def _counted_columns(self) -> list[str]:
        """Returns the columns whose values are counted: inputs of features that are no lists."""
        inputs = {name for chain in self._plan.chains for name in chain.inputs}
        kinds = self._plan.columns
        return [name for name in kinds if name in inputs and kinds[name] in ("int", "float", "string")]

    def _columns(self) -> tuple[str, ...]:
        """Returns the columns of prepared files."""
        read = {name for chain in self._plan.chains for name in chain.inputs}
        read |= {
            name for chain in self._plan.chains for step in chain.steps for name in step.operator.reads()
        }
        fixed = [ROW_ID, *self._fixed_columns()]
        return (*fixed, *(name for name in self._plan.columns if name in read and name not in fixed))

    def _fixed_columns(self) -> list[str]:
        """Returns the columns that the rules of the log compute: keys, time, label, weight."""
        config = self._config
        times = [EVENT_TIME] if config.log.event_time else []
        weights = [WEIGHT] if config.log.label.weights is not None else []
        return [*raw_keys(config.keys), *times, LABEL, *weights]

    def _log_columns(self) -> tuple[str, ...]:
        """Returns the columns of the good rows that are stored for the preparation."""
        config = self._config
        needed = {*self._columns(), *(config.keys.columns if config.keys else ())}
        everything = bool(self._plan.changers)  # operators may read any column
        raw = [name for name in config.log.names if everything or name in needed]
        fixed = self._fixed_columns()
        return (*fixed, *(name for name in raw if name not in fixed))

    def _log_inputs(self, raw: RawFiles) -> dict[str, str]:
        return {"raw": raw.digest, "layout": layout_digest(self._config)}

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
        config = self._config
        columns = digest_of([_PREPARED_FORMAT, *self._columns()])
        inputs = {**self._log_inputs(raw), "columns": columns, **preparation_methods(config)}
        inputs |= impression_inputs(config, raw)
        if config.negatives:
            inputs["drawn"] = config_digest(config, "negatives")
        if self._is_divided:
            inputs["shares"] = config_digest(config, "split")
        for section, table in (("users", config.users), ("items", config.items)):
            if table:
                inputs[section] = require_raw(config, table, raw.dt, f"{section}.path", raw.recorder).digest
        if self._clicks:
            inputs["earlier_clicks"] = self._clicks.digest_before(raw.dt)
        return inputs

    def _count_inputs(self, raw: RawFiles) -> dict[str, str]:
        return self._with_counted(self._prepared_inputs(raw))

    def _with_counted(self, prepared: dict[str, str]) -> dict[str, str]:
        """Returns the inputs of the value counts of a day from those of its prepared rows."""
        return {**prepared, "counted": digest_of([_COUNTS_FORMAT, *self._counted_columns()])}

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
        for split in SPLITS if self._is_divided else (None,):
            for path in data_files(self._prepared(dt), manifest, split):
                yield split, FileSplit(path, 0, None)

    # Preparing

    def _prepare(self, days: Sequence[RawFiles]) -> None:
        """Scans the raw logs of some days, and publishes their quarantine and their prepared rows.

        The stored rows are deleted at the end, also if a day has an error.
        """
        if not days:
            return
        for raw in days:  # their rows get the attributes of the present tables
            self._kept.discard(raw.dt)
            self._inputs_of.pop((raw.dt, raw.digest), None)
        run_id = uuid.uuid4().hex[:12]
        try:
            self._prepare_days(days, run_id)
        finally:
            delete_spilled_of(self._workers.folder, run_id)

    def _prepare_days(self, days: Sequence[RawFiles], run_id: str) -> None:
        layout = layout_of_days(self._config, days)
        preparation = self._preparation(layout)
        splits: dict[str, list[FileSplit]] = {}
        for part in layout.reader.splits():
            splits.setdefault(part.path, []).append(part)
        scans: list[ScanTask] = []
        of_days: list[dict[int, FileSplit]] = []
        buckets: list[int] = []
        for raw in days:
            parts = [part for path in raw.paths for part in splits.get(path, ())]
            buckets.append(self._buckets(parts, len(days)))
            of_days.append(dict(enumerate(parts, start=len(scans))))
            bounds = bounds_of_day(self._config, raw.dt)
            by = USER_KEY if self._config.keys else None
            for part in parts:
                spill = Spill(f"{run_id}-{len(scans)}", self._log_columns(), by, buckets[-1])
                scans.append(ScanTask(part, "", day=bounds, spill=spill))
        scanned = scan_splits(self._workers, scans, layout, self._parsed_columns())
        summaries = collect_summaries(scanned)
        tasks: list[BucketTask] = []
        attempts = []
        good: list[int] = []
        cuts: dict[int, Cuts | None] = {}
        for index, (raw, of_day) in enumerate(zip(days, of_days, strict=True)):
            day = ScannedDay(raw, of_day, summaries)
            quarantine = self._lake.quarantine.partition(raw.dt)
            if not self._has_quarantine(raw):
                publish_quarantine(self._config, quarantine, day, scanned, self._log_inputs(raw))
            counts = DayCounts.from_manifest(read_manifest(quarantine))
            check_day(self._config, raw, counts, quarantine, warn=False)
            if self._is_divided and not counts.good:
                raise no_good_row() if counts.rows_in else no_row(raw.dt, raw.paths[0])
            good.append(sum(summary.good for _, summary in day.split_summaries()))
            partition = self._prepared(raw.dt)
            attempts.append(new_attempt(partition))
            spills = tuple((f"{run_id}-{task}", first_row) for task, _, first_row, _ in day.first_lines())
            for bucket in range(buckets[index]):
                file = partition.file(f"{attempts[-1]}/part-{bucket:05d}.parquet")
                tasks.append(BucketTask(index, raw.dt, spills, bucket, file))
            if self._is_cut_by_position:
                cuts[index] = self._position_cuts(day, spills, buckets[index])
        inputs = self._day_inputs(days, tasks, preparation, cuts)
        written = prepare_buckets(self._workers, tasks, preparation, inputs)
        for index, raw in enumerate(days):
            files = [
                file
                for task, of_task in zip(tasks, written, strict=True)
                if task.day == index
                for file in of_task
            ]
            self._publish_prepared(raw, attempts[index], files, good[index])

    def _publish_prepared(
        self, raw: RawFiles, attempt: str, files: Sequence[PreparedFile], good: int
    ) -> None:
        """Publishes the prepared rows of a day.

        Raises:
            InfrastructureError: not all of the `good` rows of the log were read: stored rows are lost.
        """
        read = sum(file.good for file in files)
        if read != good:
            raise InfrastructureError(
                f"{raw.dt}: {good} good rows were stored for their preparation, but {read} were read",
                f"check whether a program deletes files in {self._workers.folder}, and run the job again",
            )
        publish_files(
            self._prepared(raw.dt),
            {labelled_file(attempt, file.split, file_name(file.path)): file.split for file in files},
            inputs=self._prepared_inputs(raw),
            expected_rows=sum(file.rows for file in files),
            grace_hours=self._config.output.grace_hours,
        )

    @property
    def _is_cut_by_position(self) -> bool:
        """Returns whether the position of a row in the log decides in which split it is."""
        return self._config.split.by == "fraction" and self._config.log.event_time is None

    def _position_cuts(self, day: ScannedDay, spills: Sequence[tuple[str, int]], buckets: int) -> Cuts | None:
        """Returns the row_ids of the last train row and of the last validation row."""
        good = [summary.good for _, summary in day.split_summaries()]

        def row_ids(index: int) -> np.ndarray:
            name, first_row = spills[index]
            return spilled_lines(self._workers.folder, name, buckets) + first_row

        return position_cuts(good, row_ids, self._config.split)

    def _parsed_columns(self) -> tuple[str, ...]:
        return tuple(name for name in self._log_columns() if name in self._config.log.names)

    def _buckets(self, file_splits: Sequence[FileSplit], days: int) -> int:
        """Returns the number of tasks that prepare a day. Without keys, one task has all rows of the day."""
        config = self._config
        user = config.keys.user if config.keys else None
        if user is None or not keep_users_together(self._plan.changers, user):
            return 1
        size = sum(part.bytes * (_COMPRESSED if compression(part.path) else 1) for part in file_splits)
        most = _TASK_BYTES if days > 1 else min(_TASK_BYTES, max(size // self._workers.parallelism, 2**18))
        return min(_MAX_BUCKETS, buckets_for(size, max(most, 1)))

    def _preparation(self, layout: FileLayout) -> Preparation:
        config = self._config
        types = {name: pa.string() for name in raw_keys(config.keys)}
        types |= {ROW_ID: pa.int64(), LABEL: pa.float32()}
        types |= {EVENT_TIME: pa.int64()} if config.log.event_time else {}
        types |= {WEIGHT: pa.float32()} if config.log.label.weights is not None else {}
        stored = self._log_columns()
        raw = {name: _ARROW_TYPES[kind] for name, kind in layout.types.items() if name in stored}
        tables = {"users": config.users, "items": config.items}
        keys = {"users": config.keys.user, "items": config.keys.item} if config.keys else {}
        return Preparation(
            split=config.split if self._is_divided else None,
            history=config.history,
            negatives=config.negatives,
            item_column=config.keys.item if config.keys else "",
            position_column=config.serving.row_column,
            has_time=config.log.event_time is not None,
            keys_of_tables={name: keys[name] for name, table in tables.items() if table and name in keys},
            changers=self._plan.changers,
            columns=self._columns(),
            types={**raw, **types},
        )

    def _day_inputs(
        self,
        days: Sequence[RawFiles],
        tasks: Sequence[BucketTask],
        preparation: Preparation,
        cuts: Mapping[int, Cuts | None],
    ) -> list[DayInputs]:
        """Reads the tables that tasks need, and computes the items of each day, and its cuts by time.

        `cuts` has the cuts by position of each day, by its index.
        """
        inputs = []
        for raw in days:
            shown = impressions_table(self._workers, self._config, raw)
            inputs.append(
                DayInputs(
                    earlier=self._clicks.files_before(raw.dt) if self._clicks else None,
                    impressions=None if shown is None else save_table(shown, self._new_file()),
                    tables={
                        section: self._attributes(raw, section, key)
                        for section, key in preparation.keys_of_tables.items()
                    },
                )
            )
        if preparation.split and preparation.split.by == "fraction":
            cuts = cuts or self._cuts(tasks, preparation)
            inputs = [replace(of_day, cuts=cuts.get(index)) for index, of_day in enumerate(inputs)]
        if preparation.negatives:
            folder = self._new_folder()
            paths = items_of_buckets(self._workers, tasks, preparation, inputs, str(folder))
            for index in range(len(days)):
                parts = [
                    load_table(path) for task, path in zip(tasks, paths, strict=True) if task.day == index
                ]
                items = self._new_folder()
                merge_items(parts).save(items)
                inputs[index] = replace(inputs[index], items=str(items))
        return inputs

    def _cuts(self, tasks: Sequence[BucketTask], preparation: Preparation) -> dict[int, Cuts | None]:
        """Returns the cuts of each day by its index."""
        counted = times_of(self._workers, tasks, preparation)
        days = counted["day"].to_numpy()
        cuts = {}
        for day in np.unique(days).tolist():
            of_day = counted.filter(pa.array(days == day))
            times, counts = of_day["time"].to_numpy(), of_day["count"].to_numpy()
            cuts[day] = time_cuts(times, counts, self._config.split)
        return cuts

    def _attributes(self, raw: RawFiles, section: str, key: str) -> str:
        """Returns the path of a file with the rows of a table of attributes. Each table is read once."""
        config = self._config
        table: RawTable | None = config.users if section == "users" else config.items
        if table is None:
            raise ValueError(f"internal error, please report: the section {section} is not set")
        files = require_raw(config, table, raw.dt, f"{section}.path", raw.recorder)
        known = (section, *files.paths)
        if known not in self._saved:
            rows = read_attribute_table(config, table, key, section, raw.dt, key, raw.recorder)
            self._saved[known] = save_table(rows, self._new_file())
        return self._saved[known]

    def _new_file(self) -> str:
        return str(self._workers.folder / f"{uuid.uuid4().hex[:12]}.arrow")

    def _new_folder(self) -> Path:
        folder = self._workers.folder / uuid.uuid4().hex[:12]
        folder.mkdir()
        return folder

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
                split = SPLITS[0] if self._is_divided else None
                name = labelled_file(attempts[raw.dt], split, f"part-{len(tasks):05d}.parquet")
                tasks.append(_CountTask(None, partition.file(name), buckets))
                of_tasks.append((raw.dt, split))
        counted = self._workers.collect(
            len(tasks), partial(_count_file, tuple(tasks), tuple(self._counted_columns()))
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
                grace_hours=self._config.output.grace_hours,
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
