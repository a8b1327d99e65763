"""Publishes the profile of a day, and the data report of a run date.

The report also lists the figures that are above their limits.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from conf.load import config_digest
from conf.types import SPLITS, Split
from etl.ops.base import Type
from etl.quality.checks import (
    ColumnReport,
    DayComparison,
    Finding,
    Number,
    PieceRows,
    check_limits,
    require_no_stop,
)
from etl.quality.column_summary import LABEL_CELLS, ColumnSummary, CountedColumn, Values, feature_columns
from etl.raw.files import RawFiles, impression_inputs
from etl.workflow.feature_plan import FeaturePlan
from metrics.psi import bin_names, bin_numbers, drift_of
from storage.manifest import (
    Manifest,
    combined_digest,
    current_manifest,
    digest_of,
    is_published,
    read_manifest,
)
from storage.paths import LakePaths, Partition
from storage.publish import publish_facts

log = logging.getLogger("nightrank.etl")
_MAX_NEW_VALUES = 5


@dataclass(frozen=True)
class DataReport:
    """The comparison of a day with the train days, and the figures above their limits.

    All findings have the level "warn", because `report_quality` raises an error for the level "stop".
    """

    compared: DayComparison
    findings: tuple[Finding, ...]

    @property
    def warnings(self) -> list[str]:
        """Returns the messages of the findings."""
        return [finding.message for finding in self.findings]


def report_quality(
    plan: FeaturePlan,
    lake: LakePaths,
    run_date: str,
    splits: Mapping[Split, list[RawFiles]],
    counted: CountedDays,
) -> DataReport:
    """Publishes the data report `quality/<config name>/dt=<run date>`. Compares its figures with the limits.

    The last day of the test split is compared with all days of the train split. Days whose log has not
    changed since an earlier run are not read again. The report is published even if a figure is above a limit
    that stops the job.

    Args:
        splits: the raw files of the days of each split. If one partition of the log is divided into splits,
            every split has this partition.
        counted: the value counts of the days.

    Raises:
        DataError: a figure is above its limit `quality.<check>_stop`, or a profile or the report cannot be
            published (see `storage.publish`).
    """
    cut = plan.is_divided
    pieces = [SplitOfDay(raw, split, cut) for split in SPLITS for raw in splits[split]]
    ordered = sorted(pieces, key=lambda piece: (piece.raw.dt, SPLITS.index(piece.split)))
    profiles, new_values = profiles_of(plan, lake, ordered, counted)
    partition = lake.quality(plan.config.name).partition(run_date)
    inputs = {
        "profiles": combined_digest((f"{p.piece.split} {p.manifest.digest}" for p in profiles), lake.recorder)
    }
    known = read_manifest(partition) if is_published(partition) else None
    if known is not None and dict(known.inputs) == inputs:
        compared = DayComparison.from_facts(known.facts)
    else:
        compared = _compare(plan, profiles, counted, new_values)
    draws, drawn_columns = plan.config.negatives is not None, plan.config.drawn_columns
    findings = check_limits(plan.config.quality, plan.config.split, compared, draws, drawn_columns)
    facts: dict[str, Any] = {**compared.to_facts(), "findings": [finding.to_facts() for finding in findings]}
    if known is None or dict(known.inputs) != inputs or known.facts != json.loads(json.dumps(facts)):
        publish_facts(partition, inputs=inputs, facts=facts)
    for finding in findings:
        log.warning(
            "data quality, %s (%s=%.4g): %s", finding.level, finding.check, finding.value, finding.message
        )
    require_no_stop(compared, findings, partition.path)
    return DataReport(compared, tuple(findings))


def _compare(
    plan: FeaturePlan,
    profiles: list[DayProfile],
    counted: CountedDays,
    values: Mapping[str, Values] | None,
) -> DayComparison:
    """Compares the last test day with the train days.

    `values` has the comparisons of text columns that were computed with the profiles. If it is None, the
    function computes them.
    """
    train = [profile for profile in profiles if profile.piece.split == "train"]
    today = [profile for profile in profiles if profile.piece.split == "test"][-1]
    if values is None:
        days = compared_days([profile.piece for profile in profiles])
        _, values = counted.figures_of([], *days, feature_columns(plan))
    columns = (
        _column_report(name, column, [profile.columns[name] for profile in train], values.get(name, Values()))
        for name, column in today.columns.items()
    )
    pieces = (PieceRows(p.piece.raw.dt, p.piece.split, p.rows, p.clicks) for p in profiles)
    return DayComparison(today.piece.raw.dt, today.piece.cut, tuple(pieces), tuple(columns))


def _column_report(name: str, day: ColumnProfile, train: list[ColumnProfile], values: Values) -> ColumnReport:
    train_nulls, train_cells = sum(column.nulls for column in train), sum(column.cells for column in train)
    is_text = day.kind == "string"
    if is_text:
        binned = bin_names(values.top, train_cells, day.cells, train_nulls, day.nulls)
    else:
        train_bins: Counter[int] = Counter()
        for column in train:
            train_bins.update(dict(column.bins))
        binned = bin_numbers(train_bins, dict(day.bins), train_nulls, day.nulls)
    drift = drift_of(binned)
    train_counts = {shortened(value): count for value, count, _ in values.top}
    new_values = {shortened(value) for value, _, _ in values.new_top}
    return ColumnReport(
        name=name,
        kind=day.kind,
        nulls=day.nulls,
        cells=day.cells,
        train_nulls=train_nulls,
        train_cells=train_cells,
        distinct=day.distinct,
        train_distinct=values.train_distinct if is_text else None,
        new_cells=values.new_cells if is_text else None,
        psi=drift.psi if drift else None,
        psi_noise=drift.noise if drift else None,
        moved=(str(shortened(drift.moved)), drift.moved_train_share, drift.moved_day_share)
        if drift
        else None,
        top=tuple(
            (value, count, train_counts.get(value, 0 if value in new_values else None))
            for value, count in day.top
        ),
        new_top=tuple((str(shortened(value)), count) for value, _, count in values.new_top[:_MAX_NEW_VALUES]),
        low=day.low,
        high=day.high,
        mean=day.mean,
    )


# The code below publishes the profile of a day: exact figures of the rows and of each raw feature column.
#
# Usually all rows of a day are in one split. If instead one partition of the log is divided into splits, each
# of these splits has its own profile.

# This number is part of the inputs of every profile. Increase it if the meaning of a figure changes.
FORMAT = 1
_MAX_CHARACTERS = 200


class CountedDays(Protocol):
    """Computes figures of days from value counts, which an earlier pass over the log has published."""

    def figures_of(
        self,
        days: Sequence[SplitOfDay],
        train: Sequence[SplitOfDay],
        day: SplitOfDay,
        columns: Sequence[CountedColumn],
    ) -> tuple[list[dict[str, ColumnSummary]], dict[str, Values]]:
        """Returns the summaries of `days`, and the comparison of the day `day` with the train days.

        The first result has one dictionary for each of `days`, which maps each column and the label to its
        summary. The second result maps the name of each categorical column to its comparison.
        """

    def table_inputs(self, raw: RawFiles) -> dict[str, str]:
        """Returns the digests of the tables with which the rows of a day were joined.

        They are the tables of users and items, and tables of earlier days, such as the last values.
        """


@dataclass(frozen=True)
class SplitOfDay:
    """The rows of a day that are in one split.

    Attributes:
        raw: the raw files of the day.
        cut: True if other rows of the day are in other splits.
    """

    raw: RawFiles
    split: Split
    cut: bool


@dataclass(frozen=True)
class ColumnProfile:
    """The exact figures of one raw feature column.

    Attributes:
        nulls, cells: number of cells that are null, and number of cells that are not null.
        distinct: number of distinct values.
        top: the most frequent values, as pairs (value, number of cells). Long strings are shortened to 200
            characters.
        low, high, mean: minimum, maximum and mean of a numeric column; None for a text column.
        bins: a pair (bin key, number of cells) for each histogram bin (metrics.psi); empty for a text
            column.
    """

    kind: str
    nulls: int
    cells: int
    distinct: int
    top: tuple[tuple[str | Number, int], ...]
    low: Number | None
    high: Number | None
    mean: float | None
    bins: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class DayProfile:
    """The published profile of a piece, which consists of the rows of a day that are in one split.

    Attributes:
        partition: the published partition.
        manifest: the manifest of this partition.
        rows, clicks: number of rows, and number of rows with a click.
        columns: maps the name of each raw feature column to its profile.
    """

    piece: SplitOfDay
    partition: Partition
    manifest: Manifest
    rows: int
    clicks: int
    columns: Mapping[str, ColumnProfile]


def profiles_of(
    plan: FeaturePlan,
    lake: LakePaths,
    pieces: Sequence[SplitOfDay],
    counted: CountedDays,
) -> tuple[list[DayProfile], dict[str, Values] | None]:
    """Publishes a profile of each piece of the log in `profiles/<config name>`. Returns the profiles.

    A piece is the set of rows of a day that are in one split. Its profile is a partition. The facts of the
    partition's manifest contain the figures. If the inputs of a published profile have not changed, the
    profile is read. All other profiles are computed from the value counts of their days.

    Args:
        pieces: the days and their splits. One profile is published for each of them.
        counted: the value counts of the days.

    Returns:
        The profiles in the order of `pieces`, and the comparison of the last test day with the train days
        (CountedDays.figures_of). The comparison is None if no profile was missing.
    """
    columns = feature_columns(plan)
    targets = [
        _Target(piece, _partition(plan, lake, piece), _inputs(plan, piece, columns, counted))
        for piece in pieces
    ]
    manifests = {target.partition: current_manifest(target.partition, target.inputs) for target in targets}
    missing = [target for target in targets if manifests[target.partition] is None]
    compared = None
    if missing:
        train, day = compared_days(pieces)
        pieces_of_missing = [target.piece for target in missing]
        summaries_of_days, compared = counted.figures_of(pieces_of_missing, train, day, columns)
        manifests |= _publish_counted(missing, columns, summaries_of_days)
    profiles = [
        _from_manifest(target.piece, target.partition, manifest)
        for target in targets
        if (manifest := manifests[target.partition]) is not None
    ]
    return profiles, compared


def most_frequent_of_days(
    lake: LakePaths,
    config_name: str,
    days: Sequence[tuple[str, Split | None]],
    columns: Mapping[str, Type],
) -> dict[str, str | Number]:
    """Returns, for each raw column, its most frequent value on some days, according to their profiles.

    The counts of the 20 most frequent values of each day are added up over the days. Of several values with
    the same number of rows, the smallest is returned. A column is left out if no profile has a value of it,
    or if its most frequent value is a string that `shortened` has cut. If a categorical feature reads a
    numeric column, the profile stores its numbers as strings. This function converts them back to numbers.

    Args:
        lake: the lake with the profiles.
        config_name: the name of the configuration.
        days: the dates, with the split of the rows if a date has rows of several splits.
        columns: maps each raw column to its type.
    """
    totals: dict[str, Counter[str | Number]] = {name: Counter() for name in columns}
    for dt, split in days:
        partition = lake.profiles(config_name, split).partition(dt)
        known = read_manifest(partition).facts["columns"] if is_published(partition) else {}
        for name, total in totals.items():
            for value, count in known.get(name, {"top": ()})["top"]:
                total[_typed(value, columns[name])] += count
    values = {
        name: min(total, key=lambda value: (-total[value], value)) for name, total in totals.items() if total
    }
    return {name: value for name, value in values.items() if len(str(value)) <= _MAX_CHARACTERS}


def _typed(value: str | Number, kind: Type) -> str | Number:
    """Converts a value of a profile to the type of its column."""
    if kind == "int":
        return int(value)
    return float(value) if kind == "float" else str(value)


def compared_days(pieces: Sequence[SplitOfDay]) -> tuple[list[SplitOfDay], SplitOfDay]:
    """Returns what is compared: the rows of each train day, and the rows of the last test day."""
    train = [piece for piece in pieces if piece.split == "train"]
    return train, [piece for piece in pieces if piece.split == "test"][-1]


@dataclass(frozen=True)
class _Target:
    """A day's rows in one split, the partition of their profile, and the digests of the profile's inputs."""

    piece: SplitOfDay
    partition: Partition
    inputs: Mapping[str, str]


def _partition(plan: FeaturePlan, lake: LakePaths, piece: SplitOfDay) -> Partition:
    return lake.profiles(plan.config.name, piece.split if piece.cut else None).partition(piece.raw.dt)


def _inputs(
    plan: FeaturePlan, piece: SplitOfDay, columns: Sequence[CountedColumn], counted: CountedDays
) -> dict[str, str]:
    """Returns the digest of each input of a day's profile, by the name of the input."""
    kinds = [[column.name, column.kind] for column in columns]
    split = config_digest(plan.config, "split") if piece.cut else ""
    return {
        "raw": piece.raw.digest,
        "layout": plan.layout,
        "profile": digest_of([FORMAT, kinds, config_digest(plan.config, "negatives"), split, True]),
        **impression_inputs(plan.config, piece.raw),
        **plan.methods,
        **counted.table_inputs(piece.raw),
    }


