"""The profile of one day (or of one split of a log that is cut inside its one partition), made once for each delivery."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from conf.load import config_digest
from conf.types import Config, Split
from etl.quality.column_summary import Summary, summarise_counts
from etl.quality.counts import LABEL_CELLS, Column, count_cells, feature_columns
from etl.quality.day_values import Values
from etl.quality.report_types import Number
from etl.raw.files import RawFiles, require_raw
from etl.spark.quarantine import layout_digest
from etl.spark.split_rows import preparation
from etl.split.time_split import SPLIT
from storage.manifest import Manifest, current_manifest, digest_of
from storage.paths import Lake, Partition
from storage.publish import Rules, publish, publish_facts

log = logging.getLogger("nightrank.etl")

# Part of every profile's inputs: raise it when the meaning of a figure changes.
FORMAT = 1

_SHOWN_CHARACTERS = 200


class CountedDays(Protocol):
    """Days whose values were counted when they were read."""

    def summaries_of(
        self, days: Sequence[RawFiles], columns: Sequence[Column]
    ) -> list[dict[str, Summary]]: ...

    def compared(
        self, train: Sequence[RawFiles], day: RawFiles, columns: Sequence[Column]
    ) -> dict[str, Values]: ...


@dataclass(frozen=True)
class Piece:
    """What has a profile: the day's rows in a split. `cut`: the day's other rows are in other splits."""

    raw: RawFiles
    split: Split
    cut: bool


@dataclass(frozen=True)
class ColumnProfile:
    """One raw feature column; see etl.quality.column_summary for the meaning. `mean`, `low`, `high` and `bins` are of numbers.

    Every figure is exact. `top` shows the first 200 characters of a value; `bins` has (key, cells), see metrics.histogram.
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
class Profile:
    """Rows, rows with a click, and column → its profile. `manifest` is that of the published partition."""

    piece: Piece
    partition: Partition
    manifest: Manifest
    rows: int
    clicks: int
    columns: Mapping[str, ColumnProfile]


def profiles_of(
    config: Config,
    lake: Lake,
    pieces: Sequence[Piece],
    rows_of: Callable[[RawFiles], DataFrame],
    counted: CountedDays | None = None,
) -> list[Profile]:
    """The profiles of pieces, in their order: published as `profiles/<config name>/…/dt=…`, or read where up to date.

    A partition's facts are the profile; its rows (column, value, count) are the values of the categorical columns, which
    the values of other days are held against. What is up to date costs no Spark job, all the rest one pass together.

    Args:
        rows_of: the prepared rows of a day (etl.spark.split_rows).
        counted: days whose values are counted already: their rows are not read, and the partitions hold facts alone.
    """
    columns = feature_columns(config)
    wanted = [
        _Wanted(piece, _partition(config, lake, piece), _inputs(config, piece, columns, counted is not None))
        for piece in pieces
    ]
    known = {each.partition: current_manifest(each.partition, each.inputs) for each in wanted}
    missing = [each for each in wanted if known[each.partition] is None]
    if missing:
        known |= (
            _publish_counted(missing, columns, counted)
            if counted
            else _publish(config, missing, columns, rows_of)
        )
    return [
        _from_manifest(each.piece, each.partition, manifest)
        for each in wanted
        if (manifest := known[each.partition]) is not None
    ]


@dataclass(frozen=True)
class _Wanted:
    """A piece, where its profile stands, and the digests of everything it follows from."""

    piece: Piece
    partition: Partition
    inputs: Mapping[str, str]


def _partition(config: Config, lake: Lake, piece: Piece) -> Partition:
    return lake.profiles(config.name, piece.split if piece.cut else None).partition(piece.raw.dt)


