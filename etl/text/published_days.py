"""Publishes what the scan pass and the encode pass compute for a day: quarantine, value counts, features."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import DataError
from conf.types import SPLITS, Split
from etl.quality.day_counts import NOT_KEPT, DayCounts
from etl.raw.file_splits import FileSplit
from etl.raw.files import RawFiles
from etl.raw.row_rules import MISDATED, Misdated, bounds_of_day
from etl.text.encode_pass import EncodeTask, Encoding, encode_splits
from etl.text.parse_block import RowSource, SavedBlock
from etl.text.scan_pass import CountedRows, SplitSummary
from etl.workflow.feature_plan import FeaturePlan
from spark.workers import Workers
from storage.feature_spec import ROW_ID
from storage.manifest import Manifest
from storage.paths import Partition, Table
from storage.publish import Rules, new_attempt, publish, publish_files, write_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from etl.workflow.fitted_workflow import FittedWorkflow


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
        """Returns the day's file splits with their summaries, in the order of the day's lines."""
        return ((file_split, self.summaries[task]) for task, file_split in self.splits.items())

    def first_lines(self) -> list[tuple[int, str, int, int]]:
        """Returns (task, path, row_id, line) for each file split of the day.

        Here `task` is the index of the split's task, and `path` is the raw file. `row_id` is the row_id of
        the split's first line, and `line` is the index of this line in the file.
        """
        starts: list[tuple[int, str, int, int]] = []
        row_id, line_in_file, path = 0, 0, ""
        for task, file_split in self.splits.items():
            line_in_file, path = (0 if file_split.path != path else line_in_file), file_split.path
            starts.append((task, path, row_id, line_in_file))
            row_id += self.summaries[task].lines
            line_in_file += self.summaries[task].lines
        return starts


log = logging.getLogger("nightrank.etl")


# The functions below publish the quarantine of a day: the lines of the raw log that the scan pass rejected.

_SCHEMA = pa.schema(
    [
        (ROW_ID, pa.int64()),
        ("source_file", pa.string()),
        ("line_number", pa.int64()),
        ("reason", pa.string()),
        ("line", pa.string()),
    ]
)


def publish_quarantine(
    plan: FeaturePlan,
    partition: Partition,
    day: ScannedDay,
    scanned: pa.Table | DataFrame,
    inputs: Mapping[str, str],
) -> None:
    """Publishes the rejected lines of a day with their line numbers.

    If a file split has more rejected lines than the quarantine stores, the partition contains only the first
    of them. For each reason, the manifest has the number of rejected lines (`dropped`), and the number of
    rejected lines that the partition does not contain (`not_kept` in its facts).

    Args:
        plan: the plan of the run.
        partition: the day's partition of the quarantine table.
        day: the day to publish, with the summaries of its file splits.
        scanned: the result of `scan_splits`.
        inputs: maps the name of each input of the partition to its digest, for the manifest.
    """
    dropped: Counter[str] = Counter()
    for _, summary in day.split_summaries():
        dropped.update(summary.dropped)
    misdated = Misdated()
    for _, summary in day.split_summaries():
        misdated += summary.misdated
    filtered = plan.reasons_left_out
    bad = sum(count for reason, count in dropped.items() if reason not in filtered)
    not_kept: Counter[str] = Counter()
    for _, summary in day.split_summaries():
        not_kept.update(summary.not_kept)
    facts: dict[str, Any] = {}
    if bounds_of_day(plan.config, day.raw.dt) is not None:
        facts[MISDATED] = misdated.to_facts()
    if not_kept:
        facts[NOT_KEPT] = dict(sorted(not_kept.items()))
        log.warning(
            "%s of the %s rejected lines of %s are counted, but not stored in the quarantine: %s",
            f"{not_kept.total():,}",
            f"{bad:,}",
            day.raw.dt,
            facts[NOT_KEPT],
        )
    shared: dict[str, Any] = {
        "inputs": inputs,
        "expected_rows": bad - not_kept.total(),
        "rows_in": sum(summary.good for _, summary in day.split_summaries()) + sum(dropped.values()),
        "dropped": dict(sorted(dropped.items())),
        "facts": facts,
        "grace_hours": plan.config.output.grace_hours,
    }
    if not bad or isinstance(scanned, pa.Table):
        rows = _numbered(day, scanned, filtered) if isinstance(scanned, pa.Table) else _SCHEMA.empty_table()
        files = write_table(rows, partition, plan.config.output.row_group_rows)
        publish_files(partition, dict.fromkeys(files), **shared)
    else:
        rows_of_day = _numbered_frame(day, scanned, filtered)
        group_rows = plan.config.output.row_group_rows
        publish(rows_of_day, partition, row_group_rows=group_rows, sort_by=[ROW_ID], **shared)


def _numbered(day: ScannedDay, scanned: pa.Table, filtered: Sequence[str]) -> pa.Table:
    """Returns the quarantined rows of a day, in the order of the log."""
    parts = [_SCHEMA.empty_table()]
    is_bad = pc.and_(
        pc.is_valid(scanned["reason"]),
        pc.invert(pc.is_in(scanned["reason"], pa.array(filtered, pa.string()))),
    )
    lines = scanned.filter(is_bad)  # in the order of the tasks, which is the order of the log
    tasks = lines["task"].to_numpy()
    for task, path, first_row, first_line in day.first_lines():
        first, last = np.searchsorted(tasks, [task, task + 1])
        of_task = lines.slice(first, last - first)
        columns = [
            pc.add(of_task["line"], first_row),
            pa.array([path] * len(of_task), pa.string()),
            pc.add(of_task["line"], first_line + 1),
            of_task["reason"],
            of_task["text"],
        ]
        parts.append(pa.Table.from_arrays(columns, schema=_SCHEMA))
    return pa.concat_tables(parts)


def _numbered_frame(day: ScannedDay, scanned: DataFrame, filtered: Sequence[str]) -> DataFrame:
    """Returns the quarantined rows of a day. No other function of this module needs pyspark."""
    from pyspark.sql import functions as F

    first_lines = scanned.sparkSession.createDataFrame(
        day.first_lines(), "task int, source_file string, first_row long, first_line long"
    )
    lines = scanned.where(F.col("reason").isNotNull() & ~F.col("reason").isin(*filtered))
    return lines.join(F.broadcast(first_lines), "task").select(
        (F.col("first_row") + F.col("line")).alias(ROW_ID),
        "source_file",
        (F.col("first_line") + F.col("line") + 1).alias("line_number"),
        "reason",
        F.col("text").alias("line"),
    )


# The functions below publish the value counts of a day. The tasks of the scan pass have written the files.


def publish_counts(
    plan: FeaturePlan,
    partition: Partition,
    day: ScannedDay,
    attempt: str,
    inputs: Mapping[str, str],
    parts: Sequence[Sequence[CountedRows]] | None = None,
) -> None:
    """Publishes the files of value counts that the summaries of a day refer to.

    If the day is divided into splits, the manifest contains the split of each file.

    Args:
        plan: the plan of the run.
        partition: the day's partition of the table of value counts.
        day: the day to publish, with the summaries of its file splits.
        attempt: folder of the files below the partition (storage.publish.new_attempt).
        inputs: maps the name of each input of the partition to its digest, for the manifest.
        parts: for each file split of the day, the counts of its rows in each split, in the order of the rows;
            None if all rows of the day are in one split.

    Raises:
        DataError: the day has no line.
    """
    splits = [*day.split_summaries()]
    if not splits:
        raise DataError(
            f"the raw log of {day.raw.dt} has no lines",
            "deliver files that contain rows, or choose another run date",
        )
    slices = [
        [file_split.path, file_split.start, file_split.end, summary.lines] for file_split, summary in splits
    ]
    facts: dict[str, Any] = {"slices": slices}
    if parts is None:
        files: dict[str, str | None] = dict.fromkeys(
            f"{attempt}/{file_name(block.file)}" for _, summary in splits for block in summary.blocks
        )
        facts["values"] = _sum_by_name([block.values for _, summary in splits for block in summary.blocks])
        rows = sum(facts["values"].values())
    else:
        counted = [part for of_split in parts for part in of_split]
        files = {f"{attempt}/{file_name(part.file)}": part.split for part in counted}
        facts["values"] = {
            split: _sum_by_name([part.values for part in counted if part.split == split])
            for split in SPLITS
            if any(part.split == split for part in counted)
        }
        facts["parts"] = [_lines_of_splits(of_split) for of_split in parts]
        rows = sum(sum(values.values()) for values in facts["values"].values())
    publish_files(
        partition,
        files,
        inputs=inputs,
        expected_rows=rows,
        facts=facts,
        grace_hours=plan.config.output.grace_hours,
    )


def _lines_of_splits(parts: Sequence[CountedRows]) -> list[tuple[str, int, int]]:
    """Returns (split, first line, end) for the train, validation and test rows of a file split, if any."""
    lines: dict[str, tuple[int, int]] = {}
    for part in parts:
        first, _ = lines.get(part.split, (part.first_line, 0))
        lines[part.split] = first, part.end_line
    return [(split, first, end) for split, (first, end) in lines.items()]


def file_name(path: str) -> str:
    """Returns the last part of a path."""
    return path.rsplit("/", 1)[1]


def _sum_by_name(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Adds mappings of names to numbers, name by name. All mappings must have the same names."""
    return {name: sum(part[name] for part in parts) for name in parts[0]}


