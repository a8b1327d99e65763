"""Finds the copies of tables of Spark's catalogue in the lake, which tasks read as Parquet files.

Spark writes the copies (etl/spark/copy_tables.py). A copy has the columns that the configuration lists, with
the same names as in the table.
"""

from __future__ import annotations

import re

from conf.names import has_date
from conf.raw_types import Log, RawTable, TableOfRoles
from conf.types import Config
from storage.lineage import NOT_RECORDED, LineageRecorder
from storage.manifest import digest_of
from storage.paths import LakePaths, Partition, Table

COPIES = "copies"
ALL_DAYS = "all"  # Name of the partition if the table is not read by day.
# The fact in a copy's manifest with the name of the column of user ids; missing if there is no such column.
USER_COLUMN = "user"
# The fact with the digest of the rows. When erase_user removes rows, it also removes this fact.
CONTENT = "content"
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_CHARACTERS = 60


def is_by_day(table: RawTable) -> bool:
    """Returns whether the rows of the table are read by day."""
    return has_date(table.path)


def source_columns(table: RawTable) -> list[str]:
    """Returns the names of a raw table's columns in its files, each name once."""
    names = {column.name: column.source_name for column in table.columns}
    if isinstance(table, TableOfRoles):
        names = {name: names.get(name, name) for name in table.roles}
    return list(dict.fromkeys(names.values()))


def time_column(table: RawTable) -> str | None:
    """Returns the name of the event time's column in the table; None if there is none."""
    if not isinstance(table, Log) or table.event_time is None:
        return None
    name = table.event_time.column
    return next(column.source_name for column in table.columns if column.name == name)


def copies_of(config: Config, table: RawTable, recorder: LineageRecorder = NOT_RECORDED) -> Table:
    """Returns the table of the lake with the copies.

    The name of the table of copies depends on the columns and the path of `table`.
    """
    rules = [table.path, table.time_zone, sorted(source_columns(table)), time_column(table)]
    name = _UNFIT.sub("_", table.path.split("/")[0])[:_NAME_CHARACTERS].lstrip("._-")
    return LakePaths(config.lake, recorder).copies(config.name, f"{name or 'table'}-{digest_of(rules)}")


def copy_of(config: Config, table: RawTable, dt: str, recorder: LineageRecorder = NOT_RECORDED) -> Partition:
    """Returns the partition with the copied rows of a day, or with all rows if the table has no days."""
    return copies_of(config, table, recorder).partition(dt if is_by_day(table) else ALL_DAYS)
