"""The data report of a run date: profiles of its days, the day against its training window, and what is above a limit."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from conf.types import SPLITS, Config, Split
from etl.quality.checks import Finding, enforce, find
from etl.quality.counts import feature_columns
from etl.quality.day_values import Values, compare_values
from etl.quality.profile import ColumnProfile, CountedDays, Piece, Profile, profiles_of, shown
from etl.quality.report_types import ColumnReport, Comparison, PieceRows
from etl.raw.files import RawFiles
from metrics.psi import bin_names, bin_numbers, drift_of
from storage.manifest import combined_digest, is_published, read_manifest
from storage.paths import Lake
from storage.publish import publish_facts

log = logging.getLogger("nightrank.etl")

_SHOWN_NEW = 5


@dataclass(frozen=True)
class DataReport:
    """What was compared, and the figures above their limits; none of them stops the job."""

    compared: Comparison
    findings: tuple[Finding, ...]

    @property
    def warnings(self) -> list[str]:
        return [each.said for each in self.findings]


def report_quality(
    spark: SparkSession,
    config: Config,
    lake: Lake,
    run_date: str,
    splits: Mapping[Split, list[RawFiles]],
    rows_of: Callable[[RawFiles], DataFrame],
    counted: CountedDays | None = None,
) -> DataReport:
    """Publishes `quality/<config name>/dt=<run date>` and holds it against the limits of the section `quality`.

    The last day of the test split is compared with all of the train split. Days whose log has not changed since an
    earlier night are not read again; a run date whose days have not changed costs no Spark job. The report is published
    even when a limit stops the job.

    Args:
        splits: the raw days of each split; for a log that is cut inside one partition, all hold that one.
        rows_of: the prepared rows of a day (etl.spark.split_rows).
        counted: the days, where their values are counted already.

    Raises:
        DataError: a figure is above a `_stop` limit; or see `storage.publish`.
    """
    cut = config.split.by != "day"
    pieces = [Piece(raw, split, cut) for split in SPLITS for raw in splits[split]]
    ordered = sorted(pieces, key=lambda piece: (piece.raw.dt, SPLITS.index(piece.split)))
    profiles = profiles_of(config, lake, ordered, rows_of, counted)
    partition = lake.quality(config.name).partition(run_date)
    inputs = {
        "profiles": combined_digest((f"{p.piece.split} {p.manifest.digest}" for p in profiles), lake.recorder)
    }
    known = read_manifest(partition) if is_published(partition) else None
    if known is not None and dict(known.inputs) == inputs:
        compared = Comparison.from_facts(known.facts)
    else:
        compared = _compare(spark, config, profiles, counted)
    findings = find(config.quality, config.split, compared)
    facts: dict[str, Any] = {**compared.to_facts(), "findings": [asdict(each) for each in findings]}
    if known is None or dict(known.inputs) != inputs or known.facts != json.loads(json.dumps(facts)):
        publish_facts(partition, inputs=inputs, facts=facts)
    for each in findings:
        log.warning("data quality, %s (%s=%.4g): %s", each.level, each.check, each.value, each.said)
    enforce(compared, findings, partition.path)
    return DataReport(compared, tuple(findings))


def _compare(
    spark: SparkSession, config: Config, profiles: list[Profile], counted: CountedDays | None
) -> Comparison:
    train = [each for each in profiles if each.piece.split == "train"]
    today = [each for each in profiles if each.piece.split == "test"][-1]
    values = (
        counted.compared([each.piece.raw for each in train], today.piece.raw, feature_columns(config))
        if counted
        else compare_values(spark, [each.partition for each in train], today.partition)
    )
    columns = (
        _column(name, profile, [each.columns[name] for each in train], values.get(name, Values()))
        for name, profile in today.columns.items()
    )
    pieces = (PieceRows(p.piece.raw.dt, p.piece.split, p.rows, p.clicks) for p in profiles)
    return Comparison(today.piece.raw.dt, today.piece.cut, tuple(pieces), tuple(columns))


def _column(name: str, day: ColumnProfile, train: list[ColumnProfile], values: Values) -> ColumnReport:
    train_nulls, train_cells = sum(each.nulls for each in train), sum(each.cells for each in train)
    names = day.kind == "string"
    if names:
        binned = bin_names(values.top, train_cells, day.cells, train_nulls, day.nulls)
    else:
        window: Counter[int] = Counter()
        for each in train:
            window.update(dict(each.bins))
        binned = bin_numbers(window, dict(day.bins), train_nulls, day.nulls)
    drift = drift_of(binned)
    before = {shown(value): count for value, count, _ in values.top}
    new = {shown(value) for value, _, _ in values.new_top}
    return ColumnReport(
        name=name,
        kind=day.kind,
        nulls=day.nulls,
        cells=day.cells,
        train_nulls=train_nulls,
        train_cells=train_cells,
        distinct=day.distinct,
        train_distinct=values.train_distinct if names else None,
        new_cells=values.new_cells if names else None,
        psi=drift.psi if drift else None,
        psi_noise=drift.noise if drift else None,
        moved=(str(shown(drift.moved)), drift.moved_train_share, drift.moved_day_share) if drift else None,
        top=tuple((value, count, before.get(value, 0 if value in new else None)) for value, count in day.top),
        new_top=tuple((str(shown(value)), count) for value, _, count in values.new_top[:_SHOWN_NEW]),
        low=day.low,
        high=day.high,
        mean=day.mean,
    )