# The code below computes the features of days from parts of their files, and publishes them.


@dataclass(frozen=True)
class EncodePart:
    """Rows of a day that one task encodes. The attributes have the same meaning as in EncodeTask."""

    file_split: FileSplit | None
    first_row: int = 0
    split: Split | None = None
    saved: tuple[SavedBlock, ...] = ()
    saved_line: int = 0
    lines: tuple[int, int] | None = None


@dataclass(frozen=True)
class EncodeDay:
    """A day to encode.

    Attributes:
        parts: the rows of the day, in the order of the row_ids. If the day has no rows, there may be no part.
        rows: number of rows of the day.
        counts: the row counts of the day's raw log.
        inputs: maps the name of each input of the day's features to its digest, for the manifest.
    """

    parts: Sequence[EncodePart]
    rows: int
    counts: DayCounts
    inputs: Mapping[str, str]


def encode_days(
    workers: Workers,
    plan: FeaturePlan,
    table: Table,
    workflow: FittedWorkflow,
    source: RowSource,
    days: Mapping[str, EncodeDay],
    rules: Rules,
) -> dict[str, Manifest]:
    """Writes the feature partitions of days in one pass, and publishes them.

    Args:
        workers: the processes that run the tasks.
        plan: the plan of the run.
        table: the table of features of the workflow.
        workflow: the workflow that computes the features.
        source: reads the file splits that contain the parts of the days.
        days: maps each date to the rows and counts of the day.
        rules: checks for the columns of the table.

    Raises:
        DataError: a feature is null, or breaks a rule.
    """
    tasks: list[EncodeTask] = []
    # A partition has at least one file, so a task writes a file even for a day without rows.
    parts_of_day = {dt: day.parts or (EncodePart(None),) for dt, day in days.items()}
    tasks_of_day: dict[str, range] = {}
    attempts: dict[str, str] = {}
    for dt, parts in parts_of_day.items():
        partition = table.partition(dt)
        attempts[dt], start = new_attempt(partition), len(tasks)
        for number, part in enumerate(parts):
            path = partition.file(labelled_file(attempts[dt], part.split, f"part-{number:05d}.parquet"))
            tasks.append(
                EncodeTask(
                    file_split=part.file_split,
                    first_row=part.first_row,
                    features_file=path,
                    dt=dt,
                    split=part.split,
                    saved=part.saved,
                    saved_line=part.saved_line,
                    lines=part.lines,
                )
            )
        tasks_of_day[dt] = range(start, len(tasks))
    encoding = Encoding(
        source, workflow.chains, workflow.spec, workflow.local, plan.config.output.row_group_rows
    )
    written = encode_splits(workers, tasks, encoding)
    return {
        dt: publish_files(
            table.partition(dt),
            {
                labelled_file(attempts[dt], part.split, file_name(written[task])): part.split
                for task, part in zip(tasks_of_day[dt], parts_of_day[dt], strict=True)
            },
            inputs=day.inputs,
            expected_rows=day.rows,
            rows_in=day.counts.rows_in,
            dropped=day.counts.dropped,
            rules=rules,
            grace_hours=plan.config.output.grace_hours,
        )
        for dt, day in days.items()
    }


def labelled_file(attempt: str, split: Split | None, name: str) -> str:
    """Returns the path of a file below the folder of an attempt.

    The files of each split are in a separate folder.
    """
    return f"{attempt}/{split}/{name}" if split else f"{attempt}/{name}"
