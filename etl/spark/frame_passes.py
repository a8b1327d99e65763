"""Prepares the rows of days with Spark frames, for clusters and for `workflow.engine: sql`.

Tasks scan the raw log and store its good rows as Parquet files of the lake. Spark reads these files, prepares
the rows, and writes the table `prepared`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from conf.types import Split
from etl.prepare.prepared_passes import PreparedPasses
from etl.quality.day_counts import DayCounts
from etl.raw.files import RawFiles
from etl.spark.last_clicks import LastClicks, clicks_before
from etl.spark.log_frames import column_types
from etl.spark.prepared_frame import prepare_frame
from etl.split.time_split import SPLIT
from etl.text.file_layout import layout_of_days
from etl.text.scanned_day import ScannedDay
from etl.text.stored_rows import LINE, TASK, RowsFile
from etl.workflow.feature_plan import Plan
from etl.workflow.fitted_workflow import FittedWorkflow
from spark.arrow_frames import spark_types
from spark.workers import Workers
from storage import file_io
from storage.feature_spec import ROW_ID
from storage.manifest import Manifest
from storage.paths import Lake, Partition
from storage.publish import Rules, new_attempt, publish

log = logging.getLogger("nightrank.etl")


class FramePasses(PreparedPasses):
    """The passes over days whose rows Spark prepares."""

    def __init__(self, workers: Workers, plan: Plan, lake: Lake) -> None:
        self._earlier: LastClicks | None = clicks_before(workers, plan, lake)
        super().__init__(workers, plan, lake, self._earlier.digest_before if self._earlier else None)

    def encode_days(
        self,
        workflow: FittedWorkflow,
        days: Mapping[str, tuple[RawFiles, DayCounts, dict[str, str]]],
        rules: Rules,
    ) -> dict[str, Manifest]:
        """Writes the feature partitions of days, and publishes them. The engine `sql` does so with frames."""
        if workflow.engine == "arrow":
            return super().encode_days(workflow, days, rules)
        self._prepare([raw for raw, _, _ in days.values() if not self._is_prepared(raw)])
        table = self._lake.features(workflow.version)
        return {
            dt: self._publish_features(workflow, table.partition(dt), dt, counts, inputs, rules)
            for dt, (_, counts, inputs) in days.items()
        }

    def _publish_features(
        self,
        workflow: FittedWorkflow,
        partition: Partition,
        dt: str,
        counts: DayCounts,
        inputs: Mapping[str, str],
        rules: Rules,
    ) -> Manifest:
        splits: tuple[Split, ...] = ("train", "validation", "test")
        if self._plan.is_divided:
            parts = [self._frame_of(dt, split).withColumn(SPLIT, F.lit(split)) for split in splits]
            rows = parts[0].unionByName(parts[1]).unionByName(parts[2])
        else:
            rows = self._frame_of(dt, None)
        return publish(
            workflow.apply(rows, keep=[SPLIT] if self._plan.is_divided else []),
            partition,
            inputs=inputs,
            row_group_rows=self._plan.config.output.row_group_rows,
            rows_in=counts.rows_in,
            dropped=counts.dropped,
            rules=rules,
            split_column=SPLIT if self._plan.is_divided else None,
            grace_hours=self._plan.config.output.grace_hours,
            **self._expected_rows(counts.good),
        )

    def _prepare_days(self, days: Sequence[RawFiles]) -> None:
        layout = layout_of_days(self._plan, days)
        columns = self._log_columns()
        folders = [self._prepared(raw.dt).file(f"{new_attempt(self._prepared(raw.dt))}-rows") for raw in days]

        def store(day: int, task: int) -> RowsFile:
            return RowsFile(f"{folders[day]}/part-{task:05d}.parquet", columns)

        try:
            scanned = self._scan(days, layout, self._splits_of(days, layout), store)
            for day in scanned:
                self._publish_prepared(day)
        finally:
            for folder in folders:
                for file in file_io.list_files(folder):
                    file_io.filesystem(folder)[0].delete_file(file.path)

    def _publish_prepared(self, day: ScannedDay) -> None:
        raw, config = day.raw, self._plan.config
        rows = prepare_frame(self._workers, self._plan, self._stored_rows(day), raw, self._earlier)
        kept = [name for name in (*self._columns(), SPLIT) if name in rows.columns]
        good = sum(summary.good for _, summary in day.split_summaries())
        manifest = publish(
            rows.select(*kept),
            self._prepared(raw.dt),
            inputs=self._prepared_inputs(raw),
            row_group_rows=config.output.row_group_rows,
            split_column=SPLIT if self._plan.is_divided else None,
            grace_hours=config.output.grace_hours,
            **self._expected_rows(good),
        )
        log.info("%s: %d rows are prepared", raw.dt, manifest.rows)

    def _stored_rows(self, day: ScannedDay) -> DataFrame:
        """Returns the good rows that the scan pass has stored, with their row_ids."""
        spark = self._workers.spark
        types = pa.schema([(TASK, pa.int32()), (LINE, pa.int64()), *self._stored_types().items()])
        files = [summary.stored for _, summary in day.split_summaries() if summary.stored]
        schema = spark_types(types)
        rows = spark.read.schema(schema).parquet(*files) if files else spark.createDataFrame([], schema)
        starts = spark.createDataFrame(
            [(task, first_row) for task, _, first_row, _ in day.first_lines()], f"{TASK} int, _first long"
        )
        numbered = rows.join(F.broadcast(starts), TASK)
        return numbered.select(
            (F.col("_first") + F.col(LINE)).alias(ROW_ID), *(f"`{name}`" for name in self._log_columns())
        )

    def _stored_types(self) -> dict[str, pa.DataType]:
        types = column_types(self._plan, self._log_columns())
        return {name: types[name] for name in self._log_columns()}

    def _expected_rows(self, good: int) -> dict[str, Any]:
        """Returns the number of rows to publish as an argument of `publish`, if it is known."""
        adds = self._plan.config.negatives is not None or not self._plan.keeps_rows
        return {} if adds or self._plan.is_divided else {"expected_rows": good}
