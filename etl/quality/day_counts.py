"""Counts the rows of a day's raw log, and compares the counts with limits.

If the share of quarantined rows of a day is above the limit `quality.max_bad_share`, the job stops. It also
stops if the share of rows with a time on another day is above the limit `quality.max_misdated_share`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow.compute as pc
import pyarrow.parquet as pq

from conf.errors import DataError
from conf.messages import counted
from conf.raw_types import EventTime, Log
from etl.raw.files import RawFiles
from etl.raw.rejected_lines import RejectedLine, description, remedy, values_of
from etl.raw.row_rules import Misdated, describe
from etl.workflow.feature_plan import FeaturePlan
from storage.file_digests import open_file
from storage.manifest import Manifest, data_files, read_manifest
from storage.paths import Partition

log = logging.getLogger("nightrank.etl")

# Key in `Manifest.facts` of a quarantine. Its value maps each reason to the number of lines not stored.
NOT_KEPT = "not_kept"
_SHOWN_ROWS = 200  # Number of quarantined rows that are read to show their values in an error message.


@dataclass(frozen=True)
class DayCounts:
    """The row counts of a day's raw log.

    Attributes:
        rows_in: number of rows in the raw log.
        good: number of valid rows, from which features may be computed.
        bad: number of rejected rows. The quarantine stores them, or only counts them.
        dropped: maps each reason to the number of rows that are left out for this reason. A row is left out
            if it is rejected, if an operator of `prepare` drops it, or if its user was erased.
        misdated: the good rows whose event_time is outside the day; None if they were not counted.
    """

    rows_in: int
    good: int
    bad: int
    dropped: dict[str, int]
    misdated: Misdated | None = None

    @classmethod
    def from_manifest(cls, quarantine: Manifest) -> DayCounts:
        """Reads the counts from the manifest of a day's quarantine."""
        good = quarantine.rows_in - sum(quarantine.dropped.values())
        misdated = Misdated.from_facts(quarantine.facts)
        bad = quarantine.rows + sum(quarantine.facts.get(NOT_KEPT, {}).values())
        return cls(quarantine.rows_in, good, bad, dict(quarantine.dropped), misdated)


def misdated_rows(counts: Iterable[DayCounts]) -> int | None:
    """Returns how many rows of some days have a time outside their day; None if they were not counted."""
    known = [day.misdated.rows for day in counts if day.misdated is not None]
    return sum(known) if known else None


def _quarantined(partition: Partition, reason: str, raw: RawFiles) -> list[RejectedLine]:
    """Returns the first rows with the reason `reason` in a published quarantine, at most _SHOWN_ROWS.

    The raw files may have been moved since the quarantine was published, so their current paths are returned.
    """
    paths = {path.rsplit("/", 1)[-1]: path for path in raw.paths} | {path: path for path in raw.paths}
    rejected: list[RejectedLine] = []
    for path in data_files(partition, read_manifest(partition)):
        with open_file(path) as source:
            parquet = pq.ParquetFile(source)
            for group in range(parquet.num_row_groups):
                rows = parquet.read_row_group(group).filter(pc.field("reason") == reason)
                for row in rows.slice(0, _SHOWN_ROWS - len(rejected)).to_pylist():
                    source = row["source_file"]
                    path = paths.get(source) or paths.get(source.rsplit("/", 1)[-1], raw.paths[0])
                    rejected.append(RejectedLine(path, row["line_number"], reason, row["line"]))
                if len(rejected) == _SHOWN_ROWS:
                    return rejected
    return rejected


def _example(table: Log, raw: RawFiles, reasons: Mapping[str, int], quarantine: Partition) -> tuple[str, str]:
    """Returns a description of the first row with the most frequent reason, and the remedy for this reason.

    The quarantine does not store all rejected rows, so it may have none with this reason. Then the function
    uses the most frequent reason of the stored rows.

    Args:
        table, raw: the log, and its files of the day.
        reasons: maps each reason to the number of rows.
        quarantine: the published quarantine of the day.
    """
    for reason in sorted(reasons, key=lambda reason: -reasons[reason]):
        rejected = _quarantined(quarantine, reason, raw)
        if rejected:
            values = values_of(table, rejected)
            shown = f"; values of these rows: {', '.join(values)}" if len(values) > 1 else ""
            example = f"{rejected[0].file}: {description(table, rejected[0])}{shown}"
            return (
                f"; the first with the reason {reason}: {example}",
                f"for the reason {reason}: {remedy(table, 'log', rejected[0])}",
            )
    return "", "correct the raw log"


