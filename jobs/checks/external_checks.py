"""Checks that the tables, credentials and drivers exist to which a configuration refers."""

from __future__ import annotations

from pathlib import Path

from conf.names import scheme_of
from conf.raw_types import RawTable
from conf.types import Config
from etl.ops.join_external import JoinExternal
from etl.raw.files import require_raw
from etl.workflow.feature_plan import plan
from scoring.delivery.sinks import check_access
from scoring.rules.attributes import files_of
from scoring.rules.request import AttributeTable
from spark.properties import read_properties
from storage.lineage import NOT_RECORDED, LineageRecorder


def check_tables(config: Config, run_date: str, recorder: LineageRecorder = NOT_RECORDED) -> None:
    """Checks that all tables other than the log exist; a missing table would stop a later stage of the run.

    Two kinds of tables are not checked here, but by the stages that read them. A table with files for each
    day (`{date}` in its path) may arrive during the run. A table on HDFS cannot be checked without a Spark
    session. `recorder` records the tables as inputs of the run.

    Raises:
        ConfigError, DataError: there is no file at a path in the configuration.
    """
    for key, table in _tables(config).items():
        if _is_static(config, table.path):
            require_raw(config, table, run_date, key, recorder)
    rules = config.score.rules
    for attribute in rules.attributes.values() if rules else ():
        if _is_static(config, attribute.path):
            path = _resolved(config, attribute.path)
            files_of(AttributeTable(path, attribute.format, attribute.key, attribute.column))


def check_sinks(config: Config, profile: str) -> None:
    """Checks that the user, password and driver of each sink can be read as the configuration says.

    Args:
        config: the configuration, with the sinks in its section `deliver`.
        profile: Spark's properties file. In deploy mode `cluster` nothing is checked, because the driver runs
            in a different environment.

    Raises:
        ConfigError: a user, a password or a driver is missing.
    """
    if read_properties(Path(profile)).get("spark.submit.deployMode") == "cluster":
        return
    check_access(config.deliver)


def _tables(config: Config) -> dict[str, RawTable]:
    """Returns all tables of the configuration other than the log, by the key that names the table."""
    candidates = config.candidates
    tables: dict[str, RawTable | None] = {
        "users.path": config.users,
        "items.path": config.items,
        "candidates.user_attributes.path": candidates.user_attributes,
        **{f"candidates.filters.{index}.path": table for index, table in enumerate(candidates.filters)},
    }
    for chain in plan(config).chains:
        for step in chain.steps:
            if isinstance(step.operator, JoinExternal):
                tables[f"join_external.path={step.operator.path}"] = step.operator.source(step)[0]
    return {key: table for key, table in tables.items() if table is not None}


def _is_static(config: Config, path: str) -> bool:
    """Returns whether the table at `path` must exist before the run and can be checked without Spark."""
    return "{date}" not in path and scheme_of(_resolved(config, path)) != "hdfs"


def _resolved(config: Config, path: str) -> str:
    """Returns the path, in which `{lake}` and `{data}` are replaced by the folders of the configuration."""
    return path.replace("{lake}", config.lake).replace("{data}", config.data)
