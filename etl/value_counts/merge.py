"""What a fit asks of the training days, answered from their value counts: no pass over rows.

Mostly one task answers for a column. A vocabulary of very many values is counted by one task a hash bucket; these keep the rare values,
and what may get an id goes to one task for the column.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from etl.ops.base import Moments
from etl.statistics.moments import ExactSums, sums_of_counts
from etl.value_counts.count_files import ALL, Bucket
from etl.value_counts.merge_tasks import count_pieces, shared_out
from etl.value_counts.requests import Counts, Question, measured
from etl.value_counts.vocabularies import Folders, collect, complete, split_bucket
from spark.tasks import Batches, run_tasks

_SCHEMA = "question int, found string, value string, id int, count bigint, last_seen int"
_ARROW = pa.schema(
    [
        ("question", pa.int32()),
        ("found", pa.string()),
        ("value", pa.string()),
        ("id", pa.int32()),
        ("count", pa.int64()),
        ("last_seen", pa.int32()),
    ]
)


def answer_from_counts(
    spark: SparkSession, questions: Sequence[Question], counts: Counts, folders: Folders
) -> dict[str, dict[str, Any]]:
    """Key → what was found: {moments} or {median}, or {facts, files} of a vocabulary.

    Files of vocabularies are written below the folders, and not published.

    Raises:
        DataError: a value too large for exact moments.
    """
    asked = tuple(questions)
    values = {index: _values(question, counts) for index, question in enumerate(asked)}
    tasks = shared_out(values, spark.sparkContext.defaultParallelism)
    found = run_tasks(spark, len(tasks), _first(tasks, asked, counts, folders), _SCHEMA)
    if count_pieces(tasks) > len(asked):
        found = found.repartition(len(tasks), "question").mapInArrow(_second(asked, folders), _SCHEMA)
    rows = found.select("question", "found").collect()  # one row a question
    return {questions[row["question"]].key: json.loads(row["found"]) for row in rows}


def moments_from(found: Mapping[str, Any]) -> Moments:
    return Moments(found["rows"], found["mean"], found["std"])


def _values(question: Question, counts: Counts) -> int:
    """How many different values a question is about, at most; moments and medians are one task's whatever their number."""
    if question.wants != "counts" or question.given is not None:
        return 0
    return sum(counts.values[source.column] for source in question.sources)


def _first(
    tasks: Sequence[Sequence[tuple[int, Bucket]]],
    questions: tuple[Question, ...],
    counts: Counts,
    folders: Folders,
) -> Callable[[int], Iterator[pa.RecordBatch]]:
    """Answers whole questions, and for a bucket of one gives the entries that may get an id."""

    def run(task: int) -> Iterator[pa.RecordBatch]:
        for index, bucket in tasks[task]:
            question = questions[index]
            if bucket.of == 1:
                yield _found(index, _answer(index, question, counts, folders))
            else:
                kept, facts = split_bucket(index, question, counts, bucket, folders)
                yield _found(index, facts)
                yield from _entries(index, kept)

    return run


def _second(
    questions: tuple[Question, ...], folders: Folders
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Completes the questions that came in buckets; all rows of a question are in one partition."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        facts: dict[int, list[dict[str, Any]]] = {}
        kept: dict[int, list[pa.Table]] = {}
        for batch in batches:
            table = pa.Table.from_batches([batch])
            for index in np.unique(table["question"].to_numpy()).tolist():
                mine = table.filter(pa.array(table["question"].to_numpy() == index))
                answers = mine["found"].drop_null().to_pylist()
                facts.setdefault(index, []).extend(json.loads(answer) for answer in answers)
                entries = mine.filter(mine["found"].is_null()).select(["value", "id", "count", "last_seen"])
                kept.setdefault(index, []).append(entries)
        for index, parts in facts.items():
            if "rare" in parts[0]:
                whole = pa.concat_tables(kept[index])
                yield _found(index, complete(index, questions[index], whole, parts, folders))
            else:
                yield _found(index, parts[0])

    return run


def _answer(index: int, question: Question, counts: Counts, folders: Folders) -> dict[str, Any]:
    if question.wants == "counts":
        return complete(index, question, collect(question, counts, ALL), [], folders)
    source = question.sources[0]
    if question.wants == "median":
        return {"median": _median(measured(source, path) for path, _ in counts.files)}
    sums = ExactSums()
    for path, _ in counts.files:
        values, times = measured(source, path)
        numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        sums += sums_of_counts(source.column, numbers, times)
    found = sums.moments()
    return {"rows": found.rows, "mean": found.mean, "std": found.std}


def _median(parts: Iterable[tuple[pa.Array, np.ndarray]]) -> float | None:
    """The lower median of values that occur so many times each, in files of them."""
    values, weights = np.zeros(0), np.zeros(0, np.int64)
    for part, times in parts:
        found = part.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        values, place = np.unique(np.concatenate([values, found]), return_inverse=True)
        # Weights are doubles, exact for counts up to 2**53.
        weights = np.bincount(place, np.concatenate([weights, times]), len(values)).astype(np.int64)
    if not len(values):
        return None
    until = np.cumsum(weights)
    return float(values[np.searchsorted(until, -(-until[-1] // 2))])


def _found(index: int, answer: Mapping[str, Any]) -> pa.RecordBatch:
    arrays = [pa.array([index], pa.int32()), pa.array([json.dumps(answer)])]
    return pa.RecordBatch.from_arrays(
        [*arrays, *(pa.nulls(1, field.type) for field in list(_ARROW)[2:])], schema=_ARROW
    )


def _entries(index: int, kept: pa.Table) -> Iterator[pa.RecordBatch]:
    for batch in kept.combine_chunks().to_batches(max_chunksize=100_000):
        number = pa.array(np.full(len(batch), index, np.int32))
        yield pa.RecordBatch.from_arrays(
            [number, pa.nulls(len(batch), pa.string()), *batch.columns], schema=_ARROW
        )