def check_day(
    plan: FeaturePlan, raw: RawFiles, counts: DayCounts, quarantine: Partition, *, warn: bool = True
) -> None:
    """Checks the share of a day's rows that are quarantined, and the share with times outside the day.

    A day without rows raises no error here. etl.passes decides, by the split of the day, whether a run
    needs its rows.

    Args:
        plan: the plan of the run; the section `quality` has the limits.
        raw: the raw files of the day.
        counts: the day's counts.
        quarantine: the published quarantine of the day. The error message shows some of its rows.
        warn: whether to log the numbers of quarantined and misdated rows that are below the limits.

    Raises:
        DataError: more than `quality.max_bad_share` of the rows cannot be parsed, or more than
            `quality.max_misdated_share` of the good rows have an event_time outside the day.
    """
    if counts.rows_in == 0:
        return
    bad = counts.bad
    share = bad / counts.rows_in
    if share > plan.config.quality.max_bad_share:
        left_out = plan.reasons_left_out
        reasons = {reason: count for reason, count in counts.dropped.items() if reason not in left_out}
        example, correct = _example(plan.config.log, raw, reasons, quarantine)
        raise DataError(
            f"{bad:,} of {counted(counts.rows_in, 'row')} of {raw.dt} do not parse ({share:.1%}; "
            f"quality.max_bad_share={plan.config.quality.max_bad_share:.1%}); number of rows by "
            f"reason: {', '.join(f'{reason} {count:,}' for reason, count in reasons.items())}{example}",
            f"{correct}. All rejected rows are in "
            f"{quarantine.path}; if the run does not need them, raise quality.max_bad_share",
        )
    if bad and warn:
        log.info("%s: %d of %d rows quarantined (%.2f%%)", raw.dt, bad, counts.rows_in, 100 * share)
    _check_times(plan, raw, counts, warn)


def _check_times(plan: FeaturePlan, raw: RawFiles, counts: DayCounts, warn: bool) -> None:
    """Raises DataError, or logs a warning, if too many good rows have an event_time outside the day."""
    event_time, misdated, quality = plan.config.log.event_time, counts.misdated, plan.config.quality
    if event_time is None or misdated is None or misdated.earliest is None or misdated.latest is None:
        return
    # An earlier release erased users without changing the count `misdated`, so this count may exceed the
    # number of rows that remain.
    if misdated.rows > counts.good:
        return
    share = misdated.rows / counts.good
    example = describe(event_time, misdated.earliest, plan.config.log)
    if misdated.latest != misdated.earliest:
        example += f", and {describe(event_time, misdated.latest, plan.config.log)}"
    if share > quality.max_misdated_share:
        raise DataError(
            f"{raw.dt}: {misdated.rows} of {counts.good} rows have an event_time outside of this day in "
            f"{plan.config.log.time_zone} ({share:.1%}; "
            f"quality.max_misdated_share={quality.max_misdated_share:.1%}); for example, "
            f"{example}; first file of the day: {raw.paths[0]}",
            f"{_wrong_day_remedy(plan.config.log, event_time)}. Otherwise deliver the raw log of {raw.dt} "
            "again, or raise quality.max_misdated_share if these times are right",
        )
    if warn and quality.misdated_share_warn is not None and share > quality.misdated_share_warn:
        log.warning(
            "%s: %d of %d rows have an event_time outside of this day in %s (%.1f%%; "
            "quality.misdated_share_warn=%g); for example, %s",
            raw.dt,
            misdated.rows,
            counts.good,
            plan.config.log.time_zone,
            100 * share,
            quality.misdated_share_warn,
            example,
        )


def _wrong_day_remedy(log_table: Log, event_time: EventTime) -> str:
    """Returns the remedy for times outside the day, such as to correct the unit or the time zone."""
    if log_table.type_of(event_time.column) == "int":
        return (
            f"correct log.event_time.unit, which is {event_time.unit}, if the example was read as a wrong day"
        )
    return (
        f"correct log.time_zone, which is {log_table.time_zone}, or the `format` of {event_time.column}, if "
        "the example was read as a wrong time"
    )
