"""Computes statistics of the training rows from Spark frames, in one pass per kind of statistic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from conf.names import EPOCH
from etl.fit.rounds import ChainRequest, TrainingDays, vocabulary_of
from etl.fit.version_tables import VersionTables
from etl.operators.categorify import Categorify
from etl.operators.join_external import JoinExternal
from etl.ops.base import LISTS, Operator, Step, Type
from etl.ops.keyed import GROUP, KEY, table_name
from etl.ops.tables import RARE, VOCABULARY
from etl.ops.training_statistics import Statistics
from etl.raw.splits import DAY
from etl.raw.text_values import joined_column, text_column
from etl.statistics.id_rule import IdRule, assign_ids
from etl.statistics.moments import MeasuredStatistic, measure_mergeable, measure_moments, measure_quantiles
from etl.workflow.feature_plan import FeaturePlan
from spark.rows import frame_of
from spark.workers import Workers

_COUNTS = "column string, value string, count bigint, last_seen int"
_ENTRIES = "column string, value string, id int, count bigint, last_seen int"


class RowStatistics:
    """A source of statistics (StatisticsSource) that reads the training rows as a Spark frame."""

    def __init__(
        self, workers: Workers, plan: FeaturePlan, tables: VersionTables, training: TrainingDays
    ) -> None:
        """Creates a source of statistics that reads the rows of `training`.

        `tables` publishes the tables that the steps need.
        """
        self._workers, self._plan, self._tables, self._training = workers, plan, tables, training

    def measure(self, requests: Sequence[ChainRequest]) -> dict[str, Statistics]:
        """Computes the statistics of all requested steps, as StatisticsSource.measure describes."""
        rows, steps = self._inputs(requests)
        by_need: dict[str, list[StepInputs]] = {}
        for inputs in steps:
            need = inputs.step.operator.needs
            by_need.setdefault(need if need in ("counts", "groups", "external") else "", []).append(inputs)
        statistics = measure_steps(rows, by_need.get("", []))
        statistics |= {inputs.key: self._join_external(inputs) for inputs in by_need.get("external", [])}
        statistics |= self._measure_groups(rows, by_need.get("groups", []))
        if "counts" in by_need:
            statistics |= self._count_vocabularies(rows, by_need["counts"])
        return statistics

    def _inputs(self, requests: Sequence[ChainRequest]) -> tuple[DataFrame, list[StepInputs]]:
        """Returns the training rows, and the requested steps with their inputs.

        If a fitted step reads a table, the columns of this table are joined to the rows.
        """
        if self._training.rows is None:
            raise ValueError("internal error, please report: there is no frame of training rows")
        rows, steps = self._training.rows(), []
        tables = self._tables.open(
            self._workers.spark, self._plan.config.output.broadcast_max_rows, self._training.latest
        )
        for request in requests:
            rows, values = request.before.apply(rows, tables, f"_q{request.index}_")
            steps += [
                StepInputs(
                    key=request.key(step),
                    step=step,
                    values=tuple(values[name] for name in step.inputs),
                    types=tuple(request.types[name] for name in step.inputs),
                    cardinality=request.cardinality(step),
                )
                for step in request.steps
            ]
        return rows, steps

    def _join_external(self, inputs: StepInputs) -> Statistics:
        """Publishes the external table that a join_external step reads."""
        operator = cast(JoinExternal, inputs.step.operator)
        source, key = operator.source(inputs.step)
        table = self._training.read_table(
            self._plan.config, source, key, "join_external", self._training.days[-1]
        )
        external = frame_of(self._workers.spark, table)
        names = (F.col(name) for name in operator.columns)
        return self._publish_keyed(external.select(text_column(F.col(key)).alias(KEY), *names), inputs, {})

    def _measure_groups(self, rows: DataFrame, steps: Sequence[StepInputs]) -> dict[str, Statistics]:
        """Publishes the keyed tables of `steps`. All tables of an operator are computed together."""
        statistics = {}
        remaining = list(steps)
        while remaining:
            operator = remaining[0].step.operator
            group = [inputs for inputs in remaining if inputs.step.operator == operator]
            remaining = [inputs for inputs in remaining if inputs.step.operator != operator]
            with keyed_tables(rows, operator, [inputs.values for inputs in group]) as tables:
                for number, inputs in enumerate(group):
                    statistics[inputs.key] = self._publish_keyed(tables.table(number), inputs, tables.facts)
        return statistics

    def _publish_keyed(self, table: DataFrame, inputs: StepInputs, facts: Mapping[str, Any]) -> Statistics:
        name = table_name(inputs.step)
        self._tables.publish_frame(table, name)
        return Statistics(table=name, facts={**facts, "days": list(self._training.days)})

    def _count_vocabularies(self, rows: DataFrame, steps: Sequence[StepInputs]) -> dict[str, Statistics]:
        """Counts the values of all vocabularies in one pass, assigns ids, and publishes the tables."""
        operators = {vocabulary_of(inputs.step): cast(Categorify, inputs.step.operator) for inputs in steps}
        rules = {
            name: IdRule(operator.least(name), operator.first_id, operator.max_size)
            for name, operator in operators.items()
        }
        fixed = [
            (name, value, operator.first_id + position, 0, self._training.latest)
            for name, operator in operators.items()
            for position, value in enumerate(operator.values or ())
        ]
        fixed_names = {name for name, *_ in fixed}
        values = [
            (vocabulary_of(inputs.step), inputs.values[0], inputs.types[0] in LISTS)
            for inputs in steps
            if vocabulary_of(inputs.step) not in fixed_names and cast(Categorify, inputs.step.operator).counts
        ]
        facts = self._publish_vocabularies(self._counts(rows, values), rules, fixed)
        self._tables.add_vocabularies(facts)
        highest = {name: facts[name]["highest"] if name in facts else 0 for name in operators}
        return {
            inputs.key: Statistics(cardinality=highest[vocabulary_of(inputs.step)] + 1) for inputs in steps
        }

    def _counts(self, rows: DataFrame, values: Sequence[tuple[str, Column, bool]]) -> DataFrame:
        """Counts the values of the training rows.

        Returns a frame with the columns column, value, id, count, last_seen: one row for each value of a
        vocabulary. If a parent workflow is extended, the counts in its vocabularies are added to the new
        counts.
        """
        no_id = F.lit(None).cast("int")
        new = (
            count_values(rows, values, day_number(F.col(DAY)))
            if values
            else self._workers.spark.createDataFrame([], _COUNTS)
        )
        if self._tables.parent is None:
            return new.withColumn("id", no_id)
        rare = self._tables.read_parent(self._workers.spark, RARE).withColumn("id", no_id)
        known = self._tables.read_parent(self._workers.spark, VOCABULARY).unionByName(rare)
        names = [name for name, _, _ in values]
        return add_counts(known.where(F.col("column").isin(names)), new)

    def _publish_vocabularies(
        self, counts: DataFrame, rules: Mapping[str, IdRule], fixed: Sequence[tuple[str, str, int, int, int]]
    ) -> dict[str, dict[str, int]]:
        """Assigns ids to values, publishes the vocabularies, and returns their sizes and counts by name.

        Args:
            counts: a frame with the columns column, value, id, count, last_seen.
            rules: maps the name of each vocabulary to the rule that decides which values get ids.
            fixed: rows (vocabulary, value, id, 0, last_seen) of vocabularies whose values the configuration
                lists.
        """
        counts = counts.persist()
        assigned = assign_ids(counts, rules)
        if fixed:
            assigned = assigned.unionByName(self._workers.spark.createDataFrame(list(fixed), _ENTRIES))
        assigned = assigned.persist()
        try:
            known = assigned.where(F.col("id").isNotNull())
            rare = assigned.where(F.col("id").isNull())
            self._tables.publish_frame(
                known.select("column", "value", "id", "count", "last_seen"), VOCABULARY, ["column", "id"]
            )
            self._tables.publish_frame(
                rare.drop("id").select("column", "value", "count", "last_seen"), RARE, ["column", "value"]
            )
        finally:
            assigned.unpersist()
            counts.unpersist()
        return vocabulary_facts(
            *(self._tables.read(self._workers.spark, name) for name in (VOCABULARY, RARE))
        )


# The code below computes the keyed tables of all steps of one operator together.
#
# A step is an operator with its input columns. A keyed table has one row per key, with statistics of the
# training rows that have this key. Computing each keyed table separately would take three passes over the
# training rows per table: for its statistics, for the key ranges of its files, and for the statistics over
# all rows.

# Rows with this number in the column `_TABLE` contain statistics over all training rows. Their key is null.
_ALL_ROWS = -1
_TABLE, _KEY = GROUP


@dataclass(frozen=True)
class KeyedTables:
    """The keyed tables of all steps of one operator.

    Attributes:
        grouped: the rows of all keyed tables. The two columns in `GROUP` contain the position of the step and
            the key of a row.
        facts: values that the operator computes from the statistics of all training rows (see
            Operator.facts).
    """

    grouped: DataFrame = field(repr=False)
    facts: dict[str, Any]

    def table(self, number: int) -> DataFrame:
        """Returns the table (key string, …) of the step at position `number`, one row per key."""
        statistics = [name for name in self.grouped.columns if name not in GROUP]
        return self.grouped.where(F.col(_TABLE) == number).select(F.col(_KEY).alias(KEY), *statistics)


@contextmanager
def keyed_tables(
    rows: DataFrame, operator: Operator, keys: Sequence[Sequence[Column]]
) -> Iterator[KeyedTables]:
    """Computes the keyed tables of an operator's steps, and keeps them in memory until the `with` block ends.

    Args:
        rows: the training rows.
        operator: the operator of all these steps.
        keys: the input columns of each step. A row in which all inputs of a step are null is not used for
            this step.

    Raises:
        DataError: a value is too large to compute exact sums.
    """
    grouped = operator.groups(
        _by_group(rows, [joined_column(inputs) for inputs in keys], operator.of_all_rows)
    )
    grouped = grouped.persist()
    try:
        totals = grouped.where(F.col(_TABLE) == _ALL_ROWS).collect() if operator.of_all_rows else []
        yield KeyedTables(grouped, operator.facts(totals[0].asDict() if totals else {}))
    finally:
        grouped.unpersist()


def _by_group(rows: DataFrame, keys: Sequence[Column], with_all_rows: bool) -> DataFrame:
    """Returns one copy of each row for every step in which the row's key is not null.

    With `with_all_rows`, there is one more copy of each row, for the statistics over all rows.
    """
    groups = [
        F.struct(F.lit(number).alias(_TABLE), key.cast("string").alias(_KEY))
        for number, key in enumerate(keys)
    ]
    if with_all_rows:
        groups.append(F.struct(F.lit(_ALL_ROWS).alias(_TABLE), F.lit(None).cast("string").alias(_KEY)))
    repeated = rows.select(*rows.columns, F.explode(F.array(*groups)).alias("_group"))
    table, key = F.col(f"_group.{_TABLE}"), F.col(f"_group.{_KEY}")
    has_group = key.isNotNull() | (table == _ALL_ROWS)
    return repeated.where(has_group).select(*rows.columns, table.alias(_TABLE), key.alias(_KEY))


# The code below computes the statistics of the training rows that steps need, with one pass per kind of
# statistic.
#
# A step is an operator with its inputs. A chain of steps computes features from raw columns.


@dataclass(frozen=True)
class StepInputs:
    """A step that needs statistics, with its inputs as columns of the training rows.

    Attributes:
        key: a name for the step. Steps whose statistics are computed together have different keys. Error
            messages contain the key.
        values: for each input, an expression over the rows.
        types: the type of each input.
        cardinality: if the first input contains ids, the number of embedding rows for them; otherwise None.
    """

    key: str
    step: Step
    values: tuple[Column, ...]
    types: tuple[Type, ...]
    cardinality: int | None


def measure_steps(rows: DataFrame, steps: Sequence[StepInputs]) -> dict[str, Statistics]:
    """Computes all statistics that are not published as tables. Returns them by step key.

    Raises:
        DataError: a value is too large to compute exact moments, or the state of a mergeable statistic has
            more bytes than its operator allows.
    """
    by_need: dict[str, list[StepInputs]] = {}
    for inputs in steps:
        by_need.setdefault(inputs.step.operator.needs, []).append(inputs)
    moments = measure_moments(rows, _first_values(by_need.get("moments", [])))
    probabilities = {
        inputs.key: (inputs.values[0], inputs.step.operator.probabilities())
        for inputs in by_need.get("quantiles", [])
    }
    quantiles = measure_quantiles(rows, probabilities)
    merged = measure_mergeable(
        rows, {inputs.key: _measured(inputs) for inputs in by_need.get("mergeable", [])}
    )
    aggregates = _aggregates(rows, by_need.get("aggregates", []))
    return {
        inputs.key: Statistics(
            moments=moments.get(inputs.key),
            aggregates=aggregates.get(inputs.key, {}),
            quantiles=quantiles.get(inputs.key, {}),
            merged=merged.get(inputs.key),
            cardinality=inputs.cardinality,
        )
        for inputs in steps
    }


def _first_values(steps: Sequence[StepInputs]) -> dict[str, Column]:
    return {inputs.key: inputs.values[0] for inputs in steps}


def _measured(inputs: StepInputs) -> tuple[Column, MeasuredStatistic]:
    """Returns the first input of a step, and the statistic that the operator defines for this input."""
    kind = inputs.types[0]
    return inputs.values[0], MeasuredStatistic(inputs.key, inputs.step.operator.statistic(kind), kind)


def _aggregates(rows: DataFrame, steps: Sequence[StepInputs]) -> dict[str, dict[str, Any]]:
    """Returns, for each step key, a dictionary that maps the name of each aggregate to its value.

    All aggregates of all steps are computed in one Spark aggregation.
    """
    columns: list[Column] = []
    names: list[tuple[str, str]] = []
    for inputs in steps:
        operator = inputs.step.operator
        for name, aggregate in operator.aggregates(inputs.values[0], inputs.types[0]).items():
            columns.append(aggregate.alias(f"m{len(columns)}"))
            names.append((inputs.key, name))
    if not columns:
        return {}
    row = rows.agg(*columns).first()
    aggregates: dict[str, dict[str, Any]] = {}
    for (key, name), value in zip(names, row or [None] * len(names), strict=True):
        aggregates.setdefault(key, {})[name] = value
    return aggregates


def day_number(day: Column) -> Column:
    """Returns the number of days from 1970-01-01 to an ISO date."""
    return F.datediff(F.to_date(day), F.lit(EPOCH.isoformat()).cast("date"))


# The functions below count values in one pass over the rows. Vocabularies, which map the values of
# categorical columns to ids, are built from these counts.
#
# When a vocabulary is extended, new values get ids, and existing ids never change.


def count_values(rows: DataFrame, values: Sequence[tuple[str, Column, bool]], day: Column) -> DataFrame:
    """Counts the values of all columns in one pass over the rows.

    Returns a frame with the columns column, value, count, last_seen: one row for each value of a column.
    `last_seen` is the last day with the value. The shuffle is keyed by (column, value), so the values of a
    column with many values are spread over all tasks. Nulls are not counted.

    Args:
        values: (name, expression, is_list) for each column to count. `name` is the name of its vocabulary,
            `expression` is the value in a row, and `is_list` is true if this value is a list.
        day: an expression for the day of a row, in days since 1970-01-01.
    """
    cells = [
        F.array(F.struct(F.lit(name).alias("column"), text_column(value).alias("value")))
        for name, value, is_list in values
        if not is_list
    ]
    lists = [
        F.coalesce(
            F.transform(value, _named(name)), F.array().cast("array<struct<column:string,value:string>>")
        )
        for name, value, is_list in values
        if is_list
    ]
    plain = F.concat(*cells, *lists) if len(cells) + len(lists) > 1 else (cells + lists)[0]
    return (
        rows.select(F.explode(plain).alias("cell"), day.cast("int").alias("day"))
        .select("cell.column", "cell.value", "day")
        .where(F.col("value").isNotNull())
        .groupBy("column", "value")
        .agg(F.count(F.lit(1)).alias("count"), F.max("day").alias("last_seen"))
    )


def _named(name: str) -> Any:
    return lambda element: F.struct(F.lit(name).alias("column"), text_column(element).alias("value"))


def add_counts(known: DataFrame, new: DataFrame) -> DataFrame:
    """Adds the value counts of new days to the counts of a vocabulary.

    Returns a frame with the columns of `known`: one row for each value of a column. Values that occur only in
    `new` have a null id.

    Args:
        known: the vocabulary to extend, with the columns column, value, id, count, last_seen. It includes
            rare values, which have a null id.
        new: the value counts of days that the vocabulary does not include yet, with the columns column,
            value, count, last_seen.
    """
    without_id = new.select("column", "value", F.lit(None).cast("int").alias("id"), "count", "last_seen")
    return (
        known.select("column", "value", "id", "count", "last_seen")
        .unionByName(without_id)
        .groupBy("column", "value")
        .agg(F.max("id").alias("id"), F.sum("count").alias("count"), F.max("last_seen").alias("last_seen"))
    )


def vocabulary_facts(with_id: DataFrame, rare: DataFrame) -> dict[str, dict[str, int]]:
    """Returns the size and the counts of each vocabulary, by the name of the vocabulary.

    For each vocabulary, these are the number of values with an id (`entries`), the highest id (`highest`),
    and the number of values without an id (`rare_values`). `occurrences` counts the rows with a value that
    has an id. `rare_occurrences` counts the rows with a value that has no id. The driver collects one row per
    vocabulary.
    """
    known = with_id.groupBy("column").agg(
        F.count("id").alias("entries"), F.max("id").alias("highest"), F.sum("count").alias("occurrences")
    )
    others = rare.groupBy("column").agg(
        F.count(F.lit(1)).alias("rare_values"), F.sum("count").alias("rare_occurrences")
    )
    rows = known.join(others, "column", "full_outer").collect()
    names = ("entries", "highest", "occurrences", "rare_values", "rare_occurrences")
    return {row["column"]: {name: int(row[name] or 0) for name in names} for row in rows}
