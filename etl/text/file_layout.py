"""FileLayout: the part of the configuration that workers need to convert the lines of a log to rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from conf.types import Column, Config, EventTime, Keys, Label
from etl.ops.base import Type
from etl.ops.dropna import Dropna
from etl.ops.expression import kinds_of
from etl.ops.filter import Filter
from etl.ops.formula import Formula, parse
from etl.raw.erased_rows import erased_of_day
from etl.raw.files import RawFiles
from etl.raw.parse import common_header, positions_in
from etl.workflow.feature_plan import plan
from storage.erased_users import ErasedUsers


@dataclass(frozen=True)
class FileLayout:
    """Layout and rules of a log's text files.

    Attributes:
        columns: the raw columns of the configuration.
        positions: for each column, the index of its field in a line; None for an optional column that the
            files do not have.
        width: number of fields in a line.
        separator: one ASCII character.
        null_values: the texts of a field that stand for null.
        header: whether each file begins with a line of column names.
        quoted: whether fields may be enclosed in double quotes.
        label: column and threshold of the label.
        keys: columns of user, item and group.
        event_time: column and unit of the time.
        filters: for each operator that drops rows: (reason, columns that must not be null, formula that must
            be true).
        erased: maps the path of a file to the erased users whose rows in it are left out. Files without such
            users are missing.
    """

    columns: tuple[Column, ...]
    positions: tuple[int | None, ...]
    width: int
    separator: str
    null_values: tuple[str, ...]
    header: bool
    quoted: bool
    label: Label
    keys: Keys | None
    event_time: EventTime | None
    filters: tuple[tuple[str, tuple[str, ...], str | None], ...]
    erased: Mapping[str, ErasedUsers] = field(default_factory=dict)

    @property
    def types(self) -> Mapping[str, Type]:
        """Maps the name of each raw column to its type."""
        return {column.name: column.type for column in self.columns}

    def formula(self, text: str) -> Formula:
        """Returns the parsed formula, which may refer to the raw columns."""
        return parse(text, kinds_of(self.types))


def layout_of_days(config: Config, days: Sequence[RawFiles]) -> FileLayout:
    """Returns the layout of the text files of some days, without the rows of erased users.

    Raises:
        DataError: see `file_layout`.
    """
    layout = file_layout(config, tuple(path for raw in days for path in raw.paths))
    erased = {raw: users for raw in days if (users := erased_of_day(config, raw.dt)) is not None}
    return replace(layout, erased={path: users for raw, users in erased.items() for path in raw.paths})


def file_layout(config: Config, paths: tuple[str, ...]) -> FileLayout:
    """Returns the layout of a log's text files.

    Raises:
        DataError: the header of a csv file lacks a column, or differs from the headers of the other files.
    """
    log = config.log
    positions: list[int | None] = list(range(len(log.columns)))
    width = len(log.columns)
    if log.format == "csv":
        positions, width = positions_in(common_header(paths, log), log, paths)
    filters = tuple(
        (
            operator.reason,
            operator.columns if isinstance(operator, Dropna) else (),
            operator.keep if isinstance(operator, Filter) else None,
        )
        for operator in plan(config).filters
    )
    return FileLayout(
        columns=tuple(log.columns),
        positions=tuple(positions),
        width=width,
        separator=log.field_separator,
        null_values=tuple(log.null_values),
        header=log.format == "csv",
        quoted=log.format == "csv",
        label=log.label,
        keys=config.keys,
        event_time=log.event_time,
        filters=filters,
    )
