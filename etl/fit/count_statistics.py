"""Computes statistics of the training days from their value counts, without reading rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etl.fit.chain_progress import ChainRequest, vocabulary_of
from etl.fit.version_tables import VersionTables
from etl.operators.categorify import Categorify
from etl.ops.base import Operator, Step, Type
from etl.ops.tables import RARE, VOCABULARY
from etl.ops.training_statistics import Statistics
from etl.statistics.id_rule import IdRule
from etl.statistics.mergeable import MeasuredStatistic
from etl.value_counts.fit_statistics import compute_statistics, moments_from
from etl.value_counts.requests import CountRequest, Counts, DerivedColumn
from etl.value_counts.vocabularies import VocabularyFolders
from spark.workers import Workers
from storage.publish import new_attempt


def derived_from_raw(request: ChainRequest, step: Step) -> DerivedColumn:
    """Returns the first input of a step, which is computed from the value counts of one raw column."""
    return DerivedColumn(request.before.inputs[0], request.before, step.inputs[0])


class CountStatistics:
    """A StatisticsSource that reads value counts. Steps must be countable (etl.fit.rounds.is_countable)."""

    def __init__(
        self,
        workers: Workers,
        tables: VersionTables,
        counts: Counts,
        column_of: Callable[[ChainRequest, Step], DerivedColumn] = derived_from_raw,
    ) -> None:
        """Creates a source of statistics that publishes vocabularies in `tables`.

        Args:
            workers: run the tasks.
            tables: publishes the vocabularies.
            counts: the value counts of the training days.
            column_of: returns which counts the first input of a requested step has.
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
        """Returns the requests. Each key is the key of a step, or the name of a vocabulary.

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
        """Publishes the files of all vocabularies, and of their rare values."""
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
