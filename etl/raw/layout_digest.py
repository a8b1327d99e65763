"""Computes a digest of the rules and settings by which raw tables are parsed.

If this digest changes, the stored rows of days are obsolete. The module also decides which of the stored days
before a given day are up to date.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from conf.raw_types import LIST_TYPES, Log
from conf.time_notation import ISO, UTC
from conf.types import Column, Config, History, RawTable
from etl.raw.files import RawFiles, find_raw
from storage.feature_spec import EVENT_TIME, LABEL
from storage.manifest import Manifest, current_manifest, digest_of, is_published, read_manifest
from storage.paths import LakePaths, Partition, Table

# Increase this number if new code accepts or rejects other lines than before. Jobs then write all stored days
# again.
_RULES = 3

# The formats whose files are Parquet files.
_PARQUET_FORMATS = ("parquet", "delta", "spark_table")

# The version of the parsing rules in earlier releases, which also stored clicks in the table `last_clicks`.
_EARLIER_RULES = 2


def layout_digest(config: Config) -> str:
    """Returns a digest of the parsing rules, of the raw tables' settings, and of `keys` and `prepare`.

    Settings that do not change how rows are parsed are left out: `path`, `max_expansion`, and `missing`,
    `title` and `image` of the table of items.
    """
    settings = [_settings(table) if table else None for table in _tables(config)]
    return _digest(_RULES, config, settings, [*_filter_rules(config), *_date_rules(config)])


def _filter_rules(config: Config) -> list[str]:
    """Returns a text for the digest if a filter reads a raw column that has the name of an internal column.

    Otherwise the result is empty. The digest is then the same as in an earlier release, so days that this
    release stored remain valid.
    """
    log = config.log
    columns = [log.label.column, *(log.event_time.columns if log.event_time else ())]
    filters = str([entry for entry in config.prepare if not {"filter", "dropna"}.isdisjoint(entry)])
    replaced = any(name in columns and name in filters for name in (LABEL, EVENT_TIME))
    return ["filters read raw columns"] if replaced else []


def _date_rules(config: Config) -> list[str]:
    """Returns a text for the digest that says how 96-bit timestamps of Parquet files become dates.

    The result is empty if no table can have such dates that differ from the dates in UTC. The digest is then
    the same as in an earlier release, so days that this release stored remain valid.
    """
    tables = [table for table in _tables(config) if table and table.format in _PARQUET_FORMATS]
    has_dates = any(
        column.type == "date" and table.time_zone != UTC for table in tables for column in table.columns
    )
    return ["96-bit timestamps have dates of the time zone"] if has_dates else []


def earlier_layout_digest(config: Config) -> str:
    """Returns the digest that an earlier release computed for the same settings, with its own parsing rules.

    Use this digest for rows that cannot be parsed again because their raw log was deleted. If a setting is
    used that the earlier release did not have, the result differs from every digest of that release.
    """
    settings = [_earlier_settings(table) if table else None for table in _tables(config)]
    return _digest(_EARLIER_RULES, config, settings)


def _tables(config: Config) -> list[RawTable | None]:
    return [config.log, config.users, config.items]


def _digest(
    rules: int, config: Config, settings: Sequence[dict[str, Any] | None], others: Sequence[str] = ()
) -> str:
    keys = config.keys.model_dump() if config.keys else None
    prepare = [config.prepare] if config.prepare else []
    return digest_of([rules, *settings, keys, *prepare, *others])


def _settings(table: RawTable) -> dict[str, Any]:
    """Returns the settings of a table that change how its rows are parsed.

    The result is the same whether the configuration contains the default separator or omits it. Keys that did
    not exist in earlier releases are included only if they are set. Without them, the digest is the same as
    in an earlier release, so days that this release stored remain valid.
    """
    settings = table.model_dump(exclude={"path", "missing", "title", "image", "columns", "max_expansion"})
    if table.time_zone == UTC:
        del settings["time_zone"]
    if isinstance(table, Log):
        of_numbers = (
            {"column", "positive_at_least", "rows_without_value"} if table.label.positive is None else None
        )
        settings["label"] = table.label.model_dump(include=of_numbers)
    columns = [_column_settings(column) for column in table.columns]
    return {**settings, "columns": columns, "separator": table.field_separator}


def _earlier_settings(table: RawTable) -> dict[str, Any]:
    """Returns a table's settings as an earlier release had them: without unset keys that are newer."""
    settings = _settings(table)
    if table.null_values == [""]:
        del settings["null_values"]
    for column in settings["columns"]:
        if not column["optional"]:
            del column["optional"]
    return settings


