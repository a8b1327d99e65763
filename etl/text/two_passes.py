"""Processes the days of a text log in two passes.

The scan pass publishes the quarantine and the value counts of each day. After the workflow has been fitted,
the encode pass writes the features.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from conf.dates import days_since_epoch
from conf.names import scheme_of
from conf.types import Config
from etl.native.library import is_built
from etl.ops.base import LISTS
from etl.ops.choose_engine import choose_engine
from etl.quality.column_summary import Summary
from etl.quality.counts import Column
from etl.quality.new_values import Values
from etl.raw.file_splits import FileSplit
from etl.raw.files import RawFiles, raw_path
from etl.raw.layout_digest import layout_digest
from etl.raw.misdated import bounds_of_day
from etl.spark.quarantine import DayCounts
from etl.text.encode_pass import EncodeTask, Encoding, encode_splits
from etl.text.file_layout import FileLayout, layout_of_days
from etl.text.publish_quarantine import publish_quarantine
from etl.text.publish_value_counts import file_name, publish_counts
from etl.text.scan_pass import ScanTask, collect_summaries, release, scan_splits
from etl.text.scanned_day import ScannedDay
from etl.value_counts.count_file_format import BUCKET_BYTES, buckets_for
from etl.value_counts.report_statistics import summarise_and_compare
from etl.value_counts.requests import Counts
from etl.workflow.feature_plan import Plan, plan
from etl.workflow.fitted_workflow import FittedWorkflow
from spark.workers import Workers
from storage.manifest import Manifest, current_manifest, data_files, digest_of, read_manifest
from storage.paths import Lake
from storage.publish import Rules, new_attempt, publish_files

log = logging.getLogger("nightrank.etl")

# Version of the files of value counts. Days with another version are scanned again.
_COUNTS_FORMAT = 2


@dataclass(frozen=True)
class _ScannedSplit:
    """A file split and the number of its lines."""

    file_split: FileSplit
    lines: int


def text_passes_apply(workers: Workers, config: Config) -> bool:
    """Returns whether Python workers can read the raw log themselves, without Spark frames.

    They can if the log is text (tsv or csv) and each of its splits consists of whole days. Spark frames are
    necessary for logs with tables of user or item attributes, with sampled negatives, with histories, with
    positions of impressions, or with operators that change rows, and for logs on HDFS, which only Spark's
    Hadoop client can read. Without the compiled scanner, all logs are read as frames.
    """
    applies = (
        choose_engine(config.workflow.engine) == "arrow"
        and config.log.format in ("tsv", "csv", "jsonl")
        and config.split.by == "day"
        and config.users is None
        and config.items is None
        and config.negatives is None
        and config.history is None
        and config.serving.row_column is None
        and not plan(config).changers
        and scheme_of(raw_path(config, config.log, "")) != "hdfs"
    )
    if applies and not is_built():
        log.warning(
            "the compiled scanner of text is missing, so Spark reads the raw log, which is several times "
            "slower; run `make setup`"
        )
        return False
    return applies


class TextPasses:
    """The two passes over the days of one run of build_features."""

    def __init__(self, workers: Workers, config: Config, lake: Lake) -> None:
        self._workers, self._config, self._lake = workers, config, lake
        self._plan: Plan = plan(config)
        self._splits: dict[str, list[_ScannedSplit]] = {}
        self._scratch: dict[
            FileSplit, str
        ] = {}  # maps each split that this run has scanned to the name of its saved block

    def scan_days(self, days: Sequence[RawFiles]) -> dict[str, DayCounts]:
        """Scans the days that are not scanned yet, and returns the row counts of each day.

        The days are scanned together. Then their quarantine and their value counts are published.
        """
        missing = [raw for raw in days if not self.is_scanned(raw)]
        if missing:
            self._scan(missing)
        counts = {}
        for raw in days:
            quarantine = read_manifest(self._lake.quarantine.partition(raw.dt))
            counts[raw.dt] = DayCounts.from_manifest(quarantine)
            stored = read_manifest(self._lake.value_counts.partition(raw.dt)).facts["slices"]
            self._splits[raw.dt] = [
                _ScannedSplit(FileSplit(path, start, end), lines) for path, start, end, lines in stored
            ]
        return counts

    def is_scanned(self, raw: RawFiles) -> bool:
        """Returns whether the quarantine and the value counts of this log of a day are published."""
        tables = (self._lake.quarantine, self._lake.value_counts)
        return all(
            current_manifest(table.partition(raw.dt), inputs) is not None
            for table, inputs in zip(tables, self._inputs(raw), strict=True)
        )

    def counts_of(self, raw: RawFiles) -> Counts:
        """Returns the value counts of a scanned day."""
        partition = self._lake.value_counts.partition(raw.dt)
        day = days_since_epoch(raw.dt)
        manifest = read_manifest(partition)
        files = tuple((path, day) for path in data_files(partition, manifest))
        return Counts(files, day, manifest.facts["values"])

    def figures_of(
        self, days: Sequence[RawFiles], train: Sequence[RawFiles], day: RawFiles, columns: Sequence[Column]
    ) -> tuple[list[dict[str, Summary]], dict[str, Values]]:
        """Returns summaries of `days`, and the comparison of `day` with the training days.

        See etl.value_counts.report_statistics.summarise_and_compare.
        """
        return summarise_and_compare(
            self._workers,
            [self.counts_of(raw) for raw in days],
            [self.counts_of(raw) for raw in train],
            self.counts_of(day),
            columns,
        )

    def encodes(self, workflow: FittedWorkflow) -> bool:
        """Returns whether workers can compute all features.

        They can if no chain needs Spark frames, and all tables fit in memory.
        """
        return workflow.engine == "arrow" and not any(chain.sql_only for chain in workflow.chains)

    def encode_days(
        self,
        workflow: FittedWorkflow,
        days: Mapping[str, tuple[RawFiles, DayCounts, dict[str, str]]],
        rules: Rules,
    ) -> dict[str, Manifest]:
        """Writes the feature partitions of scanned days in one job, and publishes them.

        Args:
            workflow: the fitted workflow, which computes the features.
            days: maps each day to its raw files, its row counts, and the inputs for its manifest.
            rules: checks for the columns of the feature table.
        """
        table = self._lake.features(workflow.version)
        tasks: list[EncodeTask] = []
        tasks_of_day: dict[str, range] = {}
        attempts: dict[str, str] = {}
        for dt in days:
            partition = table.partition(dt)
            attempts[dt], first_row = new_attempt(partition), 0
            tasks_of_day[dt] = range(len(tasks), len(tasks) + len(self._splits[dt]))
            for index, scanned in enumerate(self._splits[dt]):
                path = partition.file(f"{attempts[dt]}/part-{index:05d}.parquet")
                scratch = self._scratch.get(scanned.file_split)
                tasks.append(EncodeTask(scanned.file_split, first_row, path, scratch))
                first_row += scanned.lines
        encoding = Encoding(
            layout=self._layout([raw for raw, _, _ in days.values()]),
            chains=workflow.chains,
            spec=workflow.spec,
            tables=workflow.local,
            row_group_rows=self._config.output.row_group_rows,
        )
        written = encode_splits(self._workers, tasks, encoding)
        return {
            dt: publish_files(
                table.partition(dt),
                dict.fromkeys(f"{attempts[dt]}/{file_name(written[task])}" for task in tasks_of_day[dt]),
                inputs=inputs,
                expected_rows=counts.good,
                rows_in=counts.rows_in,
                dropped=counts.dropped,
                rules=rules,
                grace_hours=self._config.output.grace_hours,
            )
            for dt, (_, counts, inputs) in days.items()
        }

    def _counted_columns(self) -> list[str]:
        """Returns the raw columns whose values are counted. They are inputs of features, and no lists."""
        inputs = {name for chain in self._plan.chains for name in chain.inputs}
        types = self._config.log.types
        return [name for name, kind in types.items() if name in inputs and kind not in LISTS]

    def _layout(self, days: Sequence[RawFiles]) -> FileLayout:
        return layout_of_days(self._config, days)

    def _inputs(self, raw: RawFiles) -> tuple[dict[str, str], dict[str, str]]:
        """Returns the inputs for two manifests of a day: of its quarantine, and of its value counts."""
        shared = {"raw": raw.digest, "layout": layout_digest(self._config)}
        return shared, {**shared, "columns": digest_of([_COUNTS_FORMAT, *self._counted_columns()])}

    def _scan(self, days: Sequence[RawFiles]) -> None:
        run_id = uuid.uuid4().hex[:12]
        tasks: list[ScanTask] = []
        splits_of_day: dict[str, dict[int, FileSplit]] = {}
        attempts: dict[str, str] = {}
        layout = self._layout(days)
        split_of = _by_path(layout.reader.splits())
        for raw in days:
            partition = self._lake.value_counts.partition(raw.dt)
            attempts[raw.dt] = new_attempt(partition)
            file_splits = [part for path in raw.paths for part in split_of.get(path, ())]
            splits_of_day[raw.dt] = dict(enumerate(file_splits, start=len(tasks)))
            buckets = buckets_for(sum(file_split.bytes for file_split in file_splits), BUCKET_BYTES)
            for index, file_split in enumerate(file_splits):
                path = partition.file(f"{attempts[raw.dt]}/part-{index:05d}.parquet")
                scratch = self._scratch[file_split] = f"{run_id}-{len(tasks)}"
                bounds = bounds_of_day(self._config, raw.dt)
                tasks.append(ScanTask(file_split, path, buckets, scratch, bounds))
        scanned = scan_splits(self._workers, tasks, layout, self._counted_columns())
        try:
            summaries = collect_summaries(scanned)
            scanned_days = [ScannedDay(raw, splits_of_day[raw.dt], summaries) for raw in days]
            for day in scanned_days:
                partition = self._lake.quarantine.partition(day.raw.dt)
                publish_quarantine(self._config, partition, day, scanned, self._inputs(day.raw)[0])
            # When an executor is lost, Spark evaluates `scanned` again and writes files of counts under new
            # names. It never changes the files that the summaries refer to.
            for day in scanned_days:
                partition = self._lake.value_counts.partition(day.raw.dt)
                publish_counts(self._config, partition, day, attempts[day.raw.dt], self._inputs(day.raw)[1])
        finally:
            release(scanned)


def _by_path(file_splits: Sequence[FileSplit]) -> dict[str, list[FileSplit]]:
    """Returns the file splits of each file, in order."""
    by_path: dict[str, list[FileSplit]] = {}
    for part in file_splits:
        by_path.setdefault(part.path, []).append(part)
    return by_path
