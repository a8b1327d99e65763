"""Publishes the quarantine of a day of text: the lines that the scan pass could not parse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from conf.types import Config
from etl.text.scanned_day import ScannedDay
from etl.workflow.feature_plan import plan
from storage import file_io
from storage.feature_spec import ROW_ID
from storage.paths import Partition
from storage.publish import new_attempt, publish, publish_files

_QUARANTINE_SCHEMA = pa.schema(
    [
        (ROW_ID, pa.int64()),
        ("source_file", pa.string()),
        ("line_number", pa.int64()),
        ("reason", pa.string()),
        ("line", pa.string()),
    ]
)


def publish_quarantine(
    config: Config, partition: Partition, day: ScannedDay, scanned: DataFrame, inputs: Mapping[str, str]
) -> None:
    """Publishes the lines of a day that cannot be parsed, with their line numbers.

    Args:
        config: the configuration of the run.
        partition: the day's partition of the quarantine table.
        day: the day to publish.
        scanned: the frame that `scan_splits` returned.
        inputs: the inputs for the partition's manifest.
    """
    dropped: Counter[str] = Counter()
    for _, summary in day.split_summaries():
        dropped.update(summary.dropped)
    filtered = [operator.reason for operator in plan(config).filters]
    bad = sum(count for reason, count in dropped.items() if reason not in filtered)
    shared: dict[str, Any] = {
        "inputs": inputs,
        "expected_rows": bad,
        "rows_in": sum(summary.good for _, summary in day.split_summaries()) + sum(dropped.values()),
        "dropped": dict(sorted(dropped.items())),
        "grace_hours": config.output.grace_hours,
    }
    if not bad:
        name = f"{new_attempt(partition)}/part-00000.parquet"
        _write_empty(partition, name)
        publish_files(partition, {name: None}, **shared)
        return
    first_lines = scanned.sparkSession.createDataFrame(
        day.first_lines(), "task int, source_file string, first_row long, first_line long"
    )
    lines = scanned.where(F.col("reason").isNotNull() & ~F.col("reason").isin(*filtered))
    rows = lines.join(F.broadcast(first_lines), "task").select(
        (F.col("first_row") + F.col("line")).alias(ROW_ID),
        "source_file",
        (F.col("first_line") + F.col("line") + 1).alias("line_number"),
        "reason",
        F.col("text").alias("line"),
    )
    publish(rows, partition, row_group_rows=config.output.row_group_rows, sort_by=[ROW_ID], **shared)


def _write_empty(partition: Partition, name: str) -> None:
    path = partition.file(name)
    files, inner = file_io.filesystem(path)
    if file_io.is_local(path):
        files.create_dir(inner.rsplit("/", 1)[0], recursive=True)
    with files.open_output_stream(inner) as sink:
        pq.write_table(_QUARANTINE_SCHEMA.empty_table(), sink)
