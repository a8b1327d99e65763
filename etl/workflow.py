"""The workflow: the chains of operators of all features, fitted on training rows, versioned, stored without pickles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from conf import feature_spec, storage
from conf.errors import ConfigError, DataError, InfrastructureError
from conf.feature_spec import FeatureSpec
from conf.lake import Lake, Partition
from conf.manifest import data_files, read_manifest
from conf.types import FeatureGroup
from etl.arrow_lookup import encode_columns, look_up, read_lookups
from etl.engine import Engine, choose_engine
from etl.moments import measure_moments
from etl.ops import OPERATORS, Fitted, Operator, RowWise, operator_from_config
from etl.ops.categorify import FittedCategorify
from etl.publish import read_published
from etl.vocabulary import Vocabulary

FILE_NAME = "workflow.json"


@dataclass(frozen=True)
class Chain:
    """The operators of one column, unfitted."""

    column: str
    kind: str
    operators: tuple[Operator, ...]


@dataclass(frozen=True)
class Lookups:
    """How vocabularies are looked up: by the `arrow` engine from these files, or by the joins of the `sql` engine."""

    engine: Engine
    files: tuple[str, ...]


@dataclass(frozen=True)
class FittedWorkflow:
    """Fitted operators in application order, the FeatureSpec they produce, and where they come from.

    Attributes:
        counted: raw day → digest of the days whose values the vocabularies count, in this version or before.
    """

    version: str
    parent: str | None
    spec: FeatureSpec
    operators: tuple[Fitted, ...]
    counted: Mapping[str, str]
    lookups: Lookups

    def apply(self, rows: DataFrame, keep: Sequence[str] = ()) -> DataFrame:
        """Typed raw rows (keys, label and raw columns) → rows of `spec.table_columns` and `keep`, one for one."""
        encoded = self.encode(rows, [each.name for each in self.spec.features])
        label = F.col(self.spec.label).cast("float")
        names = [each.name for each in self.spec.features]
        return encoded.select(*self.spec.key_columns, label.alias(self.spec.label), *names, *keep)

    def encode(self, rows: DataFrame, columns: Sequence[str]) -> DataFrame:
        """The rows with the named raw columns encoded, in the dtype of their feature; other columns stay."""
        for run in _runs([each for each in self.operators if each.column in columns]):
            if isinstance(run[0], RowWise):
                rows = _project(rows, run)
            elif isinstance(run[0], FittedCategorify) and self.lookups.engine == "arrow":
                rows = encode_columns(rows, [each.column for each in run], self.lookups.files)
            else:
                rows = reduce(lambda frame, operator: operator.apply(frame), run, rows)
        types = {each.name: "int" if each.dtype == "int32" else "float" for each in self.spec.features}
        return rows.withColumns({name: F.col(name).cast(types[name]) for name in columns})

    def encode_values(self, spark: SparkSession, values: Mapping[str, Any]) -> dict[str, float | int]:
        """Encoded values of single raw values, column by column: what the scorer's context is made of.

        Raises:
            ConfigError: a name is no feature of this workflow.
        """
        unknown = sorted(set(values) - {each.name for each in self.spec.features})
        if unknown:
            raise ConfigError(f"no features of workflow {self.version}: {unknown}", "correct the names")
        if not values:
            return {}
        looked_up = self._look_up_here(values) if self.lookups.engine == "arrow" else {}
        others = {name: value for name, value in values.items() if name not in looked_up}
        # Over a relation without a source the optimizer evaluates expressions itself: no job runs.
        single = spark.sql("SELECT 1").select(*(F.lit(value).alias(name) for name, value in others.items()))
        encoded = self.encode(single, list(others)).first() if others else None
        return looked_up | ({name: encoded[name] for name in others} if encoded else {})

    def _look_up_here(self, values: Mapping[str, Any]) -> dict[str, int]:
        """Ids of the categorical ones, without a Spark job: a worker would take longer to start than to look up."""
        columns = [each.name for each in self.spec.categorical if each.name in values]
        lookups = read_lookups(self.lookups.files) if columns else {}
        texts = {name: None if values[name] is None else str(values[name]) for name in columns}
        return {
            name: int(look_up(pa.array([texts[name]], pa.string()), lookups.get(name))[0]) for name in columns
        }


def _runs(operators: Sequence[Fitted]) -> list[list[Fitted]]:
    """Consecutive operators that are applied together: the row-wise ones, and those of one type."""
    runs: list[list[Fitted]] = []
    for operator in operators:
        kind = RowWise if isinstance(operator, RowWise) else type(operator)
        if runs and isinstance(runs[-1][0], kind):
            runs[-1].append(operator)
        else:
            runs.append([operator])
    return runs


def _project(rows: DataFrame, run: list[Fitted]) -> DataFrame:
    expressions: dict[str, Column] = {}
    for operator in run:
        if isinstance(operator, RowWise):
            expressions[operator.column] = operator.expression(
                expressions.get(operator.column, F.col(operator.column))
            )
    return rows.withColumns(expressions)


def chains(groups: list[FeatureGroup]) -> list[Chain]:
    """The chains of a config, checked: each must end in the kind of feature its group says.

    Raises:
        ConfigError: an unknown operator, or a categorical chain that is not exactly one categorify.
    """
    found = []
    for group in groups:
        operators = tuple(operator_from_config(entry) for entry in group.ops)
        makers = [type(each).name for each in operators if each.makes == "categorical"]
        if group.kind == "categorical" and (len(makers) != 1 or operators[-1].makes != "categorical"):
            raise ConfigError(
                f"features {group.columns[:3]}…: a categorical chain ends in one categorify, not {group.ops}",
                "write ops: [{categorify: {min_count: 5}}]",
            )
        if group.kind == "dense" and makers:
            raise ConfigError(
                f"features {group.columns[:3]}…: {makers} makes no dense feature", "set kind: categorical"
            )
        found += [Chain(column, group.kind, operators) for column in group.columns]
    return found


def fit_dense(rows: DataFrame, dense: list[Chain]) -> list[Fitted]:
    """Fits the dense chains: one pass over the rows for each depth at which some operator needs statistics."""
    fitted: list[Fitted] = []
    done = {chain.column: 0 for chain in dense}
    while True:
        values: dict[str, Column] = {}
        for chain in dense:
            waiting = _advance(chain, done, fitted)
            if waiting is not None:
                values[chain.column] = waiting
        if not values:
            return fitted
        moments = measure_moments(rows, values)
        for chain in dense:
            if chain.column in values:
                fitted.append(
                    chain.operators[done[chain.column]].fit(chain.column, moments[chain.column], None)
                )
                done[chain.column] += 1


def _advance(chain: Chain, done: dict[str, int], fitted: list[Fitted]) -> Column | None:
    """Fits what needs no statistics; the input expression of the first operator that does, None at the end."""
    while done[chain.column] < len(chain.operators):
        operator = chain.operators[done[chain.column]]
        if operator.needs != "nothing":
            value = F.col(chain.column)
            for each in fitted:
                if each.column == chain.column and isinstance(each, RowWise):
                    value = each.expression(value)
            return value
        fitted.append(operator.fit(chain.column, None, None))
        done[chain.column] += 1
    return None


def vocabulary_table(lake: Lake, version: str) -> Partition:
    """Where a version's values with ids lie: (column, value, id, count)."""
    return Partition(f"workflow/{version}", "vocabulary", f"{lake.workflow(version)}/vocabulary")


