"""The table sink: delivers lists, and optionally features, to tables of Delta Lake or Iceberg.

dated_tables.py writes the tables.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from pydantic import Field, field_validator, model_validator

from conf.names import NewFolder, scheme_of, split_table_path
from conf.types import PositiveInt, SinkSettings
from scoring.delivery.dated_tables import CatalogueTable, DayRows, DeltaFolder
from scoring.delivery.published_lists import (
    COLUMNS,
    Delivered,
    Erased,
    EraseRequest,
    LakeTable,
    PublishedLists,
)
from scoring.requests import VARIANT
from spark.rows import Rows, select, with_nulls
from storage.feature_spec import USER_KEY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("nightrank")

_LIST_COLUMNS = (*COLUMNS, "model_version", "workflow_version", VARIANT)
_USERS = "users"  # the only table of features with rows of users


class Settings(SinkSettings):
    """Tables of Delta Lake or Iceberg, with the date in the column `dt`, for Spark, DuckDB and other engines.

    A delivery replaces the rows of its date by one commit of the table. It never changes the columns of a
    table.
    """

    format: Literal["delta", "iceberg"] = Field(
        default="delta",
        description="Format of the tables. `delta`: Delta Lake. `iceberg`: Apache Iceberg; it needs `table`, "
        "and therefore Spark.",
    )
    path: NewFolder | None = Field(
        default=None,
        description="Folder of the Delta table with the lists: a local path or a URI of S3. `{lake}` "
        "and `{data}` are replaced by the values of these keys. It needs neither a catalogue nor Spark. "
        "Either `path` or `table` must be set.",
    )
    table: str | None = Field(
        default=None,
        description="Name of the table with the lists in Spark's catalogue, as schema.table or "
        "catalogue.schema.table. The Spark profile must have the jar and the settings of the format. If the "
        "table is missing, it is created; its schema must exist.",
    )
    features: list[Literal["users", "items"]] = Field(
        default=[],
        description="Tables of features that are delivered before the lists. `users`: the features of users, "
        "in a table with the suffix _users. `items`: those of items, in a table with the suffix _items.",
    )
    keep_dates: PositiveInt | None = Field(
        default=None,
        description="Number of dates that the tables keep. The rows of older dates are deleted. Null: all "
        "dates.",
    )

    @field_validator("path")
    @classmethod
    def _is_on_a_disk_or_s3(cls, path: str | None) -> str | None:
        if scheme_of(path or "") not in ("", "file", "s3a"):
            raise ValueError(f"{path!r} must be a local path or a URI that begins with s3a://")
        return None if path is None else path.rstrip("/")

    @field_validator("table")
    @classmethod
    def _is_a_name(cls, table: str | None) -> str | None:
        if table is not None:
            parts, conditions = split_table_path(table)
            if conditions or len(parts) < 2:
                raise ValueError(f"{table!r} must be schema.table or catalogue.schema.table")
        return table

    @model_validator(mode="after")
    def _one_place(self) -> Settings:
        if (self.path is None) == (self.table is None):
            raise ValueError(
                "set either `path`, the folder of a Delta table, or `table`, a name in Spark's catalogue"
            )
        if self.format == "iceberg" and self.table is None:
            raise ValueError(
                "a folder cannot be an Iceberg table, because a catalogue must name its current version: set "
                "`table` instead of `path`, and a Spark profile with this catalogue, or set `format: delta`"
            )
        return self

    @property
    def spark_settings(self) -> tuple[str, ...]:
        """Returns the settings without which Spark cannot open the table."""
        if self.table is None:
            return ()
        parts, _ = split_table_path(self.table)
        return (f"spark.sql.catalog.{parts[0] if len(parts) > 2 else 'spark_catalog'}",)


def _is_folder(sink: Settings) -> bool:
    """Returns whether the sink writes Delta tables in a folder, for which it needs no Spark."""
    return sink.path is not None


IN_PROCESS = _is_folder


def places(sink: Settings) -> list[str]:
    """Returns the tables of the sink."""
    prefix = "" if sink.path is not None else "table://"
    return [f"{prefix}{_target(sink)}{suffix}" for suffix in ("", *(f"_{name}" for name in sink.features))]


def deliver(sink: Settings, lists: PublishedLists) -> Delivered:
    """Replaces the rows of the lists' date in the tables of the sink, one commit for each table.

    The tables of features are replaced before the lists. Tables that already have the rows do not change. If
    the process is killed, each table has either all old or all new rows of the date.

    Args:
        sink: the keys of the sink in `deliver.sinks`.
        lists: the published lists of the date.

    Raises:
        ConfigError: Spark cannot open or create a table, or a table has another format or other partitions.
        DataError: the columns of a table differ from those of the rows, or the lake does not have the tables
            of `sink.features`.
        InfrastructureError: a table cannot be read or written, or other programs change it.
    """
    table = _open(sink, "", lambda: lists.frame.sparkSession)
    if sink.keep_dates is not None:
        kept = sorted({*table.dates(), lists.run_date}, reverse=True)[: sink.keep_dates]
        if lists.run_date not in kept:
            log.warning(
                "%s keeps only the newest dates, %s, so the older lists of %s are not delivered",
                sink.name,
                kept,
                lists.run_date,
            )
            return Delivered(_target(sink), 0, 0, 0)
    for name in dict.fromkeys(sink.features):
        of_features = _open(sink, f"_{name}", lambda: lists.frame.sparkSession)
        of_features.replace(_features(lists, lists.open_features[name]()))
        _delete_old(sink, of_features)
    done = table.replace(_lists(lists))
    return Delivered(
        _target(sink), lists.manifest.rows, done.written, done.deleted + _delete_old(sink, table)
    )


def erase(sink: Settings, request: EraseRequest) -> Erased:
    """Deletes the rows of users from the lists and from the features of users, for all dates.

    Raises:
        ConfigError, InfrastructureError: see `deliver`.
    """
    rows, remark = 0, ""
    for suffix, column in (("", "user_id"), (f"_{_USERS}", USER_KEY)):
        table = _open(sink, suffix, request.open_session)
        deleted = table.erase(column, request.users)
        if deleted is not None:
            rows, remark = rows + deleted, remark or table.remark()
    return Erased(_target(sink), rows, remark)


def _open(
    sink: Settings, suffix: str, open_session: Callable[[], SparkSession]
) -> DeltaFolder | CatalogueTable:
    """Returns the sink's table of lists (no suffix), or its table of features with this suffix."""
    if sink.path is not None:
        return DeltaFolder(f"{sink.path}{suffix}")
    parts, _ = split_table_path(_target(sink))
    named = (*parts[:-1], f"{parts[-1]}{suffix}")
    return CatalogueTable(named, sink.format, open_session(), f"the key `table` of the sink {sink.name}")