def _inputs(config: Config, piece: Piece, columns: Sequence[Column], counted: bool) -> dict[str, str]:
    """Digests of everything a profile follows from."""
    kinds = [[column.name, column.kind] for column in columns]
    split = config_digest(config, "split") if piece.cut else ""
    inputs = {
        "raw": piece.raw.digest,
        "layout": layout_digest(config),
        "profile": digest_of([FORMAT, kinds, config_digest(config, "negatives"), split, counted]),
        **preparation(config),
    }
    for section, table in (("users", config.users), ("items", config.items)):
        if table:
            inputs[section] = require_raw(
                config, table, piece.raw.dt, f"{section}.path", piece.raw.recorder
            ).digest
    return inputs


def _publish_counted(
    missing: Sequence[_Wanted], columns: Sequence[Column], counted: CountedDays
) -> dict[Partition, Manifest]:
    """Profiles of days from their value counts."""
    kinds = {column.name: column.kind for column in columns}
    found = counted.summaries_of([each.piece.raw for each in missing], columns)
    return {
        each.partition: publish_facts(
            each.partition, inputs=each.inputs, facts=_profile_facts(kinds, summaries)
        )
        for each, summaries in zip(missing, found, strict=True)
    }


def _profile_facts(kinds: Mapping[str, str], summaries: Mapping[str, Summary]) -> dict[str, Any]:
    label = summaries[LABEL_CELLS]
    return {
        "rows": label.cells,
        "clicks": dict(label.top).get(1.0, 0),
        "columns": {name: _facts(kinds[name], summaries[name]) for name in kinds},
    }


def _publish(
    config: Config,
    missing: Sequence[_Wanted],
    columns: Sequence[Column],
    rows_of: Callable[[RawFiles], DataFrame],
) -> dict[Partition, Manifest]:
    """Profiles the pieces in one pass over their rows and publishes them one by one."""
    kinds = {column.name: column.kind for column in columns}
    names = [column.name for column in columns if not column.numeric]
    counts = count_cells([_rows(each.piece, rows_of) for each in missing], columns).persist()
    try:
        found = summarise_counts(counts, len(missing), {LABEL_CELLS: "float", **kinds})
        published = {}
        for place, (each, summaries) in enumerate(zip(missing, found, strict=True)):
            log.info("profile of %s: %d rows", each.partition.dt, summaries[LABEL_CELLS].cells)
            mine = counts.where(F.col("piece") == place)
            published[each.partition] = publish(
                mine.where(F.col("column").isin(names) & F.col("value").isNotNull()).drop("piece"),
                each.partition,
                inputs=each.inputs,
                row_group_rows=config.output.row_group_rows,
                expected_rows=sum(summaries[name].distinct for name in names),
                facts=_profile_facts(kinds, summaries),
                rules=Rules(not_null=["column", "value", "count"]),
                grace_hours=config.output.grace_hours,
            )
        return published
    finally:
        counts.unpersist()


def _rows(piece: Piece, rows_of: Callable[[RawFiles], DataFrame]) -> DataFrame:
    rows = rows_of(piece.raw)
    return rows.where(F.col(SPLIT) == piece.split) if piece.cut else rows


def _facts(kind: str, summary: Summary) -> dict[str, Any]:
    return asdict(
        ColumnProfile(
            kind=kind,
            nulls=summary.nulls,
            cells=summary.cells,
            distinct=summary.distinct,
            top=tuple((shown(value), count) for value, count in summary.top),
            low=summary.low,
            high=summary.high,
            mean=summary.mean,
            bins=tuple(sorted((summary.bins or {}).items())),
        )
    )


def shown(value: str | Number) -> str | Number:
    """A value as facts hold it: a raw log may hold one of any length."""
    if not isinstance(value, str) or len(value) <= _SHOWN_CHARACTERS:
        return value
    return value[:_SHOWN_CHARACTERS] + "…"


def _from_manifest(piece: Piece, partition: Partition, manifest: Manifest) -> Profile:
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
    return Profile(piece, partition, manifest, facts["rows"], facts["clicks"], columns)
