"""Days of text through the two passes: quarantine and value counts first, feature partitions after the fit."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.dates import days_since_epoch
from conf.errors import DataError
from conf.names import scheme_of
from conf.types import Config
from etl.native.library import is_built
from etl.ops.engine import choose_engine
from etl.quality.column_summary import Summary
from etl.quality.counts import Column
from etl.quality.day_values import Values
from etl.raw.file_splits import Slice, cut
from etl.raw.files import RawFiles, raw_path
from etl.spark.quarantine import DayCounts, layout_digest
from etl.text.encode_pass import Encoding, encode
from etl.text.encode_pass import Task as EncodeTask
from etl.text.layout import FileLayout, file_layout
from etl.text.scan_pass import Summary as SliceSummary
from etl.text.scan_pass import Task as SurveyTask
from etl.text.scan_pass import summaries, survey
from etl.value_counts.count_files import BUCKET_BYTES, buckets_for
from etl.value_counts.profiles import compare_days, summarise_days
from etl.value_counts.requests import Counts
from etl.workflow.feature_plan import Plan, plan
from etl.workflow.fitted_workflow import FittedWorkflow
from storage import file_io
from storage.feature_spec import ROW_ID
from storage.manifest import Manifest, current_manifest, data_files, digest_of, read_manifest
from storage.paths import Lake, Partition
from storage.publish import Rules, new_attempt, publish, publish_files

log = logging.getLogger("nightrank.etl")

_QUARANTINE_SCHEMA = pa.schema(
    [
        (ROW_ID, pa.int64()),
        ("source_file", pa.string()),
        ("line_number", pa.int64()),
        ("reason", pa.string()),
        ("line", pa.string()),
    ]
)


_COUNTS_FORMAT = 2  # of the files of value counts: days of another one are read again


@dataclass(frozen=True)
class SurveyedSlice:
    """A slice with its number of lines."""

    part: Slice
    lines: int


def flow_applies(spark: SparkSession, config: Config) -> bool:
    """Whether workers can read the days' files themselves: text, a partition a day, nothing joined or drawn.

    All else goes through frames: attributes, negatives, operators that change rows, splits within a partition, logs on
    HDFS (which Spark's Hadoop client reads). So do all logs where the compiled scanner was not built.
    """
    applies = (
        choose_engine(spark, config.workflow.engine) == "arrow"
        and config.log.format in ("tsv", "csv")
        and config.split.by == "day"
        and config.users is None
        and config.items is None
        and config.negatives is None
        and not plan(config).changers
        and scheme_of(raw_path(config, config.log, "")) != "hdfs"
    )
    if applies and not is_built():
        log.warning(
            "the scanner of text is not built here: days go through Spark, some times slower; run `make setup`"
        )
        return False
    return applies


class FileFlow:
    """The window of one run of build_features."""

    def __init__(self, spark: SparkSession, config: Config, lake: Lake) -> None:
        self._spark, self._config, self._lake = spark, config, lake
        self._plan: Plan = plan(config)
        self._slices: dict[str, list[SurveyedSlice]] = {}
        self._scratch: dict[Slice, str] = {}  # of the slices that this run parsed

    def survey(self, days: Sequence[RawFiles]) -> dict[str, DayCounts]:
        """Day → counts; the days not surveyed yet are read, all in one job, and their tables published."""
        missing = [raw for raw in days if not self._is_surveyed(raw)]
        if missing:
            self._survey(missing)
        found = {}
        for raw in days:
            known = read_manifest(self._lake.quarantine.partition(raw.dt))
            good = known.rows_in - sum(known.dropped.values())
            found[raw.dt] = DayCounts(known.rows_in, good, known.rows, dict(known.dropped))
            slices = read_manifest(self._lake.value_counts.partition(raw.dt)).facts["slices"]
            self._slices[raw.dt] = [
                SurveyedSlice(Slice(path, start, end), lines) for path, start, end, lines in slices
            ]
        return found

    def counts_of(self, raw: RawFiles) -> Counts:
        """The value counts of a surveyed day."""
        partition = self._lake.value_counts.partition(raw.dt)
        day = days_since_epoch(raw.dt)
        manifest = read_manifest(partition)
        files = tuple((path, day) for path in data_files(partition, manifest))
        return Counts(files, day, manifest.facts["values"])

    def has_counts_of(self, columns: Sequence[Column]) -> bool:
        """Whether the values of all these columns are counted: those of real numbers are not."""
        return {column.name for column in columns} <= set(self._counted())

    def summaries_of(self, days: Sequence[RawFiles], columns: Sequence[Column]) -> list[dict[str, Summary]]:
        """Per surveyed day: column (and the label) → the summary of its values."""
        return summarise_days(self._spark, [self.counts_of(raw) for raw in days], columns)

    def compared(
        self, train: Sequence[RawFiles], day: RawFiles, columns: Sequence[Column]
    ) -> dict[str, Values]:
        """Column of names → its values on a surveyed day against the training days."""
        return compare_days(self._spark, [self.counts_of(raw) for raw in train], self.counts_of(day), columns)

    def encodes(self, workflow: FittedWorkflow) -> bool:
        """Whether workers can compute every chain: none needs frames, and no table is too large for their memory."""
        return workflow.engine == "arrow" and not any(chain.sql_only for chain in workflow.chains)

    def encode(
        self,
        workflow: FittedWorkflow,
        days: Mapping[str, tuple[RawFiles, DayCounts, dict[str, str]]],
        rules: Rules,
    ) -> dict[str, Manifest]:
        """Publishes the feature partitions of surveyed days, all written in one job.

        Args:
            days: day → its raw files, counts, and the inputs of its manifest.
        """
        tasks: list[EncodeTask] = []
        of_day: dict[str, list[int]] = {}
        attempts: dict[str, str] = {}
        for dt in days:
            partition = self._lake.features(workflow.version).partition(dt)
            attempts[dt], first = new_attempt(partition), 0
            for index, surveyed in enumerate(self._slices[dt]):
                name = f"{attempts[dt]}/part-{index:05d}.parquet"
                of_day.setdefault(dt, []).append(len(tasks))
                scratch = self._scratch.get(surveyed.part)
                tasks.append(EncodeTask(surveyed.part, first, partition.file(name), scratch))
                first += surveyed.lines
        encoding = Encoding(
            layout=self._layout([raw for raw, _, _ in days.values()]),
            chains=workflow.chains,
            spec=workflow.spec,
            tables=workflow.local,
            row_group_rows=self._config.output.row_group_rows,
        )
        written = encode(self._spark, tasks, encoding)
        return {
            dt: publish_files(
                self._lake.features(workflow.version).partition(dt),
                dict.fromkeys(f"{attempts[dt]}/{_name(written[index])}" for index in of_day[dt]),
                inputs=inputs,
                expected_rows=counts.good,
                rows_in=counts.rows_in,
                dropped=counts.dropped,
                rules=rules,
                grace_hours=self._config.output.grace_hours,
            )
            for dt, (_, counts, inputs) in days.items()
        }

    def _counted(self) -> list[str]:
        """Raw columns whose values are counted: all integers and texts that features are made of."""
        of_features = {name for chain in self._plan.chains for name in chain.inputs}
        return [
            column.name
            for column in self._config.log.columns
            if column.name in of_features and column.type != "float"
        ]

    def _layout(self, days: Sequence[RawFiles]) -> FileLayout:
        return file_layout(self._config, tuple(path for raw in days for path in raw.paths))

    def _inputs(self, raw: RawFiles) -> tuple[dict[str, str], dict[str, str]]:
        """Inputs of the quarantine's manifest and of the value counts'."""
        known = {"raw": raw.digest, "layout": layout_digest(self._config)}
        return known, {**known, "columns": digest_of([_COUNTS_FORMAT, *self._counted()])}

    def _is_surveyed(self, raw: RawFiles) -> bool:
        tables = (self._lake.quarantine, self._lake.value_counts)
        return all(
            current_manifest(table.partition(raw.dt), inputs) is not None
            for table, inputs in zip(tables, self._inputs(raw), strict=True)
        )

    def _survey(self, days: Sequence[RawFiles]) -> None:
        run = uuid.uuid4().hex[:12]
        tasks: list[SurveyTask] = []
        of_day: dict[str, list[int]] = {raw.dt: [] for raw in days}
        attempts: dict[str, str] = {}
        for raw in days:
            partition = self._lake.value_counts.partition(raw.dt)
            attempts[raw.dt] = new_attempt(partition)
            parts = cut(raw.paths)
            buckets = buckets_for(sum(part.bytes for part in parts), BUCKET_BYTES)
            for index, part in enumerate(parts):
                name = f"{attempts[raw.dt]}/part-{index:05d}.parquet"
                of_day[raw.dt].append(len(tasks))
                scratch = f"{run}-{len(tasks)}"
                self._scratch[part] = scratch
                tasks.append(SurveyTask(part, partition.file(name), buckets, scratch))
        surveyed = survey(self._spark, tasks, self._layout(days), self._counted()).persist()
        try:
            found = summaries(surveyed)
            for raw in days:
                mine = of_day[raw.dt]
                self._publish_quarantine(raw, surveyed, {index: tasks[index].part for index in mine}, found)
            # Where an executor was lost, another look at `surveyed` writes files of counts again, under other names: those that
            # are published stay as they are.
            for raw in days:
                attempt = attempts[raw.dt]
                counted = {f"{attempt}/{_name(found[i].file)}": tasks[i].part for i in of_day[raw.dt]}
                self._publish_counts(raw, counted, [found[i] for i in of_day[raw.dt]])
        finally:
            surveyed.unpersist()

    def _publish_quarantine(
        self,
        raw: RawFiles,
        surveyed: DataFrame,
        parts: Mapping[int, Slice],
        found: Mapping[int, SliceSummary],
    ) -> None:
        dropped: Counter[str] = Counter()
        starts: list[tuple[int, str, int, int]] = []
        first, in_file, path = 0, 0, ""
        for index, part in parts.items():
            in_file, path = (0 if part.path != path else in_file), part.path
            starts.append((index, part.path, first, in_file))
            first += found[index].lines
            in_file += found[index].lines
            dropped.update(found[index].dropped)
        filtered = [each.reason for each in self._plan.filters]
        bad = sum(count for reason, count in dropped.items() if reason not in filtered)
        partition = self._lake.quarantine.partition(raw.dt)
        shared: dict[str, Any] = {
            "inputs": self._inputs(raw)[0],
            "expected_rows": bad,
            "rows_in": sum(found[index].good for index in parts) + sum(dropped.values()),
            "dropped": dict(sorted(dropped.items())),
            "grace_hours": self._config.output.grace_hours,
        }
        if not bad:
            name = f"{new_attempt(partition)}/part-00000.parquet"
            _write_empty(partition, name)
            publish_files(partition, {name: None}, **shared)
            return
        offsets = self._spark.createDataFrame(
            starts, "task int, source_file string, first_row long, first_line long"
        )
        lines = surveyed.where(F.col("reason").isNotNull() & ~F.col("reason").isin(*filtered))
        rows = lines.join(F.broadcast(offsets), "task").select(
            (F.col("first_row") + F.col("line")).alias(ROW_ID),
            "source_file",
            (F.col("first_line") + F.col("line") + 1).alias("line_number"),
            "reason",
            F.col("text").alias("line"),
        )
        publish(
            rows, partition, row_group_rows=self._config.output.row_group_rows, sort_by=[ROW_ID], **shared
        )

    def _publish_counts(
        self, raw: RawFiles, files: Mapping[str, Slice], found: Sequence[SliceSummary]
    ) -> None:
        slices = [
            [part.path, part.start, part.end, summary.lines]
            for part, summary in zip(files.values(), found, strict=True)
        ]
        if not files:
            raise DataError(f"the raw log of {raw.dt} holds no line", "deliver the log of that day again")
        publish_files(
            self._lake.value_counts.partition(raw.dt),
            dict.fromkeys(files),
            inputs=self._inputs(raw)[1],
            expected_rows=sum(sum(summary.values.values()) for summary in found),
            facts={"slices": slices, "values": _added([summary.values for summary in found])},
            grace_hours=self._config.output.grace_hours,
        )


def _name(path: str) -> str:
    return path.rsplit("/", 1)[1]


def _added(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The sum of each name over all parts, zeros included."""
    return {name: sum(part[name] for part in parts) for name in parts[0]} if parts else {}


def _write_empty(partition: Partition, name: str) -> None:
    path = partition.file(name)
    files, inner = file_io.filesystem(path)
    if file_io.is_local(path):
        files.create_dir(inner.rsplit("/", 1)[0], recursive=True)
    with files.open_output_stream(inner) as sink:
        pq.write_table(_QUARANTINE_SCHEMA.empty_table(), sink)
