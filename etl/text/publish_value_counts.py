"""Publishes the value counts of a day of text, whose files the tasks of the scan pass wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from conf.errors import DataError
from conf.types import SPLITS
from etl.text.cut_counts import CountedRows
from etl.text.scanned_day import ScannedDay
from etl.workflow.feature_plan import Plan
from storage.paths import Partition
from storage.publish import publish_files


def publish_counts(
    plan: Plan,
    partition: Partition,
    day: ScannedDay,
    attempt: str,
    inputs: Mapping[str, str],
    parts: Sequence[Sequence[CountedRows]] | None = None,
) -> None:
    """Publishes the files of value counts that the summaries of a day refer to.

    If the day is divided into splits, each file has the label of its split.

    Args:
        plan: the plan of the run.
        partition: the day's partition of the table of value counts.
        day: the day to publish.
        attempt: folder of the files below the partition (storage.publish.new_attempt).
        inputs: the inputs for the partition's manifest.
        parts: for each file split of the day, the counts of its rows in each split, in order; None if all
            rows of the day are in one split.

    Raises:
        DataError: the day has no line.
    """
    splits = [*day.split_summaries()]
    if not splits:
        raise DataError(
            f"the raw log of {day.raw.dt} has no lines",
            "write rows into its files, or choose another run date",
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
    """Returns each split that has rows of a file split, with their first line and the line after the last."""
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
