"""Statistics of the training days from their value counts, without a pass over rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pyspark.sql import SparkSession

from etl.fit.chain_progress import ChainRequest, vocabulary_of
from etl.fit.version_tables import VersionTables
from etl.ops.base import Statistics, Step
from etl.ops.categorify import Categorify
from etl.ops.tables import RARE, VOCABULARY
from etl.statistics.vocabulary import IdRule
from etl.value_counts.merge import answer_from_counts, moments_from
from etl.value_counts.requests import Counts, Question, Source
from etl.value_counts.vocabularies import Folders
from storage.publish import new_attempt


class CountStatistics:
    """A StatisticsSource for the steps that etl.fit.rounds.is_countable holds for."""

    def __init__(self, spark: SparkSession, tables: VersionTables, counts: Counts) -> None:
        """`counts` are the value counts of the training days; `tables` gets the vocabularies."""
        self._spark, self._tables, self._counts = spark, tables, counts

    def measure(self, requests: Sequence[ChainRequest]) -> dict[str, Statistics]:
        """As StatisticsSource.measure."""
        asked = self._requests(requests)
        attempts = {name: new_attempt(self._tables.partition(name)) for name in (VOCABULARY, RARE)}
        known, rare = (self._tables.partition(name).file(attempt) for name, attempt in attempts.items())
        folders = Folders(known, rare, self._tables.row_group_rows)
        answers = answer_from_counts(self._spark, list(asked.values()), self._counts, folders)
        vocabularies = sorted(key for key, request in asked.items() if request.wants == "counts")
        if vocabularies:
            self._publish(attempts, [answers[name]["files"] for name in vocabularies])
            self._tables.add_vocabularies({name: answers[name]["facts"] for name in vocabularies})
        return {
            request.key(step): _statistics(answers[_key(request, step)], request.cardinality(step))
            for request in requests
            for step in request.steps
        }

    def _requests(self, requests: Sequence[ChainRequest]) -> dict[str, Question]:
        """Key of a step, or name of a vocabulary → its request. Steps with one vocabulary share a request."""
        parent = self._tables.parent_files(VOCABULARY), self._tables.parent_files(RARE)
        asked: dict[str, Question] = {}
        for request in requests:
            for step in request.steps:
                key = _key(request, step)
                source = Source(request.before.inputs[0], request.before, step.inputs[0])
                operator = step.operator
                if isinstance(operator, Categorify):
                    asked[key] = Question(
                        key=key,
                        wants="counts",
                        sources=(*(asked[key].sources if key in asked else ()), source),
                        rule=IdRule(operator.least(key), operator.first_id, operator.max_size),
                        given=operator.values,
                        parent=parent,
                    )
                else:
                    wants: Literal["moments", "median"] = (
                        "moments" if operator.needs == "moments" else "median"
                    )
                    asked[key] = Question(key, wants, (source,))
        return asked

    def _publish(self, attempts: Mapping[str, str], files: Sequence[Mapping[str, Sequence[str]]]) -> None:
        """Publishes the files of all vocabularies, and of their rare values."""
        for part, name in (("known", VOCABULARY), ("rare", RARE)):
            paths = [f"{attempts[name]}/{file}" for of_vocabulary in files for file in of_vocabulary[part]]
            self._tables.publish_files(paths, name)


def _key(request: ChainRequest, step: Step) -> str:
    return vocabulary_of(step) or request.key(step)


def _statistics(answer: Mapping[str, Any], cardinality: int | None) -> Statistics:
    if "facts" in answer:
        return Statistics(cardinality=answer["facts"]["highest"] + 1)
    if "median" in answer:
        return Statistics(median=answer["median"], cardinality=cardinality)
    return Statistics(moments=moments_from(answer), cardinality=cardinality)
