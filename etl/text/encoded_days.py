"""Computes the features of days from parts of their files, and publishes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from conf.types import Split
from etl.quality.day_counts import DayCounts
from etl.raw.file_splits import FileSplit
from etl.text.encode_pass import EncodeTask, Encoding, encode_splits
from etl.text.parsed_splits import SavedBlock
from etl.text.publish_value_counts import file_name
from etl.text.row_source import RowSource
from etl.workflow.feature_plan import Plan
from etl.workflow.fitted_workflow import FittedWorkflow
from spark.workers import Workers
from storage.manifest import Manifest
from storage.paths import Table
from storage.publish import Rules, new_attempt, publish_files


@dataclass(frozen=True)
class EncodePart:
    """Rows of a day that one task encodes. The attributes are those of EncodeTask."""

    file_split: FileSplit
    first_row: int = 0
    split: Split | None = None
    saved: tuple[SavedBlock, ...] = ()
    saved_line: int = 0
    lines: tuple[int, int] | None = None


@dataclass(frozen=True)
class EncodeDay:
    """A day to encode.

    Attributes:
        parts: its rows, in the order of the row_ids.
        rows: the number of its rows.
        counts: the row counts of its raw log.
        inputs: the inputs for the manifest of its features.
    """

    parts: Sequence[EncodePart]
    rows: int
    counts: DayCounts
    inputs: Mapping[str, str]


def encode_days(
    workers: Workers,
    plan: Plan,
    table: Table,
    workflow: FittedWorkflow,
    source: RowSource,
    days: Mapping[str, EncodeDay],
    rules: Rules,
) -> dict[str, Manifest]:
    """Writes the feature partitions of days in one pass, and publishes them.

    Args:
        workers, plan: run the tasks; the plan of the run.
        table: the table of features of the workflow.
        workflow: computes the features.
        source: reads the file splits of the parts.
        days: the days, by date.
        rules: checks for the columns of the table.

    Raises:
        DataError: a feature is null, or breaks a rule.
    """
    tasks: list[EncodeTask] = []
    tasks_of_day: dict[str, range] = {}
    attempts: dict[str, str] = {}
    for dt, day in days.items():
        partition = table.partition(dt)
        attempts[dt], start = new_attempt(partition), len(tasks)
        for number, part in enumerate(day.parts):
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
                for task, part in zip(tasks_of_day[dt], day.parts, strict=True)
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
    """Returns the path of a file below the folder of an attempt. Each split has its own folder."""
    return f"{attempt}/{split}/{name}" if split else f"{attempt}/{name}"
