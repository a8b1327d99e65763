"""Computes column summaries and comparisons of days for the data report from value counts, not from rows.

Usually one task processes a whole column. A column with very many values is divided into hash buckets. Then
one task processes each bucket, and the results of the buckets are added.
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
from etl.quality.new_values import Values, values_of
from etl.value_counts.count_file_format import Bucket, read_counts
from etl.value_counts.merge_tasks import assign_to_tasks
from etl.value_counts.requests import Counts
from spark.tasks import run_tasks


def summarise_days(
    spark: SparkSession, days: Sequence[Counts], columns: Sequence[Column]
) -> list[dict[str, Summary]]:
    """Returns, for each day, a dictionary that maps each column and the label to its summary.

    The function runs one Spark job. The driver collects a few rows per column.
    """
    by_name = {column.name: column for column in [Column(LABEL_CELLS, "float"), *columns]}

    def summaries(name: str, bucket: Bucket) -> list[str]:
        return [_summary(counts, by_name[name], bucket).to_json() for counts in days]

    results = _run_by_bucket(spark, _max_values(list(by_name), days), summaries)
    return [
        {name: reduce(add, (Summary.from_json(part[index]) for part in results[name])) for name in by_name}
        for index in range(len(days))
    ]


def compare_days(
    spark: SparkSession, train: Sequence[Counts], day: Counts, columns: Sequence[Column]
) -> dict[str, Values]:
    """Returns, by column name, the comparison of each categorical column on a day with the training days.

    The function runs one Spark job. A column that has no value on any of these days is not in the result.
    """
    names = [column.name for column in columns if not column.numeric]
    sides = tuple((path, 0) for counts in train for path, _ in counts.files)
    sides += tuple((path, 1) for path, _ in day.files)

    def compare(name: str, bucket: Bucket) -> list[str]:
        sums = Sums(sides=2)
        for path, side in sides:
            values, counts, _ = read_counts(path, name, bucket)
            sums.add(values, counts, side)
        values, summed, _ = sums.result()
        key = pa.array([name]).take(pa.array(np.zeros(len(values), np.int64)))
        counts_of_sides = [pa.array(np.ascontiguousarray(summed[:, side])) for side in (0, 1)]
        batch = pa.RecordBatch.from_arrays(
            [key, values, *counts_of_sides], ["column", "value", "train", "day"]
        )
        return [values_of(name, batch).to_json()]

    results = _run_by_bucket(spark, _max_values(names, [*train, day]), compare)
    compared = {
        name: reduce(add, (Values.from_json(text) for [text] in parts)) for name, parts in results.items()
    }
    return {name: values for name, values in compared.items() if values.train_cells or values.day_cells}


def _summary(counts: Counts, column: Column, bucket: Bucket) -> Summary:
    """Returns the summary of the values of one column and bucket on one day."""
    sums, nulls = Sums(), 0
    for path, _ in counts.files:
        values, times, missing = read_counts(path, column.name, bucket)
        sums.add(values, times)
        nulls += missing
    values, summed, _ = sums.result()
    return summarise(values, pa.array(summed[:, 0]), column.kind) + Summary(nulls=nulls)


def _max_values(names: Sequence[str], days: Sequence[Counts]) -> dict[str, int]:
    """Returns, for each column, an upper bound for the number of its different values on all days."""
    return {name: sum(counts.values[name] for counts in days) for name in names}


def _run_by_bucket(
    spark: SparkSession, values: Mapping[str, int], function: Callable[[str, Bucket], list[str]]
) -> Mapping[str, list[list[str]]]:
    """Calls `function` in Spark workers for each column and hash bucket. Returns the results by column.

    The results of a column are in the order of its buckets. `values` maps each column to an upper bound for
    the number of its different values.
    """
    if not values:
        return {}
    tasks = assign_to_tasks(values, spark.sparkContext.defaultParallelism)

    def run(task: int) -> Iterator[pa.RecordBatch]:
        names, buckets = zip(*tasks[task], strict=True)
        results = [json.dumps(function(name, bucket)) for name, bucket in tasks[task]]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(names),
                pa.array([bucket.index for bucket in buckets], pa.int32()),
                pa.array(results),
            ],
            ["name", "bucket", "result"],
        )

    rows = run_tasks(spark, len(tasks), run, "name string, bucket int, result string").collect()
    results: dict[str, list[list[str]]] = {}
    for row in sorted(rows, key=lambda row: int(row["bucket"])):
        results.setdefault(row["name"], []).append(json.loads(row["result"]))
    return results
