"""Lists the tables of Spark's catalogue in a configuration, and the days that runs read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta

from conf.names import SPARK_TABLE
from conf.raw_types import RawTable
from conf.types import Config
from etl.raw.files import ALL_DAYS, is_by_day
from etl.workflow.feature_plan import FeaturePlan

LOG, IMPRESSIONS = "log.path", "serving.impressions.path"


@dataclass(frozen=True)
class CopiedTable:
    """A raw table whose rows Spark copies into the lake.

    Attributes:
        key: the key of the configuration with the table's path.
        table: the settings of the table.
        user: the name in the table of the column with the ids of users; None if there is none.
    """

    key: str
    table: RawTable
    user: str | None = None


def copied_tables(plan: FeaturePlan) -> list[CopiedTable]:
    """Returns the raw tables of the configuration that are tables of Spark's catalogue."""
    return [one for one in _all_tables(plan) if one.table.format == SPARK_TABLE]


def copied_days(config: Config, table: CopiedTable, run_date: str) -> list[str]:
    """Returns the days of a table that a run of `build_features` may read, oldest first.

    If the table is not read by day, the list contains only ALL_DAYS.
    """
    if not is_by_day(table.table):
        return [ALL_DAYS]
    split, history = config.split, config.history
    count = 1
    if split.by == "day":
        count = split.train_days + split.validation_days + split.test_days
        if table.key == LOG and history is not None:
            count += history.days or 0
    last = date.fromisoformat(run_date)
    return [(last - timedelta(days=back)).isoformat() for back in reversed(range(count))]


def _all_tables(plan: FeaturePlan) -> Iterator[CopiedTable]:
    config = plan.config
    keys, candidates, impressions = config.keys, config.candidates, config.serving.impressions
    user = keys.user if keys else None
    yield CopiedTable(LOG, config.log, _source(config.log, user))
    if config.users:
        yield CopiedTable("users.path", config.users, _source(config.users, user))
    if config.items:
        yield CopiedTable("items.path", config.items)
    if impressions:
        yield CopiedTable(IMPRESSIONS, impressions, _source(impressions, impressions.user))
    if candidates.user_attributes:
        attributes = candidates.user_attributes
        yield CopiedTable("candidates.user_attributes.path", attributes, _source(attributes, attributes.key))
    for index, table in enumerate(candidates.filters):
        yield CopiedTable(f"candidates.filters.{index}.path", table)
    for key, external in plan.external_tables.items():
        yield CopiedTable(key, external)


def _source(table: RawTable, name: str | None) -> str | None:
    """Returns the name in the table of a column of the configuration."""
    return next((column.source_name for column in table.columns if column.name == name), name)
