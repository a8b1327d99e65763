"""Stores a fitted workflow, and computes features of Arrow arrays or of Spark frames.

`LocalWorkflow` computes features in one process without Spark. The versions of a workflow are stored as JSON
and Parquet, not as pickles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, assert_never

import numpy as np
import pyarrow as pa

from conf.errors import ConfigError, DataError, InfrastructureError
from conf.feature_types import FeatureKind
from conf.lazy_imports import F
from conf.types import Scope
from etl.ops import column_operator
from etl.ops.base import Engine, Type, choose_engine
from etl.ops.tables import RARE, VOCABULARY, LocalTables, Tables, open_tables, vocabulary_key, workflow_table
from etl.workflow.chains import Chain, FittedChain, RowPlace, apply_chains, compute_features
from etl.workflow.raw_values import as_number, one_row, raw_types, raw_values
from spark.choose_workers import SparkWorkers
from spark.workers import Workers
from storage import feature_spec, file_io, format_versions
from storage.feature_spec import Feature, FeatureSpec
from storage.format_versions import typed
from storage.manifest import data_files, is_published, is_whole, read_manifest
from storage.paths import LakePaths

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILE_NAME = "workflow.json"


@dataclass(frozen=True)
class LocalWorkflow:
    """A fitted workflow that needs no Spark session. It computes features from Arrow arrays.

    Attributes:
        parent: the version that this version extends; None if all steps were fitted for this version.
        descriptions: one text for each chain, which describes its columns and operators. Another
            configuration can extend this version only if its chains have the same texts.
        counted: maps each training day of this version, and of the versions that it extends, to the digest of
            the day's raw log.
        vocabularies: maps each vocabulary to five integers. `entries` is the number of values with an id, and
            `occurrences` is the number of rows with these values. `rare_values` is the number of values
            without an id, and `rare_occurrences` is the number of rows with these rare values. `highest` is
            the largest id.
        local: the object that opens the tables of this version.
    """

    version: str
    parent: str | None
    spec: FeatureSpec
    chains: tuple[FittedChain, ...]
    descriptions: tuple[str, ...]
    counted: Mapping[str, str]
    vocabularies: Mapping[str, Mapping[str, int]]
    local: LocalTables

    def encode_values(self, raw: Mapping[str, Any], features: Sequence[str]) -> dict[str, Any]:
        """Returns the values of the features `features` for one raw row.

        `raw` maps raw columns to values. A column that is not in `raw` is null. The row is treated as a row
        outside the training days, so its target encodings are computed from all training rows.

        Raises:
            ConfigError: a feature is not in the workflow, or a value does not fit its column's type.
        """
        dtypes, chains = self._dtypes(features), self._chains_of(features)
        try:
            arrays = one_row(chains, raw)
        except ValueError as error:
            raise ConfigError(f"workflow {self.version}: {error}", "correct the value") from error
        values = compute_features(chains, arrays, dtypes, self.local)
        return {name: as_number(values[name]) for name in features}

    def encode_table(self, rows: pa.Table, features: Sequence[str] | None = None) -> pa.Table:
        """Returns the features of a table of raw rows, one row per row of `rows`.

        As in `encode_values`, the rows are treated as rows outside the training days.

        Args:
            rows: a table with all raw columns that the features depend on; other columns are ignored. Values
                are converted as etl/workflow/raw_values.py describes.
            features: the names of the features; None for all features, in the order of the spec.

        Raises:
            ConfigError: a feature is not in the workflow.
            DataError: a raw column is missing, or a value does not fit its column's type.
        """
        return self._encoded(rows, features, None)

    def encode_training(self, rows: pa.Table) -> pa.Table:
        """Returns the features of `rows`, which are all rows on which the workflow was fitted, in that order.

        Unlike in `encode_table`, target encodings are out of fold.
        """
        return self._encoded(rows, None, RowPlace(np.arange(len(rows))))

    def _encoded(self, rows: pa.Table, features: Sequence[str] | None, place: RowPlace | None) -> pa.Table:
        names = [feature.name for feature in self.spec.features] if features is None else list(features)
        dtypes = self._dtypes(names)
        chains = self._chains_of(names)
        raw = raw_values(rows, raw_types(chains))
        values = compute_features(chains, raw, dtypes, self.local, place)
        return pa.table({name: values[name] for name in names})

    def _dtypes(self, features: Sequence[str]) -> dict[str, str]:
        """Returns the dtype of each feature. Raises ConfigError if a feature is not in the workflow."""
        by_name = {feature.name: feature.dtype for feature in self.spec.features}
        unknown = sorted(set(features) - set(by_name))
        if unknown:
            raise ConfigError(
                f"workflow {self.version} has no features named {unknown}",
                f"choose from the features {sorted(by_name)}",
            )
        return {name: by_name[name] for name in features}

    def raw_types(self, features: Sequence[str] | None = None) -> dict[str, Type]:
        """Returns the types of the raw columns that the features `features` (None: all) depend on.

        The columns are in the order of the chains.
        """
        return raw_types(self.chains if features is None else self._chains_of(features))

    def _chains_of(self, features: Sequence[str]) -> list[FittedChain]:
        return [chain for chain in self.chains if set(chain.outputs) & set(features)]

    def decode_ids(self, ids: Mapping[str, Iterable[int]]) -> dict[str, dict[int, str]]:
        """Returns, for each feature, a mapping from each id to the raw value with this id.

        The vocabularies are read only once. Reserved ids and unassigned ids are not in the result.

        Raises:
            ConfigError: a feature has no vocabulary.
        """
        ids_of = {feature: set(numbers) for feature, numbers in ids.items()}
        vocabularies = {feature: self.vocabulary_of(feature) for feature in ids_of}
        values: dict[str, dict[int, str]] = {feature: {} for feature in ids_of}
        if not ids_of:
            return values
        names, all_ids = sorted(set(vocabularies.values())), sorted(set().union(*ids_of.values()))
        for entry in self.local.entries(names, all_ids).to_pylist():
            for feature, vocabulary in vocabularies.items():
                if vocabulary == entry["column"] and entry["id"] in ids_of[feature]:
                    values[feature][entry["id"]] = entry["value"]
        return values

    def vocabulary_of(self, feature: str) -> str:
        """Returns the name of the vocabulary whose ids are the values of a feature.

        Raises:
            ConfigError: the values of the feature are not ids of a vocabulary.
        """
        name = feature
        for step in (
            step for chain in self.chains if feature in chain.outputs for step in reversed(chain.steps)
        ):
            if name not in step.outputs:
                continue
            if step.name == "categorify":
                return str(step.state()["vocabulary"])
            if not column_operator(step.name)[0].keeps_ids:
                break
            name = step.inputs[0]
        raise ConfigError(
            f"{feature} has no vocabulary in workflow {self.version}",
            "choose a feature that the operator categorify computes",
        )


def save_workflow(lake: LakePaths, workflow: LocalWorkflow, tables: Mapping[str, int]) -> None:
    """Writes the FeatureSpec and then workflow.json, which marks the version as complete.

    The tables of the version must already be published.

    Args:
        tables: maps each published table to its number of rows.
    """
    version = workflow.version
    for path in (lake.feature_spec(version), f"{lake.features(version).path}/{feature_spec.FILE_NAME}"):
        file_io.replace_text(path, feature_spec.dumps(workflow.spec))
    file_io.replace_json(
        f"{lake.workflow(version)}/{FILE_NAME}",
        {
            format_versions.KEY: format_versions.WORKFLOW.version,
            "version": version,
            "parent": workflow.parent,
            "spec": workflow.spec.to_json(),
            "chains": [chain.to_json() for chain in workflow.chains],
            "asked": list(workflow.descriptions),
            "counted": dict(workflow.counted),
            "tables": dict(tables),
            "vocabularies": {name: dict(facts) for name, facts in workflow.vocabularies.items()},
            "latest": workflow.local.latest,
        },
    )
    lake.recorder.record_write(lake.workflow(version), version)


def workflow_exists(lake: LakePaths, version: str) -> bool:
    """Returns whether a workflow version exists and the files of its tables match their manifests."""
    if not file_io.exists(f"{lake.workflow(version)}/{FILE_NAME}"):
        return False
    tables = [workflow_table(lake, version, name) for name in read_version(lake, version)["tables"]]
    return all(is_published(table) and is_whole(table, read_manifest(table)) for table in tables)


def has_chains(lake: LakePaths, version: str) -> bool:
    """Returns whether a version exists in a format that contains chains, unlike the format of early releases.

    Raises:
        DataError: the file of the version is damaged.
    """
    try:
        return format_versions.WORKFLOW.load(
            f"{lake.workflow(version)}/{FILE_NAME}", lambda stored: "chains" in stored
        )
    except FileNotFoundError:
        return False


def saved_versions(lake: LakePaths) -> list[str]:
    """Returns the names of all complete workflow versions in a lake, sorted."""
    folders = [info.base_name for info in file_io.list_files(lake.workflow("").rstrip("/"))]
    return sorted(name for name in folders if file_io.exists(f"{lake.workflow(name)}/{FILE_NAME}"))


def read_version(lake: LakePaths, version: str) -> dict[str, Any]:
    """Returns the JSON of a workflow version.

    Raises:
        DataError: the version does not exist, an early release wrote it, or its file is damaged.
        ConfigError: an operator of the version is not installed.
    """
    path = f"{lake.workflow(version)}/{FILE_NAME}"
    try:
        stored = format_versions.WORKFLOW.check(file_io.read_json(path), path)
    except FileNotFoundError as error:
        raise DataError(
            f"workflow {version} does not exist ({path})", "run build_features to fit a workflow"
        ) from error
    if "chains" not in stored:
        raise DataError(
            f"workflow {version} was written by an earlier release ({path})",
            "run build_features with --set workflow.mode=fit to fit a new workflow",
        )
    try:
        with format_versions.WORKFLOW.parsing(path):
            _require_parts(stored)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.problem}", error.remedy) from error
    lake.recorder.record_read(lake.workflow(version), version)
    return stored


def _require_parts(stored: dict[str, Any]) -> None:
    """Checks the JSON of a workflow version. Raises KeyError, TypeError or ValueError if it is damaged."""
    typed(stored, tables=dict, vocabularies=dict, counted=dict, version=str, parent=(str, NoneType))
    typed(stored, latest=(int, NoneType))
    for name in stored["tables"]:
        if "/" in name or file_io.leaves(name):
            raise ValueError(f"the table {name!r} in `tables` is not in the folder of the version")
    for facts in stored["vocabularies"].values():
        typed(facts, entries=int)
    parts_of(stored)


def table_names(stored: Mapping[str, Any]) -> list[str]:
    """Returns the names of the tables that are needed to compute features.

    The table `rare` (values without an id) is left out, because only an extension of the workflow reads it.
    """
    return [name for name in stored["tables"] if name != RARE]


def table_sizes(tables: Mapping[str, int], vocabularies: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Returns the number of rows of each table, and the number of values of each vocabulary.

    The key of a vocabulary is `vocabulary_key(name)`.
    """
    return {**tables, **{vocabulary_key(name): facts["entries"] for name, facts in vocabularies.items()}}


