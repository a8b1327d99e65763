"""Computes statistics of the training days from blocks of their rows, or from their value counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa

from etl.fit.block_tasks import (
    BlockStep,
    KeyedFiles,
    Measured,
    aggregate_counts,
    measure_blocks,
    measure_squares,
    merge_by_key,
)
from etl.fit.rounds import ChainRequest, TrainingDays, vocabulary_of
from etl.fit.version_tables import VersionTables
from etl.operators.categorify import Categorify
from etl.operators.join_external import JoinExternal
from etl.ops.base import LISTS, Operator, Step, Type
from etl.ops.keyed import KEY, table_name
from etl.ops.tables import RARE, VOCABULARY
from etl.ops.training_statistics import Statistics
from etl.raw.text_values import text_array
from etl.statistics.count_statistics import VocabularyFolders, compute_statistics, moments_from
from etl.statistics.id_rule import IdRule
from etl.statistics.moments import VALUE_TYPES, MeasuredStatistic
from etl.statistics.value_counts import CountRequest, Counts, DerivedColumn
from etl.workflow.chains import FittedChain
from etl.workflow.feature_plan import FeaturePlan
from spark.workers import Workers
from storage import file_io
from storage.publish import new_attempt

# Maps the types of lists to the types of their elements, because a list is counted by its elements.
_ELEMENTS: Mapping[Type, Type] = {"ints": "int", "strings": "string"}

# Statistics that are computed from the value counts of a step's first input.
_COUNTED = ("moments", "quantiles", "mergeable", "counts")


class BlockStatistics:
    """A source of statistics (StatisticsSource) that reads the training rows in blocks.

    Steps are fitted in rounds. A round makes one pass over the rows for all its steps, and a second pass for
    operators that read rows twice. In the first pass, tasks write two kinds of files: statistics by key, and
    value counts of the steps' inputs. CountStatistics computes vocabularies, moments and quantiles from these
    counts.
    """

    def __init__(
        self, workers: Workers, plan: FeaturePlan, tables: VersionTables, training: TrainingDays
    ) -> None:
        """Creates a source of statistics that reads `training.blocks`, which must not be None.

        `tables` publishes the tables that the steps need.
        """
        if training.blocks is None:
            raise ValueError("internal error, please report: the training rows are not given as blocks")
        self._workers, self._plan, self._tables, self._training = workers, plan, tables, training
        self._blocks = training.blocks

    def measure(self, requests: Sequence[ChainRequest]) -> dict[str, Statistics]:
        """Computes the statistics of all requested steps, as StatisticsSource.measure describes."""
        statistics: dict[str, Statistics] = {}
        of_rows: dict[str, BlockStep] = {}
        for request in requests:
            for step in request.steps:
                if step.operator.needs == "external":
                    statistics[request.key(step)] = self._join_external(step)
                elif _reads_rows(step):
                    of_rows[request.key(step)] = _block_step(request, step)
        folder = self._tables.partition(VOCABULARY).file(new_attempt(self._tables.partition(VOCABULARY)))
        local = self._tables.local(self._training.latest)
        latest = self._training.latest
        if of_rows:
            measured = measure_blocks(
                self._workers, self._blocks, list(of_rows.values()), local, folder, latest
            )
        else:
            measured = Measured(Counts((), latest, {}), {}, {}, {}, ())
        try:
            statistics |= self._count(requests, measured.counts)
            statistics |= self._aggregate(requests, of_rows, measured)
            return statistics | self._group(requests, of_rows, measured)
        finally:
            _delete(measured.files)

    def _count(self, requests: Sequence[ChainRequest], counts: Counts) -> dict[str, Statistics]:
        """Computes the statistics that need only value counts. Publishes the vocabularies."""
        counted = [
            ChainRequest(request.index, request.before, request.types, request.cardinalities, steps)
            for request in requests
            if (steps := tuple(step for step in request.steps if step.operator.needs in _COUNTED))
        ]
        if not counted:
            return {}
        return CountStatistics(self._workers, self._tables, counts, _counted_column).measure(counted)

    def _aggregate(
        self, requests: Sequence[ChainRequest], of_rows: Mapping[str, BlockStep], measured: Measured
    ) -> dict[str, Statistics]:
        steps = [step for step in of_rows.values() if step.operator.needs == "aggregates"]
        of_lists = [step for step in steps if step.kind in LISTS]
        aggregates = aggregate_counts(
            self._workers, [step for step in steps if step.kind not in LISTS], measured.counts
        )
        for step in of_lists:
            nothing = pa.array([], pa.list_(VALUE_TYPES[step.kind]))
            known = measured.lists.get(step.key)
            aggregates[step.key] = known or step.operator.aggregate_values(nothing, step.kind)
        return {
            request.key(step): Statistics(
                aggregates=aggregates[request.key(step)], cardinality=request.cardinality(step)
            )
            for request in requests
            for step in request.steps
            if request.key(step) in aggregates
        }

    def _group(
        self, requests: Sequence[ChainRequest], of_rows: Mapping[str, BlockStep], measured: Measured
    ) -> dict[str, Statistics]:
        """Publishes a table (a keyed table) for each step that needs statistics by key."""
        steps = {key: step for key, step in of_rows.items() if step.operator.needs == "groups"}
        if not steps:
            return {}
        names = {
            request.key(step): table_name(step)
            for request in requests
            for step in request.steps
            if request.key(step) in steps
        }
        attempts = {key: new_attempt(self._tables.partition(name)) for key, name in names.items()}
        folders = {key: self._tables.partition(name).file(attempts[key]) for key, name in names.items()}
        rows = self._tables.row_group_rows
        files = merge_by_key(self._workers, steps, measured.parts, folders, rows)
        twice = {key: step for key, step in steps.items() if step.operator.reads_rows_twice}
        if twice:
            first = {key: files[key] for key in twice}
            local = self._tables.local(self._training.latest)
            final, unneeded = measure_squares(self._workers, self._blocks, twice, first, local, folders, rows)
            files |= final
            _delete(unneeded)
        statistics = {}
        for key, name in names.items():
            self._publish(files[key], attempts[key], name)
            facts = {**_facts(steps[key], steps, measured), "days": list(self._training.days)}
            statistics[key] = Statistics(table=name, facts=facts)
        return statistics

    def _publish(self, files: KeyedFiles, attempt: str, name: str) -> None:
        self._tables.publish_files([f"{attempt}/{path.rsplit('/', 1)[1]}" for path in files.files], name)

    def _join_external(self, step: Step) -> Statistics:
        """Publishes the external table that a join_external step reads."""
        operator = cast(JoinExternal, step.operator)
        source, key = operator.source(step)
        day = self._training.days[-1]
        table = self._training.read_table(self._plan.config, source, key, "join_external", day)
        if not isinstance(table, pa.Table):
            raise ValueError("internal error, please report: a fit on blocks got a Spark frame, not a table")
        keys = text_array(_decoded(table[key]))
        columns = {
            name: _decoded(table[name]).cast(VALUE_TYPES[kind])
            for name, kind in operator.column_types.items()
        }
        name = table_name(step)
        self._tables.publish_table(pa.table({KEY: keys, **columns}).sort_by(KEY), name)
        return Statistics(table=name, facts={"days": list(self._training.days)})


def _reads_rows(step: Step) -> bool:
    """Returns whether a step needs a pass over the rows.

    A Categorify step needs no pass if the configuration lists the values of its vocabulary (`values`). It
    also needs none with `counts: false`, because only other columns add values to the vocabulary then.
    """
    operator = step.operator
    return not isinstance(operator, Categorify) or (operator.counts and operator.values is None)


def _block_step(request: ChainRequest, step: Step) -> BlockStep:
    return BlockStep(
        request.key(step), request.before, step.operator, step.inputs, request.types[step.inputs[0]]
    )


def _counted_column(request: ChainRequest, step: Step) -> DerivedColumn:
    """Returns the column that has the value counts of a step's first input. Its name is the step's key."""
    name, kind = request.key(step), request.types[step.inputs[0]]
    chain = FittedChain((name,), (_ELEMENTS.get(kind, kind),), (), ())
    return DerivedColumn(name, chain, name)


def _facts(step: BlockStep, steps: Mapping[str, BlockStep], measured: Measured) -> dict[str, Any]:
    """Returns what a step's operator computes from statistics over all training rows (`Operator.facts`)."""
    if not step.operator.of_all_rows:
        return {}
    owner = next(other for other in steps.values() if other.operator == step.operator)
    if owner.key not in measured.whole:
        return step.operator.facts({})
    whole = step.operator.group_statistics(measured.whole[owner.key])
    return step.operator.facts({name: array[0].as_py() for name, array in whole.items()})


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column


