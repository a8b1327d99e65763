"""Checks that the tables, credentials and drivers of a configuration exist."""

from __future__ import annotations

from pathlib import Path

from conf.errors import ConfigError
from conf.names import SPARK_TABLE, has_date
from conf.raw_types import RawTable
from conf.types import Config
from etl.raw.files import require_raw
from etl.readers.table_heads import check_heads
from etl.workflow.feature_plan import plan_of
from scoring.delivery.sinks import check_access, read_settings
from scoring.rules.attributes import SECTION, files_of, typed_table
from scoring.rules.request import attribute_table
from spark.profile import read_properties
from storage.lineage import NOT_RECORDED, LineageRecorder


def check_tables(config: Config, run_date: str, recorder: LineageRecorder = NOT_RECORDED) -> None:
    """Checks all tables other than the log. A missing or bad table would stop a later stage of the run.

    The tables must exist. Their headers or schemas must have the configured columns, and their first rows
    must have values of the configured types.

    A table with files for each day (`{date}` in its path) may arrive during the run. The stage that reads a
    table of days checks it. The stage also checks tables of Spark's catalogue. `recorder` records the tables
    as inputs of the run.

    Raises:
        ConfigError, DataError: there is no file at a path in the configuration, a file lacks a column, or a
            value cannot be parsed.
    """
    for key, (table, id_column) in _tables(config).items():
        if _is_static(table.path) and table.format != SPARK_TABLE:
            raw = require_raw(config, table, run_date, key, recorder)
            check_heads(table, raw.paths, key.removesuffix(".path"), id_column)
    rules = config.score.rules
    for attribute in rules.attributes.values() if rules else ():
        if _is_static(attribute.path):
            of_items = attribute_table(attribute, {"lake": config.lake, "data": config.data})
            check_heads(typed_table(of_items)[0], files_of(of_items), SECTION, None)


def check_sinks(config: Config, profile: str) -> None:
    """Checks that the user, password and driver of each sink exist where the configuration names them.

    Args:
        config: the configuration, with the sinks in its section `deliver`.
        profile: Spark's properties file. In deploy mode `cluster` nothing is checked, because the driver runs
            in a different environment.

    Raises:
        ConfigError: a user, a password, a driver or a column of users is missing.
    """
    if read_properties(Path(profile)).get("spark.submit.deployMode") == "cluster":
        return
    check_access(config.deliver)
    _check_user_columns(config)


def _check_user_columns(config: Config) -> None:
    """Checks that the table of users has the columns that sinks deliver.

    Raises:
        ConfigError: there is no table of users, or it does not declare a column with the type string.
    """
    declared = {column.name: column.type for column in config.users.columns} if config.users else {}
    for _, settings in read_settings(config.deliver):
        wrong = [name for name in getattr(settings, "user_columns", []) if declared.get(name) != "string"]
        if wrong:
            raise ConfigError(
                f"the sink {settings.name} has user_columns={wrong}, which the section `users` does not "
                "declare with the type string",
                "add them to users.columns, such as {name: email, type: string}",
            )


def _tables(config: Config) -> dict[str, tuple[RawTable, str | None]]:
    """Returns all tables of the configuration other than the log, by the key that names the table.

    Each value is a pair (table, name of its column with ids of users or items, or None).
    """
    candidates, keys = config.candidates, config.keys
    tables: dict[str, tuple[RawTable, str | None]] = {}
    if config.users and keys:
        tables["users.path"] = config.users, keys.user
    if config.items and keys:
        tables["items.path"] = config.items, keys.item
    if candidates.user_attributes:
        tables["candidates.user_attributes.path"] = (
            candidates.user_attributes,
            candidates.user_attributes.key,
        )
    for index, table in enumerate(candidates.filters):
        tables[f"candidates.filters.{index}.path"] = table, table.item
    return tables | {name: (table, None) for name, table in plan_of(config).external_tables.items()}


def _is_static(path: str) -> bool:
    """Returns whether the table at `path` must exist before the run."""
    return not has_date(path)


def _resolved(config: Config, path: str) -> str:
    """Returns the path. `{lake}` and `{data}` are replaced by the folders of the configuration."""
    return path.replace("{lake}", config.lake).replace("{data}", config.data)
