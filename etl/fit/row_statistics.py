"""Statistics of the training days from frames of their rows: one pass for all steps of a kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.types import Config
from etl.fit.chain_progress import ChainRequest, vocabulary_of
from etl.fit.training_days import TrainingDays
from etl.fit.version_tables import VersionTables
from etl.ops.base import LISTS, Statistics
from etl.ops.categorify import Categorify
from etl.ops.join_external import JoinExternal
from etl.ops.keyed import KEY, table_name
from etl.ops.tables import RARE, VOCABULARY
from etl.raw.value_text import text_column
from etl.spark.read_log import read_attributes
from etl.split.time_split import DAY
from etl.statistics.answers import Question, answer, day_number
from etl.statistics.keyed_tables import keyed_tables
from etl.statistics.vocabulary import IdRule, add_counts, assign_ids, count_values, vocabulary_facts

_COUNTS = "column string, value string, count bigint, last_seen int"
_ENTRIES = "column string, value string, id int, count bigint, last_seen int"


class RowStatistics:
    """A StatisticsSource that reads the training rows."""

    def __init__(
        self, spark: SparkSession, config: Config, tables: VersionTables, training: TrainingDays
    ) -> None:
        """`tables` gets the tables that the statistics need."""
        self._spark, self._config, self._tables, self._training = spark, config, tables, training

    def measure(self, requests: Sequence[ChainRequest]) -> dict[str, Statistics]:
        """As StatisticsSource.measure."""
        rows, columns = self._columns(requests)
        of_need: dict[str, list[Question]] = {}
        for column in columns:
            need = column.step.operator.needs
            of_need.setdefault(need if need in ("counts", "groups", "external") else "", []).append(column)
        statistics = answer(rows, of_need.get("", []))
        statistics |= {column.key: self._join_external(column) for column in of_need.get("external", [])}
        statistics |= self._measure_groups(rows, of_need.get("groups", []))
        if "counts" in of_need:
            statistics |= self._count_vocabularies(rows, of_need["counts"])
        return statistics

    def _columns(self, requests: Sequence[ChainRequest]) -> tuple[DataFrame, list[Question]]:
        """(training rows through the fitted steps, the columns of these rows that are measured)."""
        rows, columns = self._training.rows(), []
        tables = self._tables.open(self._spark, self._config.output.broadcast_max_rows, self._training.latest)
        for request in requests:
            rows, values = request.before.apply(rows, tables, f"_q{request.index}_")
            columns += [
                Question(
                    key=request.key(step),
                    step=step,
                    values=tuple(values[name] for name in step.inputs),
                    kinds=tuple(request.types[name] for name in step.inputs),
                    cardinality=request.cardinality(step),
                )
                for step in request.steps
            ]
        return rows, columns

    def _join_external(self, column: Question) -> Statistics:
        """Publishes the table that a step of join_external names."""
        operator = cast(JoinExternal, column.step.operator)
        source, key = operator.source(column.step)
        external = read_attributes(
            self._spark, self._config, source, key, "join_external", self._training.days[-1]
        )
        names = (F.col(name) for name in operator.columns)
        return self._publish_keyed(external.select(text_column(F.col(key)).alias(KEY), *names), column, {})

    def _measure_groups(self, rows: DataFrame, columns: Sequence[Question]) -> dict[str, Statistics]:
        """Publishes the keyed tables of these steps: one pass over the rows for each operator."""
        by_operator: list[list[Question]] = []
        for column in columns:
            for group in by_operator:
                if group[0].step.operator == column.step.operator:
                    group.append(column)
                    break
            else:
                by_operator.append([column])
        statistics = {}
        for group in by_operator:
            keys = [column.values for column in group]
            with keyed_tables(rows, group[0].step.operator, keys) as made:
                for number, column in enumerate(group):
                    statistics[column.key] = self._publish_keyed(made.table(number), column, made.facts)
        return statistics

    def _publish_keyed(self, table: DataFrame, column: Question, facts: Mapping[str, Any]) -> Statistics:
        name = table_name(column.step)
        self._tables.publish_frame(table, name)
        return Statistics(table=name, facts={**facts, "days": list(self._training.days)})

    def _count_vocabularies(self, rows: DataFrame, columns: Sequence[Question]) -> dict[str, Statistics]:
        """Counts all vocabularies in one pass, assigns ids, and publishes vocabularies and rare values."""
        operators = {vocabulary_of(column.step): cast(Categorify, column.step.operator) for column in columns}
        rules = {
            name: IdRule(operator.least(name), operator.first_id, operator.max_size)
            for name, operator in operators.items()
        }
        fixed = [
            (name, value, operator.first_id + place, 0, self._training.latest)
            for name, operator in operators.items()
            for place, value in enumerate(operator.values or ())
        ]
        fixed_names = {name for name, *_ in fixed}
        values = [
            (vocabulary_of(column.step), column.values[0], column.kinds[0] in LISTS)
            for column in columns
            if vocabulary_of(column.step) not in fixed_names
        ]
        facts = self._publish_vocabularies(self._counts(rows, values), rules, fixed)
        self._tables.add_vocabularies(facts)
        highest = {name: facts[name]["highest"] if name in facts else 0 for name in operators}
        return {
            column.key: Statistics(cardinality=highest[vocabulary_of(column.step)] + 1) for column in columns
        }

    def _counts(self, rows: DataFrame, values: Sequence[tuple[str, Column, bool]]) -> DataFrame:
        """(column, value, id, count, last_seen) of the training rows, added to those of the parent."""
        no_id = F.lit(None).cast("int")
        new = (
            count_values(rows, values, day_number(F.col(DAY)))
            if values
            else self._spark.createDataFrame([], _COUNTS)
        )
        if self._tables.parent is None:
            return new.withColumn("id", no_id)
        rare = self._tables.read_parent(self._spark, RARE).withColumn("id", no_id)
        known = self._tables.read_parent(self._spark, VOCABULARY).unionByName(rare)
        names = [name for name, _, _ in values]
        return add_counts(known.where(F.col("column").isin(names)), new)

    def _publish_vocabularies(
        self, counts: DataFrame, rules: Mapping[str, IdRule], fixed: Sequence[tuple[str, str, int, int, int]]
    ) -> dict[str, dict[str, int]]:
        """Assigns ids to values; vocabulary → facts.

        Args:
            fixed: (vocabulary, value, id, 0, last_seen) of vocabularies that the configuration lists.
        """
        counts = counts.persist()
        assigned = assign_ids(counts, rules)
        if fixed:
            assigned = assigned.unionByName(self._spark.createDataFrame(list(fixed), _ENTRIES))
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
        return vocabulary_facts(*(self._tables.read(self._spark, name) for name in (VOCABULARY, RARE)))