def _delete(paths: Sequence[str]) -> None:
    for path in paths:
        file_io.delete_if_present(path)


# The code below computes statistics of the training days from their value counts, without reading rows.


def derived_from_raw(request: ChainRequest, step: Step) -> DerivedColumn:
    """Returns a step's first input, as a column that is computed from the value counts of a raw column."""
    return DerivedColumn(request.before.inputs[0], request.before, step.inputs[0])


class CountStatistics:
    """A source of statistics (StatisticsSource) that reads value counts.

    With the default `column_of`, the value counts of one raw column must suffice for the statistics of each
    step (`etl.fit.rounds.is_countable`).
    """

    def __init__(
        self,
        workers: Workers,
        tables: VersionTables,
        counts: Counts,
        column_of: Callable[[ChainRequest, Step], DerivedColumn] = derived_from_raw,
    ) -> None:
        """Creates a source of statistics that reads the value counts `counts`.

        Args:
            workers: the processes that run the tasks.
            tables: publishes the vocabularies.
            counts: the value counts of the training days.
            column_of: returns the column of value counts for the first input of a requested step.
        """
        self._workers, self._tables, self._counts = workers, tables, counts
        self._column_of = column_of

    def measure(self, requests: Sequence[ChainRequest]) -> dict[str, Statistics]:
        """Computes the statistics of all requested steps, as StatisticsSource.measure describes."""
        count_requests = self._requests(requests)
        attempts = {name: new_attempt(self._tables.partition(name)) for name in (VOCABULARY, RARE)}
        known, rare = (self._tables.partition(name).file(attempt) for name, attempt in attempts.items())
        folders = VocabularyFolders(known, rare, self._tables.row_group_rows)
        results = compute_statistics(self._workers, list(count_requests.values()), self._counts, folders)
        vocabularies = sorted(
            key for key, request in count_requests.items() if request.statistic == "vocabulary"
        )
        if vocabularies:
            self._publish(attempts, [results[name]["files"] for name in vocabularies])
            self._tables.add_vocabularies({name: results[name]["facts"] for name in vocabularies})
        return {
            request.key(step): _statistics(step, results[_key(request, step)], request.cardinality(step))
            for request in requests
            for step in request.steps
        }

    def _requests(self, requests: Sequence[ChainRequest]) -> dict[str, CountRequest]:
        """Returns the requests for statistics, by the name of the vocabulary or by the key of the step.

        Steps with the same vocabulary share a request.
        """
        parent = self._tables.parent_files(VOCABULARY), self._tables.parent_files(RARE)
        count_requests: dict[str, CountRequest] = {}
        for request in requests:
            for step in request.steps:
                key = _key(request, step)
                column = self._column_of(request, step)
                operator = step.operator
                if isinstance(operator, Categorify):
                    count_requests[key] = CountRequest(
                        key=key,
                        statistic="vocabulary",
                        columns=(
                            *(count_requests[key].columns if key in count_requests else ()),
                            *((column,) if operator.counts else ()),
                        ),
                        rule=IdRule(operator.least(key), operator.first_id, operator.max_size),
                        fixed_values=operator.values,
                        parent=parent,
                    )
                else:
                    count_requests[key] = _request_of(key, operator, column, request.types[step.inputs[0]])
        return count_requests

    def _publish(self, attempts: Mapping[str, str], files: Sequence[Mapping[str, Sequence[str]]]) -> None:
        """Publishes the files of all vocabularies, and the files of their rare values."""
        for part, name in (("known", VOCABULARY), ("rare", RARE)):
            paths = [f"{attempts[name]}/{file}" for of_vocabulary in files for file in of_vocabulary[part]]
            self._tables.publish_files(paths, name)


