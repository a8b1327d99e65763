"""What the data report asks of surveyed days, answered from their value counts: no pass over rows.

One task answers for a column, or for a hash bucket of one that has very many values: the answers add up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from operator import add

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from etl.native.count_sums import Sums
from etl.quality.column_summary import Summary, summarise
from etl.quality.counts import LABEL_CELLS, Column
from etl.quality.day_values import Values, values_of
from etl.value_counts.count_files import Bucket, read_counts
from etl.value_counts.merge_tasks import shared_out
from etl.value_counts.requests import Counts
from spark.tasks import run_tasks


def summarise_days(
    spark: SparkSession, days: Sequence[Counts], columns: Sequence[Column]
) -> list[dict[str, Summary]]:
    """Per day: column (and the label) → the summary of its values. One Spark job, few rows a column come back."""
    every = {column.name: column for column in [Column(LABEL_CELLS, "float"), *columns]}

    def ask(name: str, bucket: Bucket) -> list[str]:
        return [_summary(counts, every[name], bucket).to_json() for counts in days]

    answers = _each(spark, _values(list(every), days), ask)
    return [
        {name: reduce(add, (Summary.from_json(part[place]) for part in answers[name])) for name in every}
        for place in range(len(days))
    ]


def compare_days(
    spark: SparkSession, train: Sequence[Counts], day: Counts, columns: Sequence[Column]
) -> dict[str, Values]:
    """Column of names → its values on a day against the training days. One Spark job."""
    names = [column.name for column in columns if not column.numeric]
    sides = tuple((path, 0) for counts in train for path, _ in counts.files)
    sides += tuple((path, 1) for path, _ in day.files)

    def ask(name: str, bucket: Bucket) -> list[str]:
        sums = Sums(sides=2)
        for path, side in sides:
            values, counts, _ = read_counts(path, name, bucket)
            sums.add(values, counts, side)
        values, found, _ = sums.result()
        key = pa.array([name]).take(pa.array(np.zeros(len(values), np.int64)))
        counted = [pa.array(np.ascontiguousarray(found[:, side])) for side in (0, 1)]
        batch = pa.RecordBatch.from_arrays([key, values, *counted], ["column", "value", "train", "day"])
        return [values_of(name, batch).to_json()]

    answers = _each(spark, _values(names, [*train, day]), ask)
    compared = {
        name: reduce(add, (Values.from_json(text) for [text] in parts)) for name, parts in answers.items()
    }
    return {name: values for name, values in compared.items() if values.train_cells or values.day_cells}


def _summary(counts: Counts, column: Column, bucket: Bucket) -> Summary:
    sums, nulls = Sums(), 0
    for path, _ in counts.files:
        values, times, missing = read_counts(path, column.name, bucket)
        sums.add(values, times)
        nulls += missing
    values, found, _ = sums.result()
    return summarise(values, pa.array(found[:, 0]), column.kind) + Summary(nulls=nulls)


def _values(names: Sequence[str], days: Sequence[Counts]) -> dict[str, int]:
    return {name: sum(counts.values[name] for counts in days) for name in names}


def _each(
    spark: SparkSession, values: Mapping[str, int], ask: Callable[[str, Bucket], list[str]]
) -> Mapping[str, list[list[str]]]:
    """Column → what workers answer for its pieces."""
    if not values:
        return {}
    tasks = shared_out(values, spark.sparkContext.defaultParallelism)

    def run(task: int) -> Iterator[pa.RecordBatch]:
        names, buckets = zip(*tasks[task], strict=True)
        answers = [json.dumps(ask(name, bucket)) for name, bucket in tasks[task]]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(names),
                pa.array([bucket.index for bucket in buckets], pa.int32()),
                pa.array(answers),
            ],
            ["name", "bucket", "answer"],
        )

    found = run_tasks(spark, len(tasks), run, "name string, bucket int, answer string").collect()
    answers: dict[str, list[list[str]]] = {}
    for row in sorted(found, key=lambda each: int(each["bucket"])):
        answers.setdefault(row["name"], []).append(json.loads(row["answer"]))
    return answers
