"""How the lines of a log become rows: what a worker needs to know of the configuration, small enough to be sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from conf.types import Column, Config, EventTime, Keys, Label
from etl.ops.base import Type
from etl.ops.dropna import Dropna
from etl.ops.expression import kinds_of
from etl.ops.filter import Filter
from etl.ops.formula import Formula, parse
from etl.raw.parse import common_header, positions_in
from etl.workflow.feature_plan import plan


@dataclass(frozen=True)
class FileLayout:
    """The log's layout and rules.

    Attributes:
        positions: place in a line of each column.
        width: fields a line must have.
        header: whether each file begins with a line of names.
        quoted: whether fields may stand in double quotes.
        filters: (reason, columns that must not be null, formula that must hold) of the operators that leave rows out.
    """

    columns: tuple[Column, ...]
    positions: tuple[int, ...]
    width: int
    separator: str
    header: bool
    quoted: bool
    label: Label
    keys: Keys | None
    event_time: EventTime | None
    filters: tuple[tuple[str, tuple[str, ...], str | None], ...]

    @property
    def types(self) -> Mapping[str, Type]:
        return {column.name: column.type for column in self.columns}

    def formula(self, text: str) -> Formula:
        return parse(text, kinds_of(self.types))


def file_layout(config: Config, paths: tuple[str, ...]) -> FileLayout:
    """The layout of a log's text files.

    Raises:
        DataError: a csv file's header lacks a column or differs from the others.
    """
    log = config.log
    positions, width = list(range(len(log.columns))), len(log.columns)
    if log.format == "csv":
        positions, width = positions_in(common_header(paths, log), log, paths)
    filters = tuple(
        (
            each.reason,
            each.columns if isinstance(each, Dropna) else (),
            each.keep if isinstance(each, Filter) else None,
        )
        for each in plan(config).filters
    )
    return FileLayout(
        columns=tuple(log.columns),
        positions=tuple(positions),
        width=width,
        separator=log.separator,
        header=log.format == "csv",
        quoted=log.format == "csv",
        label=log.label,
        keys=config.keys,
        event_time=log.event_time,
        filters=filters,
    )
