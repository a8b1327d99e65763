"""Fits chains round by round: every step whose inputs are known and whose statistics are there becomes a Fitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.types import Config
from etl.fit.chain_state import Progress, countable, key_of, vocabulary_of
from etl.fit.fit_from_counts import answer_steps, questions_of
from etl.ops.base import Statistics
from etl.ops.categorify import Categorify
from etl.ops.join_external import JoinExternal
from etl.ops.keyed import KEY, KeyedFitted, table_name
from etl.ops.tables import RARE, VOCABULARY, LocalTables, Tables, open_tables, workflow_table
from etl.raw.value_text import text_column
from etl.spark.read_log import read_attributes
from etl.split.time_split import DAY
from etl.statistics.answers import Question as FrameQuestion
from etl.statistics.answers import answer, day_number
from etl.statistics.keyed_tables import keyed_tables
from etl.statistics.vocabulary import IdRule, add_counts, assign_ids, count_values, vocabulary_facts
from etl.value_counts.merge import answer_from_counts
from etl.value_counts.requests import Counts
from etl.value_counts.vocabularies import Folders
from etl.workflow.chains import FittedChain
from etl.workflow.feature_plan import Chain
from etl.workflow.fitted_workflow import FittedWorkflow, table_sizes
from storage.manifest import data_files, read_manifest
from storage.paths import Lake, Partition
from storage.publish import new_attempt, publish, publish_files, read_published


class Fitting:
    """One fit of all chains on the training rows, or one extension of a parent's.

    Attributes:
        table_rows: table published for the version, or vocabulary → its rows.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        lake: Lake,
        version: str,
        rows: Callable[[], DataFrame],
        days: Sequence[str],
        latest: int,
        parent: FittedWorkflow | None,
        counts: Counts | None,
    ) -> None:
        """As etl.fit.fit_workflow.fit_workflow. `counts` are the value counts of the training rows, where there are any."""
        self._spark, self._config, self._lake, self._version = spark, config, lake, version
        self._rows, self._days, self._latest, self._parent = rows, days, latest, parent
        self._value_counts = counts
        self.table_rows: dict[str, int] = {}
        self._vocabularies: dict[str, dict[str, int]] = {}

    def fit(self, chains: Sequence[Chain]) -> tuple[tuple[FittedChain, ...], dict[str, dict[str, int]]]:
        """The fitted chains, and the facts of each vocabulary.

        Raises:
            DataError: a column cannot be fitted.
        """
        progress = [Progress(chain) for chain in chains]
        while any(each.waiting for each in progress):
            for index, each in enumerate(progress):
                self._advance(each, index)
            waiting = [(i, each) for i, each in enumerate(progress) if each.waiting]
            if not waiting:
                break
            by_counts = [(i, each) for i, each in waiting if self._value_counts and countable(each)]
            # Vocabularies are published together, so all are counted at once, when no chain has one still to come.
            vocabularies = [(i, each) for i, each in waiting if each.needs == "counts"]
            ahead = sum(each.counts_ahead for each in progress)
            together = sum(len(each.together) for _, each in vocabularies) == ahead
            others = [
                (i, each) for i, each in waiting if each.needs != "counts" and (i, each) not in by_counts
            ]
            if others:
                self._answer(others)
            elif by_counts and together and all(each in by_counts for each in vocabularies):
                self._vocabularies |= self._answer_from_counts(by_counts)
            elif len(vocabularies) < len(waiting):
                rest = [each for each in waiting if each not in vocabularies]
                self._answer(rest)
            else:
                self._vocabularies |= self._count(waiting)
        return tuple(each.done() for each in progress), self._vocabularies

    def _advance(self, progress: Progress, index: int) -> None:
        """Fits the steps that need nothing, and those whose numbers the parent has."""
        while (step := progress.waiting) is not None and progress.needs != "counts":
            if self._parent is not None:
                known = self._parent.chains[index].steps[len(progress.fitted)]
                if isinstance(known, KeyedFitted) and known.table not in self.table_rows:
                    self._publish(
                        read_published(self._spark, self._table(known.table, parent=True)), known.table
                    )
                if step.operator.keeps_ids:  # of a vocabulary that may have grown
                    known = known.resized(progress.cardinalities.get(step.inputs[0]))
                progress.add(known)
            elif step.operator.needs == "nothing":
                cardinality = progress.cardinalities.get(step.inputs[0])
                progress.add(step.operator.fit(step, Statistics(cardinality=cardinality)))
            else:
                return

    def _answer(self, waiting: Sequence[tuple[int, Progress]]) -> None:
        rows, questions = self._questions(waiting)
        keyed = [each for each in questions if each.step.operator.needs == "groups"]
        external = [each for each in questions if each.step.operator.needs == "external"]
        found = answer(rows, [each for each in questions if each not in (*keyed, *external)])
        found |= {each.key: self._external_table(each) for each in external}
        while keyed:
            operator = keyed[0].step.operator
            found |= self._keyed_tables(rows, [each for each in keyed if each.step.operator == operator])
            keyed = [each for each in keyed if each.step.operator != operator]
        for index, progress in waiting:
            for step in progress.together:
                progress.add(step.operator.fit(step, found[key_of(index, step)]))

    def _questions(self, waiting: Sequence[tuple[int, Progress]]) -> tuple[DataFrame, list[FrameQuestion]]:
        rows, questions = self._rows(), []
        tables = self._tables()
        for index, progress in waiting:
            rows, values = progress.so_far().apply(rows, tables, f"_q{index}_")
            kinds = progress.kinds()
            questions += [
                FrameQuestion(
                    key=key_of(index, step),
                    step=step,
                    values=tuple(values[name] for name in step.inputs),
                    kinds=tuple(kinds[name] for name in step.inputs),
                    cardinality=progress.cardinalities.get(step.inputs[0]),
                )
                for step in progress.together
            ]
        return rows, questions

    def _tables(self) -> Tables:
        """What was published for this version so far."""
        if not self.table_rows:
            return Tables({}, {}, self._config.output.broadcast_max_rows, LocalTables({}, self._latest))
        names = [name for name in self.table_rows if name != RARE]
        return open_tables(
            self._spark,
            self._lake,
            self._version,
            names,
            table_sizes(self.table_rows, self._vocabularies),
            self._config.output.broadcast_max_rows,
            self._latest,
        )

    def _external_table(self, question: FrameQuestion) -> Statistics:
        operator = cast(JoinExternal, question.step.operator)
        source, key = operator.source(question.step)
        external = read_attributes(self._spark, self._config, source, key, "join_external", self._days[-1])
        columns = (F.col(each) for each in operator.columns)
        return self._published(external.select(text_column(F.col(key)).alias(KEY), *columns), question, {})

    def _keyed_tables(self, rows: DataFrame, questions: Sequence[FrameQuestion]) -> dict[str, Statistics]:
        """Of steps of one operator."""
        keys = [question.values for question in questions]
        with keyed_tables(rows, questions[0].step.operator, keys) as made:
            return {
                question.key: self._published(made.table(number), question, made.facts)
                for number, question in enumerate(questions)
            }

    def _published(self, table: DataFrame, question: FrameQuestion, facts: Mapping[str, Any]) -> Statistics:
        name = table_name(question.step)
        self._publish(table, name)
        return Statistics(table=name, facts={**facts, "days": list(self._days)})

    def _table(self, name: str, parent: bool = False) -> Partition:
        version = self._parent.version if parent and self._parent else self._version
        return workflow_table(self._lake, version, name)

    def _publish(self, table: DataFrame, name: str) -> None:
        manifest = publish(
            table,
            self._table(name),
            inputs={"version": self._version},
            row_group_rows=self._config.output.row_group_rows,
            sort_by=[KEY],
        )
        self.table_rows[name] = manifest.rows

    def _count(self, waiting: Sequence[tuple[int, Progress]]) -> dict[str, dict[str, int]]:
        """Counts all vocabularies in one pass, assigns ids, publishes both tables, and fits the waiting steps."""
        rows, questions = self._questions(waiting)
        operators = {vocabulary_of(each.step): each.step.operator for each in questions}
        rules, given = {}, []
        for name, operator in operators.items():
            if isinstance(operator, Categorify):
                rules[name] = IdRule(operator.least(name), operator.first_id, operator.max_size)
                given += [
                    (name, value, operator.first_id + place, 0, self._latest)
                    for place, value in enumerate(operator.values or ())
                ]
        fixed = {entry[0] for entry in given}
        values = [
            (vocabulary_of(each.step), each.values[0], each.kinds[0] in ("ints", "strings"))
            for each in questions
            if vocabulary_of(each.step) not in fixed
        ]
        facts = self._assign(self._counts(rows, values), rules, given)
        for _, progress in waiting:
            for step in progress.together:
                found = facts.get(vocabulary_of(step), {"entries": 0, "highest": 0})
                progress.add(step.operator.fit(step, Statistics(cardinality=found["highest"] + 1)))
        return facts

    def _answer_from_counts(self, waiting: Sequence[tuple[int, Progress]]) -> dict[str, dict[str, int]]:
        """Fits steps by the value counts; the facts of the vocabularies among them, which are published."""
        counts = self._value_counts
        if counts is None:
            return {}
        questions = questions_of(waiting, self._parent_files())
        tables = [self._table(name) for name in (VOCABULARY, RARE)]
        known, rare = (new_attempt(table) for table in tables)
        folders = Folders(tables[0].file(known), tables[1].file(rare), self._config.output.row_group_rows)
        found = answer_from_counts(self._spark, list(questions.values()), counts, folders)
        named = sorted(name for name, each in questions.items() if each.wants == "counts")
        if named:
            self._publish_vocabularies(known, rare, [found[name]["files"] for name in named])
        facts = {name: found[name]["facts"] for name in named}
        answer_steps(waiting, found)
        return facts

    def _parent_files(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if self._parent is None:
            return (), ()
        tables = [self._table(name, parent=True) for name in (VOCABULARY, RARE)]
        known, rare = (tuple(data_files(table, read_manifest(table))) for table in tables)
        return known, rare

    def _publish_vocabularies(
        self, known: str, rare: str, files: Sequence[Mapping[str, Sequence[str]]]
    ) -> None:
        for part, attempt, name in (("known", known, VOCABULARY), ("rare", rare, RARE)):
            manifest = publish_files(
                self._table(name),
                {f"{attempt}/{file}": None for each in files for file in each[part]},
                inputs={"version": self._version},
            )
            self.table_rows[name] = manifest.rows

    def _counts(self, rows: DataFrame, values: Sequence[tuple[str, Column, bool]]) -> DataFrame:
        """(column, value, id, count, last_seen), with what the parent counted."""
        schema = "column string, value string, count bigint, last_seen int"
        new = (
            count_values(rows, values, day_number(F.col(DAY)))
            if values
            else self._spark.createDataFrame([], schema)
        )
        if self._parent is None:
            return new.withColumn("id", F.lit(None).cast("int"))
        known = read_published(self._spark, self._table(VOCABULARY, parent=True)).unionByName(
            read_published(self._spark, self._table(RARE, parent=True)).withColumn(
                "id", F.lit(None).cast("int")
            )
        )
        names = [name for name, _, _ in values]
        return add_counts(known.where(F.col("column").isin(names)), new)

    def _assign(
        self,
        counts: DataFrame,
        rules: Mapping[str, IdRule],
        given: Sequence[tuple[str, str, int, int, int]],
    ) -> dict[str, dict[str, int]]:
        counts = counts.persist()
        assigned = assign_ids(counts, rules)
        if given:
            schema = "column string, value string, id int, count bigint, last_seen int"
            assigned = assigned.unionByName(self._spark.createDataFrame(given, schema))
        assigned = assigned.persist()
        try:
            for name, part, order in (
                (VOCABULARY, assigned.where(F.col("id").isNotNull()), ["column", "id"]),
                (RARE, assigned.where(F.col("id").isNull()).drop("id"), ["column", "value"]),
            ):
                columns = [
                    each for each in ("column", "value", "id", "count", "last_seen") if each in part.columns
                ]
                manifest = publish(
                    part.select(*columns),
                    self._table(name),
                    inputs={"version": self._version},
                    row_group_rows=self._config.output.row_group_rows,
                    sort_by=order,
                )
                self.table_rows[name] = manifest.rows
        finally:
            assigned.unpersist()
            counts.unpersist()
        facts = vocabulary_facts(
            *(read_published(self._spark, self._table(name)) for name in (VOCABULARY, RARE))
        )
        return facts
