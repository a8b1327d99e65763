"""FileLayout: the part of the configuration that workers need to read the rows of a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from conf.raw_types import RawTable
from conf.types import Column, EventTime, Keys, Label
from etl.ops.base import Type
from etl.ops.frames import RowFilter
from etl.raw.erased_rows import erased_of_day
from etl.raw.files import RawFiles
from etl.readers.base import TableReader
from etl.readers.discovery import open_table
from etl.workflow.feature_plan import Plan
from storage.erased_users import ErasedUsers


@dataclass(frozen=True)
class FileLayout:
    """The reader and the rules of a log.

    Attributes:
        reader: reads the files.
        label: column and threshold of the label.
        keys: columns of user, item and group.
        event_time: column and unit of the time.
        filters: the operators that drop rows.
        erased: maps the path of a file to the erased users whose rows in it are left out. Files without such
            users are missing.
    """

    reader: TableReader
    label: Label
    keys: Keys | None
    event_time: EventTime | None
    filters: tuple[RowFilter, ...]
    erased: Mapping[str, ErasedUsers] = field(default_factory=dict)

    @property
    def table(self) -> RawTable:
        """Returns the columns and the format of the files."""
        return self.reader.table

    @property
    def columns(self) -> tuple[Column, ...]:
        """Returns the raw columns of the configuration."""
        return tuple(self.table.columns)

    @property
    def types(self) -> Mapping[str, Type]:
        """Maps the name of each raw column to the type that operators see."""
        return self.table.types


def layout_of_days(plan: Plan, days: Sequence[RawFiles]) -> FileLayout:
    """Returns the layout of the files of some days, without the rows of erased users.

    Raises:
        DataError: see `file_layout`.
    """
    layout = file_layout(plan, tuple(path for raw in days for path in raw.paths))
    erased = {raw: users for raw in days if (users := erased_of_day(plan.config, raw.dt)) is not None}
    return replace(layout, erased={path: users for raw, users in erased.items() for path in raw.paths})


def file_layout(plan: Plan, paths: tuple[str, ...]) -> FileLayout:
    """Returns the layout of a log's files.

    Raises:
        DataError, ConfigError: see etl.readers.base.TableReader.open.
        ConfigError: an operator that drops rows has no form for blocks of rows.
    """
    log = plan.config.log
    filters = plan.filters
    for row_filter in filters:
        row_filter.inputs(log.types)  # raises an error if the operator has no form for blocks
    reader = open_table(log, paths, log.event_time)
    return FileLayout(reader, log.label, plan.config.keys, log.event_time, filters)
