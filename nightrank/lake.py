"""Reads a lake: the tables, workflows and models that jobs published below one folder or URI."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from conf.errors import ConfigError, DataError
from conf.load import load_config
from conf.messages import counted
from conf.names import iso_date
from conf.types import Config
from etl.workflow.fitted_workflow import load_local
from nightrank.frames import listed, require_packages
from nightrank.model import Model
from nightrank.saved_models import lake_at
from nightrank.workflow import Workflow, fitted_workflow
from scoring.model.model_info import read_model_info
from storage import file_io, paths
from storage.dataset import read_dataset
from storage.manifest import Manifest, data_files, is_published, read_manifest
from storage.paths import Partition
from storage.read_parquet import read_table
from training.registry.champion_history import PROMOTIONS, dates_of
from training.registry.refits import require_recorded_weights, serving_model_of

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

Date = str | datetime.date

# Tables that exist once in a lake, and tables that exist once for each workflow version.
PLAIN_TABLES = (
    "recommendations",
    "scores",
    "quarantine",
    "evaluations",
    "measures",
    "list_changes",
    "deliveries",
)
TABLES_OF_WORKFLOW = ("features", "users", "items", "candidates", "candidate_items")


def open_lake(
    lake: str | PathLike[str], *, config: str | PathLike[str] | None = None, name: str | None = None
) -> Lake:
    """Opens a lake for reading. Nothing is written to it.

    Args:
        lake: the folder or the URI (`s3://…`) of the lake, as in the key `lake` of the configuration.
        config: the configuration file of its jobs. Pass it if `Model.recommend` must apply the
            business rules, the blend and the context of this file.
        name: the name of the models, if the lake has models of several names. The default is the name in the
            configuration, or the only name in the lake.

    Raises:
        ConfigError: the configuration cannot be read.
        DataError: the lake has no published table.
        InfrastructureError: the storage cannot be read.
    """
    opened = lake_at(lake)
    root = opened.root
    loaded = None if config is None else load_config(fspath(config)).model_copy(update={"lake": root})
    if not file_io.list_files(opened.datasets.path):
        raise DataError(
            f"{root} has no table `datasets`: it is not a lake, or no run of build_features has succeeded",
            "pass the folder or URI in the key `lake` of the configuration, or run build_features first",
        )
    return Lake(opened, loaded, name)


class Lake:
    """The tables, workflows and models of a lake. `nightrank.open` returns this object.

    Methods accept a date as an ISO string, such as "2026-01-08", or as a `datetime.date`. None means the
    latest date.

    Args:
        lake: the paths of its tables.
        config: the configuration; None if it is not known.
        name: the name of its models; None for the name in the configuration, or for the only name in the
            lake.
    """

    def __init__(self, lake: paths.LakePaths, config: Config | None = None, name: str | None = None) -> None:
        self._lake = lake
        self._config = config
        self._name = name

    @property
    def root(self) -> str:
        """Returns the folder or URI."""
        return self._lake.root

    @property
    def config(self) -> Config | None:
        """Returns the configuration that was passed to `nightrank.open`; None without a configuration."""
        return self._config

    def dates(self, table: str = "datasets", workflow: str | None = None) -> list[str]:
        """Returns the published dates of a table, in ascending order.

        Args:
            table: a name that the method `table` accepts, or `datasets` for the run dates of build_features.
            workflow: the workflow version of a table of features; None for the version of the latest run.

        Raises:
            ConfigError: there is no such table.
        """
        return _published_dates(self._lake.datasets if table == "datasets" else self._table(table, workflow))

    def table(self, table: str, date: Date | None = None, workflow: str | None = None) -> Published:
        """Returns one date of a table.

        The tables `features`, `users`, `items`, `candidates` and `candidate_items` exist for each workflow
        version. A date of `features` is the day of its rows. The dates of all other tables are run dates.

        Args:
            table: one of these tables, or `recommendations`, `scores`, `quarantine`, `evaluations`,
                `measures`, `list_changes` or `deliveries`. The results in the last four are
                in `Published.facts`; only some of these four tables also have rows.
            date: the date.
            workflow: the workflow version; None for the version of the run of this date or, if there was
                none, of the latest run.

        Raises:
            ConfigError: there is no such table.
            DataError: the table has no such date.
        """
        day = None if date is None else _iso(date)
        chosen = self._table(table, workflow, day)
        if day is None:
            dates = _published_dates(chosen)
            if not dates:
                raise DataError(f"{chosen.path} has no published date", "run the job that writes this table")
            day = dates[-1]
        partition = chosen.partition(day)
        return Published(partition, read_manifest(partition))

    def recommendations(self, date: Date | None = None) -> Published:
        """Returns the recommendation lists of a date: user_id, position, item_id, score, reason and versions.

        Raises:
            DataError: the date has no lists.
        """
        return self.table("recommendations", date)

    def users(self, date: Date | None = None) -> Published:
        """Returns the latest features of all users, as of the run of a date: one row per user.

        Raises:
            DataError: there was no run of this date.
        """
        return self.table("users", date)

    def items(self, date: Date | None = None) -> Published:
        """Returns the latest features of all items, as of the run of a date: one row per item.

        Raises:
            DataError: there was no run of this date.
        """
        return self.table("items", date)

    def workflow(self, version: str | None = None) -> Workflow:
        """Returns the fitted workflow with a version; without `version`, the workflow of the latest run.

        Raises:
            DataError: the version does not exist, or its files are damaged.
        """
        return fitted_workflow(load_local(self._lake, version or self._version_of(None)))

    def champion(self, date: Date | None = None, *, use_refit: bool | None = None) -> Model:
        """Returns the model that served on a date: the champion, or its refit.

        A refit is the champion, trained again on the rows of all splits.

        Args:
            date: the run date; None for the latest run.
            use_refit: whether the refit of the champion is returned, if there is one. None means the value of
                `train.refit` in the configuration, or true if the configuration is not known.

        Raises:
            ConfigError: the lake has models of several names.
            DataError: there was no champion, or its weights have changed since it began to serve.
        """
        run_date = self._latest_run() if date is None else _iso(date)
        if use_refit is None:
            use_refit = self._config is None or self._config.train.refit
        name = self._model_name()
        serving = serving_model_of(self._lake, name, run_date, use_refit=use_refit)
        if serving is None:
            raise DataError(
                f"{self._lake.models(name)} has no champion on {run_date}",
                "run build_features, train_model and evaluate_model for this date or an earlier one",
            )
        folder = serving.folder(self._lake, name)
        info = read_model_info(folder)
        require_recorded_weights(self._lake, name, run_date, folder, info.description)
        return Model(self._lake, info, run_date, self._config)

    def _table(self, name: str, workflow: str | None, date: str | None = None) -> paths.Table:
        if name in PLAIN_TABLES:
            return getattr(self._lake, name)
        if name in TABLES_OF_WORKFLOW:
            return getattr(self._lake, name)(workflow or self._version_of(date))
        raise ConfigError(
            f"there is no table {name!r}", f"choose from {[*PLAIN_TABLES, *TABLES_OF_WORKFLOW]}"
        )

    def _version_of(self, date: str | None) -> str:
        """Returns the workflow version of the run of a date or, if there was none, of the latest run."""
        if date is None or not is_published(self._lake.datasets.partition(date)):
            date = self._latest_run()
        return read_dataset(self._lake, date).workflow_version

    def _latest_run(self) -> str:
        dates = _published_dates(self._lake.datasets)
        if not dates:
            raise DataError(f"{self._lake.datasets.path} has no published run", "run build_features")
        return dates[-1]

    def _model_name(self) -> str:
        if self._name or self._config:
            return self._name or self._config.name  # type: ignore[union-attr]  # name or config is set
        folders = [info.base_name for info in file_io.list_files(self._lake.models("").rstrip("/"))]
        names = [name for name in folders if dates_of(self._lake, name, PROMOTIONS)]
        if len(names) != 1:
            raise (ConfigError if names else DataError)(
                f"{self.root} must have models of one name, but has models of {names or 'no name'}",
                "pass `name` or `config` to nightrank.open"
                if names
                else "run train_model and evaluate_model",
            )
        return names[0]

    def __repr__(self) -> str:
        return f"nightrank.open({self.root!r})"


def _published_dates(table: paths.Table) -> list[str]:
    names = [info.base_name for info in file_io.list_files(table.path)]
    dates = sorted(name.removeprefix("dt=") for name in names if name.startswith("dt="))
    return [date for date in dates if is_published(table.partition(date))]


def _iso(date: Date) -> str:
    if isinstance(date, datetime.date):
        return (date.date() if isinstance(date, datetime.datetime) else date).isoformat()
    try:
        return iso_date(date)
    except ValueError as error:
        raise ConfigError(f"{date!r} is not a date: {error}", "write it as YYYY-MM-DD") from error


# The class below reads one date of a published table as a frame of pandas, Polars, Arrow or Spark.


@dataclass(frozen=True, repr=False)
class Published:
    """One date of a table, as it was published when this object was created.

    All methods read the files that the manifest named at that time. If a job replaces the date, the methods
    still return the old rows, until the old files are deleted (`output.grace_hours`).

    Attributes:
        partition: the date of the table.
        manifest: its manifest.
    """

    partition: Partition
    manifest: Manifest

    @property
    def table(self) -> str:
        """Returns the path of the table below the lake."""
        return self.partition.table

    @property
    def date(self) -> str:
        """Returns the ISO date."""
        return self.partition.dt

    @property
    def rows(self) -> int:
        """Returns the number of rows."""
        return self.manifest.rows

    @property
    def columns(self) -> list[str]:
        """Returns the names of the columns, in their order in the table."""
        return [name for name, _ in self.manifest.schema]

    @property
    def facts(self) -> Mapping[str, Any]:
        """Returns the JSON values, such as metrics, that the job stored in the manifest of the date."""
        return self.manifest.facts

    @property
    def files(self) -> list[str]:
        """Returns the paths of the Parquet files."""
        return data_files(self.partition, self.manifest)

    def arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Returns the rows, with some columns or all of them, as an Arrow table.

        Raises:
            ConfigError: the table does not have a column, or `columns` contains a name twice.
            DataError: a file is missing or damaged.
            InfrastructureError: a file could not be read.
        """
        self._require(columns)
        return read_table(self.partition, self.manifest, columns=columns)

    def pandas(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Returns the rows as a DataFrame of pandas. Raises the errors of `arrow`.

        Raises:
            ConfigError: pandas is not installed.
        """
        require_packages(["pandas"], "pandas", "a frame of pandas")
        return self.arrow(columns).to_pandas()

    def polars(self, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Returns the rows as a DataFrame of Polars. Raises the errors of `arrow`.

        Raises:
            ConfigError: Polars is not installed.
        """
        require_packages(["polars"], "polars", "a frame of Polars")
        import polars

        return polars.from_arrow(self.arrow(columns))  # type: ignore[return-value]  # for a table, it is a DataFrame

    def spark(self, session: SparkSession, columns: Sequence[str] | None = None) -> DataFrame:
        """Returns the rows as a frame of a Spark session. The frame reads the files when it is evaluated.

        Raises:
            ConfigError: the table does not have a column in `columns`.
        """
        from storage.publish import rows_of  # imports pyspark

        self._require(columns)
        return rows_of(session, self.partition, self.manifest, columns=columns)

    def __repr__(self) -> str:
        size = f"{counted(self.rows, 'row')}, {counted(len(self.columns), 'column')}"
        return f"<{self.table} dt={self.date}: {size}>"

    def _require(self, columns: Sequence[str] | None) -> None:
        names = listed("columns", columns)
        wanted = list(names or ())
        repeated = sorted({name for name in wanted if wanted.count(name) > 1})
        if repeated:
            raise ConfigError(f"the argument `columns` has {repeated} twice", "list each column once")
        unknown = sorted(set(wanted) - set(self.columns))
        if unknown:
            raise ConfigError(
                f"{self.table} dt={self.date} has no columns {unknown}", f"choose from {self.columns}"
            )
