"""What the data report asks of surveyed days, answered from their value counts: one pass over counts, none over rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from etl.files.merge import Counts, merge_files, read_column
from etl.quality.compare import Values, values_of
from etl.quality.counts import LABEL_CELLS, Column
from etl.quality.summary import Summary, summarise

_TASKS_A_SLOT = 3


def summarise_days(
    spark: SparkSession, days: Sequence[Counts], columns: Sequence[Column]
) -> list[dict[str, Summary]]:
    """Per day: column (and the label) → the summary of its values. One Spark job, one row a column comes back."""
    every = [Column(LABEL_CELLS, "float"), *columns]

    def ask(index: int) -> str:
        column = every[index]
        found = []
        for counts in days:
            table = merge_files(counts.files, column.name)
            found.append(
                summarise(table["value"].combine_chunks(), table["count"].combine_chunks(), column.kind)
            )
        return json.dumps([each.to_json() for each in found])

    answers = _each(spark, len(every), ask)
    per_column = {
        column.name: [Summary.from_json(text) for text in json.loads(answers[index])]
        for index, column in enumerate(every)
    }
    return [{name: found[place] for name, found in per_column.items()} for place in range(len(days))]


def compare_days(
    spark: SparkSession, train: Sequence[Counts], day: Counts, columns: Sequence[Column]
) -> dict[str, Values]:
    """Column of names → its values on a day against the training days. One Spark job."""
    names = [column.name for column in columns if not column.numeric]
    files = tuple(file for counts in train for file in counts.files)

    def ask(index: int) -> str:
        # One grouping for both sides: each row counts on its own side and not on the other.
        both = pa.concat_tables(
            [
                *(_sided(read_column(path, names[index]), "train", "day") for path, _ in files),
                *(_sided(read_column(path, names[index]), "day", "train") for path, _ in day.files),
            ]
        )
        if not len(both):
            return Values().to_json()
        summed = both.group_by("value", use_threads=False).aggregate([("train", "sum"), ("day", "sum")])
        arrays = [summed[name].combine_chunks() for name in ("value", "train_sum", "day_sum")]
        key = pa.array([names[index]]).take(pa.array(np.zeros(len(summed), np.int64)))
        batch = pa.RecordBatch.from_arrays([key, *arrays], ["column", "value", "train", "day"])
        return values_of(names[index], batch).to_json()

    answers = _each(spark, len(names), ask)
    found = {name: Values.from_json(answers[index]) for index, name in enumerate(names)}
    return {name: values for name, values in found.items() if values.train_cells or values.day_cells}


def _sided(counts: pa.Table, side: str, other: str) -> pa.Table:
    """(value, train, day) of counts that belong to one side; null is no value."""
    there = counts.filter(pc.is_valid(counts["value"]))
    none = pa.array(np.zeros(len(there), np.int64))
    columns = {"value": there["value"], side: there["count"], other: none}
    return pa.table({name: columns[name] for name in ("value", "train", "day")})


def _each(spark: SparkSession, count: int, ask: Callable[[int], str]) -> Mapping[int, str]:
    """Index → what a worker answers, for the indices below `count`."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            indices = batch.column(0).to_pylist()
            yield pa.RecordBatch.from_arrays(
                [pa.array(indices, pa.int32()), pa.array([ask(index) for index in indices], pa.string())],
                ["place", "answer"],
            )

    if not count:
        return {}
    tasks = max(1, min(count, _TASKS_A_SLOT * spark.sparkContext.defaultParallelism))
    found = spark.range(0, count, 1, tasks).mapInArrow(run, "place int, answer string").collect()
    return {row["place"]: row["answer"] for row in found}
