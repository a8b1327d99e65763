"""Publishes the data report of a run date, which compares the last test day with the train days.

The report also lists the figures that are above their limits.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conf.types import SPLITS, Split
from etl.quality.checks import Finding, check_limits, require_no_stop
from etl.quality.counts import feature_columns
from etl.quality.new_values import Values
from etl.quality.profile import (
    ColumnProfile,
    CountedDays,
    Piece,
    Profile,
    compared_days,
    profiles_of,
    shortened,
)
from etl.quality.report_rates import ColumnReport, Comparison, PieceRows
from etl.raw.files import RawFiles
from etl.workflow.feature_plan import Plan
from metrics.psi import bin_names, bin_numbers, drift_of
from storage.manifest import combined_digest, is_published, read_manifest
from storage.paths import Lake
from storage.publish import publish_facts

log = logging.getLogger("nightrank.etl")

_MAX_NEW_VALUES = 5


@dataclass(frozen=True)
class DataReport:
    """The comparison of a day with the train days, and the figures above their limits.

    All findings have the level "warn", because `report_quality` raises an error for the level "stop".
    """

    compared: Comparison
    findings: tuple[Finding, ...]

    @property
    def warnings(self) -> list[str]:
        """Returns the messages of the findings."""
        return [finding.message for finding in self.findings]


def report_quality(
    plan: Plan,
    lake: Lake,
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
    pieces = [Piece(raw, split, cut) for split in SPLITS for raw in splits[split]]
    ordered = sorted(pieces, key=lambda piece: (piece.raw.dt, SPLITS.index(piece.split)))
    profiles, new_values = profiles_of(plan, lake, ordered, counted)
    partition = lake.quality(plan.config.name).partition(run_date)
    inputs = {
        "profiles": combined_digest((f"{p.piece.split} {p.manifest.digest}" for p in profiles), lake.recorder)
    }
    known = read_manifest(partition) if is_published(partition) else None
    if known is not None and dict(known.inputs) == inputs:
        compared = Comparison.from_facts(known.facts)
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
    plan: Plan,
    profiles: list[Profile],
    counted: CountedDays,
    values: Mapping[str, Values] | None,
) -> Comparison:
    """Compares the last test day with the train days.

    `values` is the comparison of the text columns if it has been made with the profiles.
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
    return Comparison(today.piece.raw.dt, today.piece.cut, tuple(pieces), tuple(columns))


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
