"""Checks a configuration and the first rows of files that a run needs, without a Spark session.

The job reports the rows that a run would reject.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import DataError
from conf.raw_types import OTHER_EVENT
from etl.passes import days_with_rows, raw_days
from etl.raw.file_splits import FileSplit
from etl.raw.files import RawFiles
from etl.raw.rejected_lines import RejectedLine, description, remedy
from etl.raw.row_rules import NO_ROWS, Misdated, bounds_of_day, count_misdated, describe
from etl.readers.base import RawBlock
from etl.text.parse_block import (
    FileLayout,
    ParsedBlock,
    columns_to_parse,
    layout_of_days,
    parse_block,
)
from etl.workflow.feature_plan import FeaturePlan, plan_of
from jobs.checks import check_config, check_lists, check_sinks, check_tables, check_training
from jobs.command_line import job_parser, run_without_session
from reporting.terminal import text_table
from spark.profile import DEFAULT_PROFILE, find_profile
from storage.feature_spec import EVENT_TIME, LABEL
from storage.job_summary import JobSummary
from storage.run_context import RunContext

DESCRIPTION = (
    "Checks in seconds what a run would refuse after minutes: every key of the configuration, the models and "
    "operators, the tables, and the raw log. It reads the first rows of up to 16 files of each day of the "
    "log that a run of this date reads. It prints the rows that would be quarantined, with the remedy. It "
    "writes nothing."
)

# Maximum number of files of a day whose first rows are read, and of bytes that are read from these files.
_FILES_A_DAY, _BYTES_A_DAY = 16, 4 << 20
# Maximum number of events left out by `log.label` that the printed text lists.
_MOST_EVENTS = 10
# If more than this share of the rows have times outside the days of their files, the text says so.
_FEW_MISDATED = 0.01


_ZONE_OF_DAYS = (
    "if the days of the files are those of another time zone, set log.time_zone, such as "
    "log.time_zone=America/New_York"
)


@dataclass
class _Head:
    """Counts of the first rows in the files of a day.

    Attributes:
        raw: the raw files of the day.
        files: number of files whose rows were read.
        rows: number of rows that were read.
        clicks: number of valid rows with label 1.
        reasons: number of rejected rows by reason.
        misdated: the valid rows whose time is outside the day of their file. They are counted only if the log
            is stored by day.
        left_out: number of rows that the configuration leaves out, such as rows of other events.
        other_events: maps each event whose rows are left out to the number of these rows.
        examples: the first rejected row of each reason.
        events: the events of the valid rows, if the label is an event.
    """

    raw: RawFiles
    files: int = 0
    rows: int = 0
    clicks: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    misdated: Misdated = NO_ROWS
    left_out: int = 0
    other_events: Counter[str] = field(default_factory=Counter)
    examples: dict[str, RejectedLine] = field(default_factory=dict)
    events: set[str] = field(default_factory=set)

    @property
    def rejected(self) -> int:
        return sum(self.reasons.values())


def run(context: RunContext) -> tuple[str, JobSummary]:
    """Checks the configuration, its tables, and the first rows of files of a run's log.

    Returns the text to print, and the job summary.

    Raises:
        ConfigError: a key breaks its rule.
        DataError: a file is missing, or a required day has no rows; a table cannot be parsed; or the first
            rows of a day exceed `quality.max_bad_share` (share of rows that would be quarantined) or
            `quality.max_misdated_share` (share of rows with times on other days).
    """
    config = context.config
    with context.phase("configuration"):
        check_config(config)
        check_training(config)
        check_lists(config)
        check_sinks(config, find_profile(DEFAULT_PROFILE))
    with context.phase("tables"):
        check_tables(config, context.run_date)
    plan = plan_of(config)
    with context.phase("log"):
        splits = raw_days(plan, context.run_date)
        days = {raw.dt: raw for of_split in splits.values() for raw in of_split}
        layout = layout_of_days(plan, list(days.values()))
        starts = _starts_of_files(layout, [*days.values()])
        heads = [_head(plan, layout, raw, starts[raw.dt]) for raw in days.values()]
    all_read = [head for head in heads if head.files == len(head.raw.paths)]
    days_with_rows(plan, splits, [head.raw.dt for head in all_read if not head.rows])
    for head in heads:
        _require_valid(plan, head)
        _require_day(plan, head)
    rejected = sum(head.rejected for head in heads)
    rows = sum(head.rows for head in heads)
    facts = {
        "days": len(heads),
        "files": sum(len(head.raw.paths) for head in heads),
        "files_read": sum(head.files for head in heads),
        "rejected": rejected,
        "left_out": sum(head.left_out for head in heads),
        "unknown_events": _unknown_events(plan, heads),
    }
    return _text(plan, heads), JobSummary(output="", rows_in=rows, rows_out=rows - rejected, facts=facts)


def _starts_of_files(layout: FileLayout, days: Sequence[RawFiles]) -> dict[str, list[FileSplit]]:
    """Maps each day to the first file split of each of up to `_FILES_A_DAY` of its files.

    The files are spread evenly over the day, and include its first and its last file.
    """
    by_count: dict[int, dict[str, FileSplit]] = {}
    starts = {}
    for raw in days:
        count = min(len(raw.paths), _FILES_A_DAY)
        if count not in by_count:
            file_splits = layout.reader.splits(max(_BYTES_A_DAY // max(count, 1), 1))
            by_count[count] = {one.path: one for one in reversed(file_splits)}
        places = np.linspace(0, len(raw.paths) - 1, count).round().astype(int).tolist()
        paths = [raw.paths[place] for place in places]
        starts[raw.dt] = [by_count[count][path] for path in paths if path in by_count[count]]
    return starts


def _head(plan: FeaturePlan, layout: FileLayout, raw: RawFiles, starts: Sequence[FileSplit]) -> _Head:
    """Reads the first block of each file split in `starts`, and counts the rows of these blocks."""
    head = _Head(raw, files=min(len(raw.paths), _FILES_A_DAY))
    inputs = [name for chain in plan.chains for name in chain.inputs]
    wanted = columns_to_parse(layout, inputs)
    for file_split in starts:
        rows = next(layout.reader.blocks(file_split, wanted), None)
        if rows is None:
            continue
        block = parse_block(rows, layout, layout.erased.get(file_split.path))
        head.other_events += _other_events(plan, rows, block)
        head.rows += len(block.row_lines) + len(block.rejected)
        head.clicks += int(np.count_nonzero(np.asarray(block.columns[LABEL])))
        label = plan.config.log.label
        # the computed label replaces a raw column named LABEL
        if label.positive and label.column is not None and label.column != LABEL:
            head.events |= set(pc.unique(block.columns[label.column].cast("string")).to_pylist())
        bounds = bounds_of_day(plan.config, raw.dt)
        if bounds is not None:
            head.misdated += count_misdated(np.asarray(block.columns[EVENT_TIME], np.int64), bounds)
        for line, reason in block.rejected.pairs():
            if reason in plan.reasons_left_out:
                head.left_out += 1
                continue
            head.reasons[reason] += 1
            if reason not in head.examples:
                text = block.texts([line])[0]
                head.examples[reason] = RejectedLine(file_split.path, line + 1, reason, text)
    return head


def _other_events(plan: FeaturePlan, rows: RawBlock, block: ParsedBlock) -> Counter[str]:
    """Returns the number of rows of each event that `log.label` leaves out."""
    column = plan.config.log.label.column
    lines = [line for line, reason in block.rejected.pairs() if reason == OTHER_EVENT]
    if column is None or not lines:
        return Counter()
    is_other = pa.array(np.isin(np.asarray(rows.row_lines), lines))
    events = rows.columns[column].filter(is_other).cast(pa.string()).to_pylist()
    return Counter(str(event) for event in events)


def _require_valid(plan: FeaturePlan, head: _Head) -> None:
    log, limit = plan.config.log, plan.config.quality.max_bad_share
    if not head.rejected or head.rejected <= limit * head.rows:
        return
    reason = head.reasons.most_common(1)[0][0]
    example = head.examples[reason]
    raise DataError(
        f"{head.rejected:,} of the first {head.rows:,} rows of {head.raw.dt} would be quarantined "
        f"({head.rejected / head.rows:.1%}; quality.max_bad_share={limit:.1%}), by reason: "
        f"{', '.join(f'{name}: {count:,}' for name, count in head.reasons.most_common())}. Example: "
        f"{example.file}: {description(log, example)}",
        f"for the reason {reason}: {remedy(log, 'log', example)}. If this share of rejected rows is usual, "
        f"raise quality.max_bad_share",
    )


def _require_day(plan: FeaturePlan, head: _Head) -> None:
    log, limit = plan.config.log, plan.config.quality.max_misdated_share
    valid, outside = head.rows - head.rejected - head.left_out, head.misdated
    if log.event_time is None or outside.earliest is None or outside.rows <= limit * valid:
        return
    raise DataError(
        f"{outside.rows:,} of the first {valid:,} valid rows of {head.raw.dt} have times on other days "
        f"(quality.max_misdated_share={limit:.1%}), such as "
        f"{describe(log.event_time, outside.earliest, log)}",
        f"correct log.event_time or the days in the names of the files; {_ZONE_OF_DAYS}",
    )


def _unknown_events(plan: FeaturePlan, heads: Sequence[_Head]) -> list[str]:
    """Returns, sorted, the events in `log.label.positive` and `weights` that no row has."""
    label = plan.config.log.label
    if label.column == LABEL:
        return []
    seen = {event for head in heads for event in head.events}
    return sorted({*(label.positive or ()), *(label.weights or {})} - seen)


def _text(plan: FeaturePlan, heads: Sequence[_Head]) -> str:
    rows = [
        (
            head.raw.dt,
            f"{head.files:,} of {len(head.raw.paths):,}"
            if head.files < len(head.raw.paths)
            else f"{head.files:,}",
            f"{head.raw.bytes / 1e6:,.1f}",
            f"{head.rows:,}",
            f"{head.clicks:,}",
            f"{head.left_out:,}",
            f"{head.rejected:,}",
            f"{head.misdated.rows:,}",
        )
        for head in heads
    ]
    headers = ("day", "files", "MB", "rows read", "clicks", "left out", "rejected", "on other days")
    parts = [text_table(headers, rows, range(1, len(headers)))]
    examples = {reason: one for head in reversed(heads) for reason, one in head.examples.items()}
    for reason, example in sorted(examples.items()):
        parts.append(
            f"  {reason}: {example.file}: {description(plan.config.log, example)}\n"
            f"    what to do: {remedy(plan.config.log, 'log', example)}"
        )
    if unknown := _unknown_events(plan, heads):
        parts.append(
            f"  none of these rows has the events {unknown} of log.label\n"
            f"    what to do: correct the events if they are misspelt; rows of other events are left out "
            f"({sum(head.left_out for head in heads):,} of these rows)"
        )
    if others := sum((head.other_events for head in heads), Counter[str]()):
        counts = ", ".join(f"{event} ({rows:,})" for event, rows in others.most_common(_MOST_EVENTS))
        parts.append(
            f"  left out because log.label does not name their events: {counts}\n"
            "    what to do: if an event shows a click, add it to log.label.positive, and its weight to "
            "log.label.weights"
        )
    parts += _misdated(plan, heads)
    read, files = sum(head.files for head in heads), sum(len(head.raw.paths) for head in heads)
    if read < files:
        parts.append(f"  rows of {read:,} of the {files:,} files of the log were read; a run reads all files")
    parts.append("  the configuration and the first rows of all tables are valid")
    return "\n".join(parts)


def _misdated(plan: FeaturePlan, heads: Sequence[_Head]) -> list[str]:
    """Returns a list: a warning if many rows have times on other days than their files; otherwise empty."""
    valid = sum(head.rows - head.rejected - head.left_out for head in heads)
    outside = sum((head.misdated for head in heads), NO_ROWS)
    log = plan.config.log
    if log.event_time is None or outside.earliest is None or outside.rows <= _FEW_MISDATED * valid:
        return []
    return [
        f"  {outside.rows:,} of these rows ({outside.rows / valid:.1%}) have times on other days than their "
        f"files in the time zone {log.time_zone}\n    what to do: {_ZONE_OF_DAYS}"
    ]


def main(argv: list[str] | None = None) -> int:
    """Checks a configuration, and prints the content of its files and the job summary.

    Returns the exit code.
    """
    arguments = job_parser("check_config", DESCRIPTION).parse_args(argv)
    return run_without_session("check_config", arguments, run)


if __name__ == "__main__":
    sys.exit(main())
