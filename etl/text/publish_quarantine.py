"""Publishes the quarantine of a day of text: the lines that the scan pass could not parse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.raw.misdated import MISDATED, Misdated, bounds_of_day
from etl.text.scanned_day import ScannedDay
from etl.workflow.feature_plan import Plan
from storage.feature_spec import ROW_ID
from storage.paths import Partition
from storage.publish import publish, publish_files
from storage.publish_rows import write_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
    plan: Plan,
    partition: Partition,
    day: ScannedDay,
    scanned: pa.Table | DataFrame,
    inputs: Mapping[str, str],
) -> None:
    """Publishes the lines of a day that cannot be parsed, with their line numbers.

    Args:
        plan: the plan of the run.
        partition: the day's partition of the quarantine table.
        day: the day to publish.
        scanned: the result of `scan_splits`.
        inputs: the inputs for the partition's manifest.
    """
    dropped: Counter[str] = Counter()
    for _, summary in day.split_summaries():
        dropped.update(summary.dropped)
    misdated = Misdated()
    for _, summary in day.split_summaries():
        misdated += summary.misdated
    counted = bounds_of_day(plan.config, day.raw.dt) is not None
    filtered = plan.reasons_left_out
    bad = sum(count for reason, count in dropped.items() if reason not in filtered)
    shared: dict[str, Any] = {
        "inputs": inputs,
        "expected_rows": bad,
        "rows_in": sum(summary.good for _, summary in day.split_summaries()) + sum(dropped.values()),
        "dropped": dict(sorted(dropped.items())),
        "facts": {MISDATED: misdated.to_facts()} if counted else {},
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
    lines = scanned.filter(is_bad)  # in the order of the tasks
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
    """Returns the quarantined rows of a day. Only this function of the module needs pyspark."""
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