def load_local(lake: LakePaths, version: str) -> LocalWorkflow:
    """Loads a stored workflow version for use in one process, without Spark.

    Raises:
        DataError: the version does not exist, or its files are damaged.
    """
    stored = read_version(lake, version)
    return LocalWorkflow(**parts_of(stored), local=local_tables(lake, version, stored))


def local_tables(lake: LakePaths, version: str, stored: Mapping[str, Any]) -> LocalTables:
    """Returns the tables of a workflow version, whose JSON is `stored`, as files that Arrow reads."""
    files = {}
    for name in table_names(stored):
        partition = workflow_table(lake, version, name)
        files[name] = tuple(data_files(partition, read_manifest(partition)))
    return LocalTables(files, stored["latest"])


def parts_of(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes of a `LocalWorkflow`, except `local`, from the JSON of a workflow version."""
    return {
        "version": stored["version"],
        "parent": stored["parent"],
        "spec": FeatureSpec.from_json(stored["spec"]),
        "chains": tuple(FittedChain.from_json(chain) for chain in stored["chains"]),
        "descriptions": tuple(stored["asked"]),
        "counted": stored["counted"],
        "vocabularies": stored["vocabularies"],
    }


# The functions below describe the features of fitted chains, as they are listed in a FeatureSpec.


def fitted_features(
    chains: Sequence[Chain], names: Sequence[str], fitted: Sequence[FittedChain], scopes: Mapping[str, Scope]
) -> tuple[Feature, ...]:
    """Returns the features that remain after a fit, in the order of `names`.

    Args:
        chains: the chains before the fit.
        names: the features before the fit, in order.
        fitted: the same chains after the fit, which may have removed features.
        scopes: maps features to their scopes. A feature that is not in the mapping gets the scope `pair`.

    Raises:
        ConfigError: the fit has removed all features.
    """
    kinds = {name: chain.kind for chain in chains for name in chain.outputs}
    cardinalities = {name: size for chain in fitted for name, size in chain.cardinalities.items()}
    outputs = {name for chain in fitted for name in chain.outputs}
    features = tuple(
        _feature(name, kinds[name], scopes.get(name, "pair"), cardinalities.get(name))
        for name in names
        if name in outputs
    )
    if not features:
        raise ConfigError(
            "drop_low_cardinality removed every feature",
            "lower the parameter min_cardinality of drop_low_cardinality",
        )
    return features


def _feature(name: str, kind: FeatureKind, scope: Scope, cardinality: int | None) -> Feature:
    if kind == "dense":
        return Feature(name, "dense", "float32", scope)
    if kind == "multi_hot":
        return Feature(name, "multi_hot", "list<int32>", scope, cardinality)
    if kind == "categorical":
        return Feature(name, "categorical", "int32", scope, cardinality)
    assert_never(kind)


# The code below computes the features of Spark frames with a fitted workflow.


@dataclass(frozen=True)
class FittedWorkflow(LocalWorkflow):
    """A fitted workflow that computes the features of Spark frames.

    Attributes:
        open_frames: function that opens the tables of this version as Spark frames.
        engine: the engine that computes the features: `sql` or `arrow`.
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
        lake: the data lake that contains the version.
        version: the workflow version.
        broadcast_max_rows: maximum number of rows of a table that Spark sends to every task.
        engine: `workflow.engine` of the configuration. `auto` means `arrow`.
        workers: workers whose Spark session opens tables as frames; None for the running session.

    Raises:
        DataError: the version does not exist, or its files are damaged.
    """
    if workers is None:
        from pyspark.sql import SparkSession  # a LocalWorkflow needs no pyspark

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
