"""Publishes the profile of a day: exact figures of the rows and of each raw feature column.

Usually all rows of a day are in one split. If instead one partition of the log is divided into splits, each
of these splits has its own profile.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from conf.load import config_digest
from conf.types import Split
from etl.quality.column_summary import Summary
from etl.quality.counts import LABEL_CELLS, Column, feature_columns
from etl.quality.new_values import Values
from etl.quality.report_rates import Number
from etl.raw.files import RawFiles, require_raw
from etl.raw.impression_log import impression_inputs
from etl.workflow.feature_plan import Plan
from storage.manifest import Manifest, current_manifest, digest_of
from storage.paths import Lake, Partition
from storage.publish import publish_facts

log = logging.getLogger("nightrank.etl")

# Part of the inputs of every profile. Raise it when the meaning of a figure changes.
FORMAT = 1

_MAX_CHARACTERS = 200


class CountedDays(Protocol):
    """Figures of days whose values were counted while the text of their log was read."""

    def figures_of(
        self, days: Sequence[Piece], train: Sequence[Piece], day: Piece, columns: Sequence[Column]
    ) -> tuple[list[dict[str, Summary]], dict[str, Values]]:
        """Returns summaries of days, and the comparison of one day with the train days.

        There is one dictionary for each of `days`, which maps each column and the label to its summary. The
        comparisons of the categorical columns are by column name.
        """

    def table_inputs(self, raw: RawFiles) -> dict[str, str]:
        """Returns the digests of the tables of users and items with which the rows of a day were joined."""


@dataclass(frozen=True)
class Piece:
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
        distinct: number of different values.
        top: the most frequent values, as pairs (value, number of cells). Long texts are shortened to 200
            characters.
        low, high, mean: minimum, maximum and mean of a numeric column; None for a text column.
        bins: a pair (bin key, number of cells) for each histogram bin (metrics.histogram); empty for a text
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
class Profile:
    """The published profile of a piece, which consists of the rows of a day that are in one split.

    Attributes:
        partition: the published partition.
        manifest: the manifest of this partition.
        rows, clicks: number of rows, and number of rows with a click.
        columns: maps the name of each raw feature column to its profile.
    """

    piece: Piece
    partition: Partition
    manifest: Manifest
    rows: int
    clicks: int
    columns: Mapping[str, ColumnProfile]


def profiles_of(
    plan: Plan,
    lake: Lake,
    pieces: Sequence[Piece],
    counted: CountedDays,
) -> tuple[list[Profile], dict[str, Values] | None]:
    """Publishes a profile of each piece of the log below `profiles/<config name>`. Returns them in order.

    A piece is the set of rows of a day that are in one split. Its profile is a partition. The facts of the
    partition's manifest contain the figures. If the inputs of a published profile have not changed, the
    profile is read. All other profiles are computed from the value counts of their days.

    Args:
        pieces: the pieces; one profile is published for each of them.
        counted: the value counts of the days.

    Returns:
        The profiles, and the comparison of the last test day with the train days (CountedDays.figures_of).
        The comparison is None if no profile was missing.
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


def compared_days(pieces: Sequence[Piece]) -> tuple[list[Piece], Piece]:
    """Returns the pieces of the train days, and that of the last test day, which is compared with them."""
    train = [piece for piece in pieces if piece.split == "train"]
    return train, [piece for piece in pieces if piece.split == "test"][-1]


@dataclass(frozen=True)
class _Target:
    """A piece, the partition of its profile, and the digests of all inputs of the profile."""

    piece: Piece
    partition: Partition
    inputs: Mapping[str, str]


def _partition(plan: Plan, lake: Lake, piece: Piece) -> Partition:
    return lake.profiles(plan.config.name, piece.split if piece.cut else None).partition(piece.raw.dt)


def _inputs(plan: Plan, piece: Piece, columns: Sequence[Column], counted: CountedDays) -> dict[str, str]:
    """Returns, by name, the digest of each input of a profile."""
    kinds = [[column.name, column.kind] for column in columns]
    split = config_digest(plan.config, "split") if piece.cut else ""
    inputs = {
        "raw": piece.raw.digest,
        "layout": plan.layout,
        "profile": digest_of([FORMAT, kinds, config_digest(plan.config, "negatives"), split, True]),
        **impression_inputs(plan.config, piece.raw),
        **plan.methods,
    }
    if counted is not None:
        return inputs | counted.table_inputs(piece.raw)
    for section, table in (("users", plan.config.users), ("items", plan.config.items)):
        if table:
            inputs[section] = require_raw(
                plan.config, table, piece.raw.dt, f"{section}.path", piece.raw.recorder
            ).digest
    return inputs


def _publish_counted(
    missing: Sequence[_Target], columns: Sequence[Column], summaries_of_days: Sequence[Mapping[str, Summary]]
) -> dict[Partition, Manifest]:
    """Publishes profiles of days from the summaries of their columns."""
    kinds = {column.name: column.kind for column in columns}
    return {
        target.partition: publish_facts(
            target.partition, inputs=target.inputs, facts=_profile_facts(kinds, summaries)
        )
        for target, summaries in zip(missing, summaries_of_days, strict=True)
    }


def _profile_facts(kinds: Mapping[str, str], summaries: Mapping[str, Summary]) -> dict[str, Any]:
    label = summaries[LABEL_CELLS]
    return {
        "rows": label.cells,
        "clicks": dict(label.top).get(1.0, 0),
        "columns": {name: _facts(kinds[name], summaries[name]) for name in kinds},
    }


def _facts(kind: str, summary: Summary) -> dict[str, Any]:
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
    """Shortens a long text for the facts of a manifest. Numbers and short texts are returned unchanged.

    A raw log may contain texts of any length.
    """
    if not isinstance(value, str) or len(value) <= _MAX_CHARACTERS:
        return value
    return value[:_MAX_CHARACTERS] + "…"


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