def _key(request: ChainRequest, step: Step) -> str:
    return vocabulary_of(step) or request.key(step)


def _request_of(key: str, operator: Operator, column: DerivedColumn, kind: Type) -> CountRequest:
    """Returns the request for a statistic of a column that has the type `kind`."""
    if operator.needs == "quantiles":
        return CountRequest(key, "quantiles", (column,), probabilities=operator.probabilities())
    if operator.needs == "mergeable":
        measured = MeasuredStatistic(key, operator.statistic(kind), kind)
        return CountRequest(key, "mergeable", (column,), mergeable=measured)
    if operator.needs == "moments":
        return CountRequest(key, "moments", (column,))
    raise ValueError(f"internal error, please report: value counts have no statistic {operator.needs}")


def _statistics(step: Step, result: Mapping[str, Any], cardinality: int | None) -> Statistics:
    if "facts" in result:
        return Statistics(cardinality=result["facts"]["highest"] + 1)
    if "quantiles" in result:
        values = result["quantiles"]
        probabilities = step.operator.probabilities() if values else ()
        quantiles = dict(zip(probabilities, values, strict=True))
        return Statistics(quantiles=quantiles, cardinality=cardinality)
    if "merged" in result:
        return Statistics(merged=result["merged"], cardinality=cardinality)
    return Statistics(moments=moments_from(result), cardinality=cardinality)
