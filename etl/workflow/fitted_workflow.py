"""A fitted workflow that computes the features of Spark frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.errors import InfrastructureError
from etl.ops.base import Engine, choose_engine
from etl.ops.tables import VOCABULARY, Tables, open_tables
from etl.workflow.fitted_chains import apply_chains
from etl.workflow.local_workflow import (
    LocalWorkflow,
    local_tables,
    parts_of,
    read_version,
    table_names,
    table_sizes,
)
from spark.choose_workers import SparkWorkers
from spark.workers import Workers
from storage.feature_spec import Feature
from storage.paths import LakePaths


@dataclass(frozen=True)
class FittedWorkflow(LocalWorkflow):
    """A fitted workflow that computes the features of Spark frames.

    Attributes:
        open_frames: function that opens the tables of this version as Spark frames.
        engine: the engine that computes the features.
    """

    open_frames: Callable[[], Tables]
    engine: Engine

    @cached_property
    def tables(self) -> Tables:
        """Returns the tables of this version as Spark frames, opened at first use."""
        return self.open_frames()

    def apply(self, rows: DataFrame, keep: Sequence[str] = ()) -> DataFrame:
        """Returns a frame with the columns `spec.table_columns` and `keep`, one row per prepared row.

        `rows` are prepared rows: they have the keys, the label, the weight if the spec has one, and the raw
        columns (etl.spark.frame_passes.prepare_frame).
        """
        label = F.col(self.spec.label).cast("float")
        keys = self.spec.row_columns
        names = [feature.name for feature in self.spec.features]
        encoded = self.encode(rows.withColumn(self.spec.label, label), names, [*keys, *keep])
        return encoded.select(*keys, *names, *keep)

    def encode(self, rows: DataFrame, features: Sequence[str], keep: Sequence[str]) -> DataFrame:
        """Returns a frame with the columns `keep` and the features `features`, one row per row of `rows`."""
        by_name: dict[str, Feature] = {feature.name: feature for feature in self.spec.features}
        chains = [chain for chain in self.chains if set(chain.outputs) & set(features)]
        selected = {name: by_name[name] for name in features}
        return apply_chains(rows, chains, selected, keep, self.tables, self.engine == "arrow")

    def decode(self, rows: DataFrame, feature: str, to: str) -> DataFrame:
        """Adds a column with the raw value of each id of `feature`; null for reserved ids.

        `to` is the name of the new column.

        Raises:
            ConfigError: the feature has no vocabulary.
        """
        vocabulary = self.vocabulary_of(feature)
        entries = self.tables.frames[VOCABULARY].where(F.col("column") == vocabulary)
        lookup = entries.select(F.col("id").alias(f"_{to}_id"), F.col("value").alias(to))
        return rows.join(lookup, F.col(feature) == F.col(f"_{to}_id"), "left").drop(f"_{to}_id")


def load_workflow(
    lake: LakePaths,
    version: str,
    broadcast_max_rows: int = 2_000_000,
    engine: Literal["auto", "sql", "arrow"] = "auto",
    workers: Workers | None = None,
) -> FittedWorkflow:
    """Loads a stored workflow version that can be applied to frames with Spark.

    Args:
        lake: the lake with the version.
        version: the workflow version.
        broadcast_max_rows: maximum number of rows of a table that Spark sends to every task.
        engine: `workflow.engine` of the configuration.
        workers: workers whose Spark session opens tables as frames; None for the running session.

    Raises:
        DataError: the version does not exist, or its files are damaged.
    """
    if workers is None:
        spark = SparkSession.getActiveSession()
        if spark is None:
            raise InfrastructureError(
                "load_workflow needs a running Spark session",
                "create a session with the module spark.session",
            )
        workers = SparkWorkers(spark)
    stored = read_version(lake, version)
    names = table_names(stored)
    sizes = table_sizes(stored["tables"], stored["vocabularies"])
    latest = stored["latest"]

    def open_frames() -> Tables:
        return open_tables(workers.spark, lake, version, names, sizes, broadcast_max_rows, latest)

    local = local_tables(lake, version, stored)
    return FittedWorkflow(
        **parts_of(stored), local=local, open_frames=open_frames, engine=choose_engine(engine)
    )
