"""Computes statistics of the training days from frames of their rows, in one pass per kind of statistic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from etl.fit.chain_progress import ChainRequest, vocabulary_of
from etl.fit.fit_inputs import TrainingDays
from etl.fit.version_tables import VersionTables
from etl.operators.categorify import Categorify
from etl.operators.join_external import JoinExternal
from etl.ops.base import LISTS
from etl.ops.keyed import KEY, table_name
from etl.ops.tables import RARE, VOCABULARY
from etl.ops.training_statistics import Statistics
from etl.raw.value_text import text_column
from etl.split.time_split import DAY
from etl.statistics.id_rule import IdRule, assign_ids
from etl.statistics.keyed_tables import keyed_tables
from etl.statistics.step_statistics import StepInputs, day_number, measure_steps
from etl.statistics.vocabulary import add_counts, count_values, vocabulary_facts
from etl.workflow.feature_plan import Plan
from spark.arrow_frames import frame_of
from spark.workers import Workers

_COUNTS = "column string, value string, count bigint, last_seen int"
_ENTRIES = "column string, value string, id int, count bigint, last_seen int"


class RowStatistics:
    """A StatisticsSource that reads the training rows."""

    def __init__(self, workers: Workers, plan: Plan, tables: VersionTables, training: TrainingDays) -> None:
        """Creates a source of statistics that reads the rows of `training`.

        The tables that steps need are published in `tables`.
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
        """Publishes the keyed tables of these steps, with one pass over the rows per operator."""
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
        """Counts all vocabularies in one pass, assigns ids, and publishes vocabularies and rare values."""
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
        vocabulary. If a parent workflow is extended, the counts in its vocabularies are added.
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
        """Assigns ids to values, publishes the vocabularies, and returns their facts by vocabulary name.

        Args:
            counts: a frame with the columns column, value, id, count, last_seen.
            rules: maps the name of each vocabulary to its rule.
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
