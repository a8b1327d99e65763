"""Publishes the value counts of a day of text, whose files the tasks of the scan pass wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from conf.errors import DataError
from conf.types import Config
from etl.text.scanned_day import ScannedDay
from storage.paths import Partition
from storage.publish import publish_files


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
        raise DataError(
            f"the raw log of {day.raw.dt} has no lines",
            "write rows into its files, or choose another run date",
        )
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