def _publish_counted(
    missing: Sequence[_Target],
    columns: Sequence[CountedColumn],
    summaries_of_days: Sequence[Mapping[str, ColumnSummary]],
) -> dict[Partition, Manifest]:
    """Publishes the missing profiles of days. Their figures are the summaries of the days' columns."""
    kinds = {column.name: column.kind for column in columns}
    return {
        target.partition: publish_facts(
            target.partition, inputs=target.inputs, facts=_profile_facts(kinds, summaries)
        )
        for target, summaries in zip(missing, summaries_of_days, strict=True)
    }


def _profile_facts(kinds: Mapping[str, str], summaries: Mapping[str, ColumnSummary]) -> dict[str, Any]:
    label = summaries[LABEL_CELLS]
    return {
        "rows": label.cells,
        "clicks": dict(label.top).get(1.0, 0),
        "columns": {name: _facts(kinds[name], summaries[name]) for name in kinds},
    }


def _facts(kind: str, summary: ColumnSummary) -> dict[str, Any]:
    return vars(
        ColumnProfile(
            kind=kind,
            nulls=summary.nulls,
            cells=summary.cells,
            distinct=summary.distinct,
            top=tuple((shortened(value), count) for value, count in summary.top),
            low=summary.low,
            high=summary.high,
            mean=summary.mean,
            bins=tuple(sorted((summary.bins or {}).items())),
        )
    )


def shortened(value: str | Number) -> str | Number:
    """Shortens a long string for the facts of a manifest. Numbers and short strings are returned unchanged.

    Without this limit, a manifest could become very large, because strings in a raw log may have any length.
    """
    if not isinstance(value, str) or len(value) <= _MAX_CHARACTERS:
        return value
    return value[:_MAX_CHARACTERS] + "…"


def _from_manifest(piece: SplitOfDay, partition: Partition, manifest: Manifest) -> DayProfile:
    facts = manifest.facts
    columns = {
        name: ColumnProfile(
            **{
                **values,
                "top": tuple((value, count) for value, count in values["top"]),
                "bins": tuple((key, count) for key, count in values["bins"]),
            }
        )
        for name, values in facts["columns"].items()
    }
    return DayProfile(piece, partition, manifest, facts["rows"], facts["clicks"], columns)
