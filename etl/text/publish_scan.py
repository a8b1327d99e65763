"""Publishes the results of the scan pass for a day: the day's quarantine and the day's value counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from conf.errors import DataError
from conf.types import Config
from etl.raw.file_splits import FileSplit
from etl.raw.files import RawFiles
from etl.text.scan_pass import SplitSummary
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


@dataclass(frozen=True)
class ScannedDay:
    """One day that a scan pass has read.

    Attributes:
        raw: the raw files of the day.
        splits: maps the index of each of the day's tasks to its file split, in the order of the day's lines.
        summaries: maps the index of each task to the summary of its file split. Tasks of other days are
            included.
    """

    raw: RawFiles
    splits: Mapping[int, FileSplit]
    summaries: Mapping[int, SplitSummary]

    def split_summaries(self) -> Iterator[tuple[FileSplit, SplitSummary]]:
        """Returns the day's file splits with their summaries, in order."""
        return ((file_split, self.summaries[task]) for task, file_split in self.splits.items())

    def first_lines(self) -> list[tuple[int, str, int, int]]:
        """Returns (task, path, row_id, line) for each file split of the day.

        Here `task` is the index of the split's task, `path` is the raw file, `row_id` is that of the split's
        first line, and `line` is the index of this line in the file.
        """
        starts: list[tuple[int, str, int, int]] = []
        row_id, line_in_file, path = 0, 0, ""
        for task, file_split in self.splits.items():
            line_in_file, path = (0 if file_split.path != path else line_in_file), file_split.path
            starts.append((task, path, row_id, line_in_file))
            row_id += self.summaries[task].lines
            line_in_file += self.summaries[task].lines
        return starts


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


def publish_counts(
    config: Config, partition: Partition, day: ScannedDay, attempt: str, inputs: Mapping[str, str]
) -> None:
    """Publishes the files of value counts that the summaries of a day refer to.

    Args:
        config: the configuration of the run.
        partition: the day's partition of the table of value counts.
        day: the day to publish.
        attempt: folder of the files below the partition (storage.publish.new_attempt).
        inputs: the inputs for the partition's manifest.

    Raises:
        DataError: the day has no line.
    """
    splits = [*day.split_summaries()]
    if not splits:
        raise DataError(f"the raw log of {day.raw.dt} has no lines", "deliver the log of that day again")
    publish_files(
        partition,
        dict.fromkeys(f"{attempt}/{file_name(summary.file)}" for _, summary in splits),
        inputs=inputs,
        expected_rows=sum(sum(summary.values.values()) for _, summary in splits),
        facts={
            "slices": [
                [file_split.path, file_split.start, file_split.end, summary.lines]
                for file_split, summary in splits
            ],
            "values": _sum_by_name([summary.values for _, summary in splits]),
        },
        grace_hours=config.output.grace_hours,
    )


def file_name(path: str) -> str:
    """Returns the last part of a path."""
    return path.rsplit("/", 1)[1]


def _sum_by_name(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Adds mappings of names to numbers, name by name. All mappings must have the same names."""
    return {name: sum(part[name] for part in parts) for name in parts[0]}


def _write_empty(partition: Partition, name: str) -> None:
    path = partition.file(name)
    files, inner = file_io.filesystem(path)
    if file_io.is_local(path):
        files.create_dir(inner.rsplit("/", 1)[0], recursive=True)
    with files.open_output_stream(inner) as sink:
        pq.write_table(_QUARANTINE_SCHEMA.empty_table(), sink)
