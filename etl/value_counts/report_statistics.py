"""Computes the column summaries and the comparisons of days in the data report from value counts.

Usually one task processes a whole column. A column with very many values is divided into hash buckets. In
this case, one task processes each bucket, and the results of the buckets are added.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from operator import add

import numpy as np
import pyarrow as pa

from etl.native.distinct_values import Sums
from etl.quality.column_summary import (
    LABEL_CELLS,
    ColumnSummary,
    CountedColumn,
    Values,
    compare_counts,
    summarise_values,
)
from etl.value_counts.count_file_format import Bucket, assign_to_tasks, read_counts
from etl.value_counts.requests import Counts
from spark.workers import Workers

_SCHEMA = pa.schema([("name", pa.string()), ("bucket", pa.int32()), ("result", pa.string())])


def summarise_and_compare(
    workers: Workers,
    days: Sequence[Counts],
    train: Sequence[Counts],
    day: Counts,
    columns: Sequence[CountedColumn],
) -> tuple[list[dict[str, ColumnSummary]], dict[str, Values]]:
    """Returns summaries of days, and the comparison of a day with the training days. Reads all counts once.

    All tasks run at once. The driver collects a few rows per column.

    Args:
        workers: the processes that run the tasks.
        days: the value counts of the days to summarise; may be empty.
        train: the value counts of the training days.
        day: the value counts of the day that is compared with the training days.
        columns: the columns to summarise. Columns that are not numeric are also compared.

    Returns:
        Two values. The first has a dictionary for each of `days`, which maps each column and the label to its
        summary. The second maps the name of each categorical column to its comparison. A column without a
        value on all compared days has no comparison.
    """
    by_name = {column.name: column for column in [CountedColumn(LABEL_CELLS, "float"), *columns]}
    compared = {name: not column.numeric for name, column in by_name.items() if name != LABEL_CELLS}
    names = [name for name in by_name if days or compared.get(name)]
    results = _run_by_bucket(
        workers,
        _max_values(names, list({counts.files: counts for counts in [*days, *train, day]}.values())),
        partial(_figures, by_name, tuple(days), tuple(train), day),
    )
    summaries = [
        {
            name: reduce(add, (ColumnSummary.from_json(part[index]) for part in results[name]))
            for name in by_name
        }
        for index in range(len(days))
    ]
    values = {
        name: reduce(add, (Values.from_json(part[-1]) for part in results[name]))
        for name in names
        if compared.get(name)
    }
    return summaries, {
        name: of_column for name, of_column in values.items() if of_column.train_cells or of_column.day_cells
    }


def _figures(
    by_name: Mapping[str, CountedColumn],
    days: tuple[Counts, ...],
    train: tuple[Counts, ...],
    day: Counts,
    name: str,
    bucket: Bucket,
) -> list[str]:
    """Returns the figures of one column and bucket as JSON: a summary for each of `days`, and a comparison.

    If the column is not compared, the comparison is missing.
    """
    column = by_name[name]
    compares = name != LABEL_CELLS and not column.numeric
    # Days with the same files share one sum. If the log is not divided by days, all splits have the same
    # files.
    summarised = [counts.files for counts in days]
    others = [counts for counts in (*train, day) if compares and counts.files not in summarised]
    # One sum for each summarised day, one for the other training days, and one for the compared day.
    of_train = {counts.files for counts in train}
    side_of = {files: side for side, files in enumerate(summarised)}
    side_of |= {counts.files: len(days) + (counts.files not in of_train) for counts in others}
    # The sums have only the columns that are needed, because each column takes memory and time.
    sides = max(side_of.values()) + 1
    sums, nulls = Sums(sides), dict.fromkeys(summarised, 0)
    for counts in {counts.files: counts for counts in (*days, *others)}.values():
        for path, _ in counts.files:
            values, times, missing = read_counts(path, name, bucket)
            sums.add(values, times, side_of[counts.files])
            if counts.files in nulls:
                nulls[counts.files] += missing
    values, summed, _ = sums.result()
    by_side = np.ascontiguousarray(summed.T)
    summaries = (
        summarise_values(values, by_side[side_of[files]], column.kind) + ColumnSummary(nulls=nulls[files])
        for files in summarised
    )
    figures = [summary.to_json() for summary in summaries]
    if not compares:
        return figures
    sides_of_train = sorted({side_of[files] for files in of_train})
    in_train, on_day = by_side[sides_of_train].sum(axis=0), by_side[side_of[day.files]]
    return [*figures, compare_counts(values, in_train, on_day).to_json()]


def _max_values(names: Sequence[str], days: Sequence[Counts]) -> dict[str, int]:
    """Returns, for each column, an upper bound for the number of its distinct values on all days."""
    return {name: sum(counts.values[name] for counts in days) for name in names}


def _run_by_bucket(
    workers: Workers, values: Mapping[str, int], function: Callable[[str, Bucket], list[str]]
) -> Mapping[str, list[list[str]]]:
    """Calls `function` in the workers for each column and hash bucket. Returns the results by column.

    The results of a column are in the order of its buckets. `values` maps each column to an upper bound for
    the number of its distinct values.
    """
    if not values:
        return {}
    tasks = assign_to_tasks(values, workers.parallelism)

    rows = workers.run(len(tasks), partial(_run_buckets, tasks, function), _SCHEMA)
    collected = rows.to_pylist() if isinstance(rows, pa.Table) else rows.collect()
    results: dict[str, list[list[str]]] = {}
    for row in sorted(collected, key=lambda row: int(row["bucket"])):
        results.setdefault(row["name"], []).append(json.loads(row["result"]))
    return results


def _run_buckets(
    tasks: Sequence[Sequence[tuple[str, Bucket]]], function: Callable[[str, Bucket], list[str]], task: int
) -> Iterator[pa.RecordBatch]:
    names, buckets = zip(*tasks[task], strict=True)
    results = [json.dumps(function(name, bucket)) for name, bucket in tasks[task]]
    indexes = pa.array([bucket.index for bucket in buckets], pa.int32())
    yield pa.RecordBatch.from_arrays([pa.array(names), indexes, pa.array(results)], schema=_SCHEMA)