def _column_settings(column: Column) -> dict[str, Any]:
    settings = column.model_dump()
    if column.format == ISO:
        del settings["format"]
    if column.type in LIST_TYPES:
        settings["separator"] = column.element_separator
    else:
        del settings["separator"]
    return settings


# The code below decides which partitions of the tables `last_clicks` and `last_values` a day uses, and
# whether they are up to date.
#
# The rules are the same for Spark frames and for Arrow tables, so both may write partitions of the same lake.

log = logging.getLogger("nightrank.etl")

# The digest of prepared rows contains METHOD for logs without groups, and GROUP_METHOD for logs with groups.
# Change the text if the code computes different histories for the same log.
METHOD = "clicks before the row"
GROUP_METHOD = "clicks before the group"
# Change this text if the code computes different last values for the same log.
VALUES_METHOD = "last values before the day"

# A function that publishes the missing or obsolete partition of a day. The last argument contains the inputs
# that the manifest records.
Publish = Callable[[RawFiles, Partition, dict[str, str]], Manifest]


@dataclass(frozen=True)
class StoredDays:
    """A table that has one partition for each day of the log, computed from this day alone.

    Attributes:
        table: the table, with the partitions of all days.
        days: for each day, the partitions of this number of earlier days are used.
        method: (name, value) of an entry that the manifest of each partition has among its inputs. The value
            says how rows are computed.
        contents: two phrases for warnings: what the partitions contain, and what uses them.
    """

    table: Table
    days: int
    method: tuple[str, str]
    contents: tuple[str, str]

    def before(self, config: Config, day: str, publish: Publish) -> list[Manifest]:
        """Returns the manifests of the usable days among the days before `day`, in date order.

        A day is usable if it has a raw log, or if its partition was published before its raw log was deleted.
        """
        last = date.fromisoformat(day)
        dates = [(last - timedelta(days=back)).isoformat() for back in range(self.days, 0, -1)]
        manifests = (self._published(config, dt, publish) for dt in dates)
        return [manifest for manifest in manifests if manifest is not None]

    def _published(self, config: Config, dt: str, publish: Publish) -> Manifest | None:
        """Returns the manifest of a day's partition. Publishes the partition if it is missing or obsolete.

        Returns None if the day has no raw log and no partition. A partition without a raw log cannot be
        computed again, so it is used only if it was computed with the current settings. It may have been
        computed with the parsing rules of an earlier release.
        """
        partition = self.table.partition(dt)
        raw = find_raw(config, config.log, dt, self.table.recorder)
        if raw is None or raw.bytes == 0:
            return self._without_raw_log(config, partition)
        name, method = self.method
        inputs = {"raw": raw.digest, "layout": layout_digest(config), name: method}
        return current_manifest(partition, inputs) or publish(raw, partition, inputs)

    def _without_raw_log(self, config: Config, partition: Partition) -> Manifest | None:
        """Returns the manifest of a day without a raw log; None if the rows of the day cannot be used."""
        if not is_published(partition):
            return None
        manifest, (name, method) = read_manifest(partition), self.method
        layouts = (layout_digest(config), earlier_layout_digest(config))
        if manifest.inputs.get(name) == method and manifest.inputs.get("layout") in layouts:
            return manifest
        rows, users = self.contents
        log.warning(
            "the %s of %s in %s were computed with other settings, and the day has no raw log to compute "
            "them again, so they are not used for %s",
            rows,
            partition.dt,
            partition.path,
            users,
        )
        return None


def click_days(
    config: Config, history: History, lake: LakePaths, day: str, publish: Publish
) -> list[Manifest]:
    """Returns the manifests of the table `last_clicks` for usable days before `day` (StoredDays.before)."""
    method = ("history", f"{METHOD}, {history.length}")
    stored = StoredDays(lake.last_clicks, history.days or 0, method, ("clicks", "histories"))
    return stored.before(config, day, publish)