def rare_table(lake: Lake, version: str) -> Partition:
    """Where counts below the threshold wait for the next extension: (column, value, count)."""
    return Partition(f"workflow/{version}", "rare", f"{lake.workflow(version)}/rare")


def vocabularies(
    spark: SparkSession,
    lake: Lake,
    version: str,
    measured: Mapping[str, tuple[int, int]],
    broadcast_max_rows: int,
) -> dict[str, Vocabulary]:
    """One Vocabulary a column, over one shared frame that stays in memory while the columns are looked up."""
    table = read_published(spark, vocabulary_table(lake, version), columns=["column", "value", "id"])
    if sum(entries for entries, _ in measured.values()) <= broadcast_max_rows:
        table = table.persist()
    return {
        column: Vocabulary(
            column=column,
            entries=entries,
            cardinality=highest + 1,
            broadcast=entries <= broadcast_max_rows,
            lookup=table.where(F.col("column") == column).select("value", "id"),
        )
        for column, (entries, highest) in measured.items()
    }


def choose_lookups(
    spark: SparkSession,
    lake: Lake,
    version: str,
    measured: Mapping[str, tuple[int, int]],
    engine: Literal["auto", "sql", "arrow"],
    broadcast_max_rows: int,
) -> Lookups:
    """Vocabularies too large for a worker's memory are joined."""
    small = sum(entries for entries, _ in measured.values()) <= broadcast_max_rows
    table = vocabulary_table(lake, version)
    return Lookups(
        choose_engine(spark, engine, in_memory=small),
        tuple(data_files(table, read_manifest(table))) if measured else (),
    )


def save_workflow(lake: Lake, workflow: FittedWorkflow, measured: Mapping[str, tuple[int, int]]) -> None:
    """Writes feature_spec.json and, last, workflow.json: the version exists from then on."""
    storage.replace_text(lake.feature_spec(workflow.version), feature_spec.dumps(workflow.spec))
    storage.replace_text(
        f"{lake.features(workflow.version).path}/{feature_spec.FILE_NAME}", feature_spec.dumps(workflow.spec)
    )
    storage.replace_json(
        f"{lake.workflow(workflow.version)}/{FILE_NAME}",
        {
            "version": workflow.version,
            "parent": workflow.parent,
            "spec": workflow.spec.to_json(),
            "operators": [
                {"op": type(o).name, "column": o.column, "state": o.state()} for o in workflow.operators
            ],
            "vocabularies": {column: list(pair) for column, pair in measured.items()},
            "counted": dict(workflow.counted),
        },
    )


def workflow_exists(lake: Lake, version: str) -> bool:
    return storage.exists(f"{lake.workflow(version)}/{FILE_NAME}")


def load_workflow(
    lake: Lake,
    version: str,
    broadcast_max_rows: int = 2_000_000,
    engine: Literal["auto", "sql", "arrow"] = "auto",
) -> FittedWorkflow:
    """A stored workflow version, ready to be applied by the given engine.

    Raises:
        DataError: there is no such version, or it is damaged.
    """
    spark = SparkSession.getActiveSession()
    path = f"{lake.workflow(version)}/{FILE_NAME}"
    if spark is None:
        raise InfrastructureError(
            "load_workflow needs a running Spark session", "build it through jobs.session first"
        )
    try:
        stored = storage.read_json(path)
    except FileNotFoundError as error:
        raise DataError(
            f"workflow {version} does not exist ({path})", "run build_features to fit it"
        ) from error
    measured = {column: (pair[0], pair[1]) for column, pair in stored["vocabularies"].items()}
    found = vocabularies(spark, lake, version, measured, broadcast_max_rows) if measured else {}
    operators = tuple(
        OPERATORS[each["op"]][1].from_state(each["column"], each["state"], found.get(each["column"]))
        for each in stored["operators"]
    )
    spec = FeatureSpec.from_json(stored["spec"])
    lookups = choose_lookups(spark, lake, version, measured, engine, broadcast_max_rows)
    return FittedWorkflow(stored["version"], stored["parent"], spec, operators, stored["counted"], lookups)