def _target(sink: Settings) -> str:
    return str(sink.table if sink.path is None else sink.path)


def _delete_old(sink: Settings, table: DeltaFolder | CatalogueTable) -> int:
    """Deletes the rows of all dates that the table should not keep. Returns the number of deleted rows."""
    dates = [] if sink.keep_dates is None else table.dates()
    if sink.keep_dates is None or len(dates) <= sink.keep_dates:
        return 0
    return table.delete_before(dates[-sink.keep_dates])


def _lists(lists: PublishedLists) -> DayRows:
    types = {VARIANT: "string", **dict(lists.manifest.schema)}
    names = lists.rows.column_names if isinstance(lists.rows, pa.Table) else lists.rows.columns

    def read() -> Rows:
        rows = lists.rows if VARIANT in names else with_nulls(lists.rows, VARIANT, pa.string())
        return select(rows, _LIST_COLUMNS)

    columns = tuple((name, types[name]) for name in _LIST_COLUMNS)
    return DayRows(lists.run_date, columns, ("user_id", "position"), lists.manifest.rows, read)


def _features(lists: PublishedLists, table: LakeTable) -> DayRows:
    # The sort is stable: the key becomes the first column, and the other columns keep their order.
    columns = tuple(sorted(table.manifest.schema, key=lambda column: column[0] != table.key))

    def read() -> Rows:
        return select(table.read(), [name for name, _ in columns])

    return DayRows(lists.run_date, columns, (table.key,), table.manifest.rows, read)
