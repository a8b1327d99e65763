"""Computes the statistics for fitting a workflow from value counts of the training days, and reads no rows.

Normally, one task merges the counts of a column. If a vocabulary has very many values, they are divided into
hash buckets, and one task per bucket merges the counts. Such a task writes the rare values of its bucket
itself. It sends the values that may get an id to one further task, which assigns the ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, assert_never

import numpy as np
import pyarrow as pa

from etl.ops.training_statistics import Moments
from etl.statistics.moments import ExactSums, sums_of_counts
from etl.statistics.quantiles import quantiles_of_counts
from etl.value_counts.count_file_format import ALL, Bucket
from etl.value_counts.merge_tasks import assign_to_tasks, count_buckets
from etl.value_counts.requests import CountRequest, Counts, derived_values
from etl.value_counts.vocabularies import VocabularyFolders, merge_bucket, merge_entries, write_vocabulary
from spark.workers import Workers

# Each row that a task returns belongs to one request. The row is either a result as JSON, or an entry of a
# vocabulary (value, id, count, last_seen).
_SCHEMA = pa.schema(
    [
        ("request", pa.int32()),
        ("result", pa.string()),
        ("value", pa.string()),
        ("id", pa.int32()),
        ("count", pa.int64()),
        ("last_seen", pa.int32()),
    ]
)


def compute_statistics(
    workers: Workers, requests: Sequence[CountRequest], counts: Counts, folders: VocabularyFolders
) -> dict[str, dict[str, Any]]:
    """Returns a dictionary that maps the key of each request to its result.

    The result is {rows, mean, std} for moments, {quantiles} for quantiles, {merged} for a statistic that an
    operator defines itself, and {facts, files} for a vocabulary. The list of quantiles has one value for each
    probability; it is empty if there are no values. The files of vocabularies are written to `folders`. The
    caller must publish these files.

    Raises:
        DataError: a value is too large to compute exact moments, or the state of a statistic is too large.
    """
    all_requests = tuple(requests)
    values = {index: _max_values(request, counts) for index, request in enumerate(all_requests)}
    tasks = assign_to_tasks(values, workers.parallelism)
    merge = partial(_merge_buckets, tasks, all_requests, counts, folders)
    results = workers.run(len(tasks), merge, _SCHEMA)
    divided = count_buckets(tasks) > len(all_requests)
    combine = partial(_combine_buckets, all_requests, folders)
    if isinstance(results, pa.Table):
        batches = list(combine(results.to_batches())) if divided else results.to_batches()
        rows = pa.Table.from_batches(batches, _SCHEMA).select(["request", "result"]).to_pylist()
    else:
        if divided:
            by_request = results.repartition(len(tasks), "request")
            results = by_request.mapInArrow(combine, results.schema)
        rows = [row.asDict() for row in results.select("request", "result").collect()]
    return {all_requests[row["request"]].key: json.loads(row["result"]) for row in rows}  # a row per request


def moments_from(result: Mapping[str, Any]) -> Moments:
    """Returns the moments in a result of `compute_statistics`."""
    return Moments(result["rows"], result["mean"], result["std"])


def _max_values(request: CountRequest, counts: Counts) -> int:
    """Returns an upper bound for the number of values of a requested vocabulary.

    The result is 0 for requests that one task always computes.
    """
    if request.statistic != "vocabulary" or request.fixed_values is not None:
        return 0
    return sum(counts.values[column.column] for column in request.columns)


def _merge_buckets(
    tasks: Sequence[Sequence[tuple[int, Bucket]]],
    requests: tuple[CountRequest, ...],
    counts: Counts,
    folders: VocabularyFolders,
    task: int,
) -> Iterator[pa.RecordBatch]:
    """Runs one task: merges the counts of its requests, or of hash buckets of requests.

    If a request is not divided into buckets, yields the request's result. For one bucket of a request, yields
    the vocabulary entries that have or may get an id, and the facts of the rare values, which get no id.

    Args:
        tasks: for each task, its pairs (index of a request, hash bucket).
        task: index of the task to run.
    """
    for index, bucket in tasks[task]:
        request = requests[index]
        if bucket.of == 1:
            yield _result_batch(index, _compute(index, request, counts, folders))
        else:
            entries, facts = merge_bucket(index, request, counts, bucket, folders)
            yield _result_batch(index, facts)
            yield from _entry_batches(index, entries)


def _combine_buckets(
    requests: tuple[CountRequest, ...], folders: VocabularyFolders, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Combines the results of requests that are divided into buckets. Yields one result for each request.

    `batches` contain all rows of a request, or none.
    """
    results: dict[int, list[dict[str, Any]]] = {}
    entries: dict[int, list[pa.Table]] = {}
    for batch in batches:
        table = pa.Table.from_batches([batch])
        for index in np.unique(table["request"].to_numpy()).tolist():
            rows = table.filter(pa.array(table["request"].to_numpy() == index))
            texts = rows["result"].drop_null().to_pylist()
            results.setdefault(index, []).extend(json.loads(text) for text in texts)
            without_result = rows.filter(rows["result"].is_null())
            entries.setdefault(index, []).append(without_result.select(["value", "id", "count", "last_seen"]))
    for index, parts in results.items():
        if "rare" in parts[0]:
            whole = pa.concat_tables(entries[index])
            yield _result_batch(index, write_vocabulary(index, requests[index], whole, parts, folders))
        else:
            yield _result_batch(index, parts[0])


def _compute(index: int, request: CountRequest, counts: Counts, folders: VocabularyFolders) -> dict[str, Any]:
    """Returns the result of a request that is not divided into buckets."""
    if request.statistic == "vocabulary":
        return write_vocabulary(index, request, merge_entries(request, counts, ALL), [], folders)
    column = request.columns[0]

    def files() -> Iterator[tuple[pa.Array, np.ndarray]]:
        return (derived_values(column, path) for path, _ in counts.files)

    if request.statistic == "mergeable":
        assert request.mergeable is not None
        state = request.mergeable.merge(request.mergeable.measure(*file) for file in files())
        return {"merged": request.mergeable.result(state)}
    if request.statistic == "quantiles":
        return {"quantiles": quantiles_of_counts(files, request.probabilities)}
    if request.statistic == "moments":
        sums = ExactSums()
        for values, times in files():
            numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            sums += sums_of_counts(column.column, numbers, times)
        moments = sums.moments()
        return {"rows": moments.rows, "mean": moments.mean, "std": moments.std}
    assert_never(request.statistic)


def _result_batch(index: int, result: Mapping[str, Any]) -> pa.RecordBatch:
    arrays = [pa.array([index], pa.int32()), pa.array([json.dumps(result)])]
    return pa.RecordBatch.from_arrays(
        [*arrays, *(pa.nulls(1, field.type) for field in list(_SCHEMA)[2:])], schema=_SCHEMA
    )


def _entry_batches(index: int, entries: pa.Table) -> Iterator[pa.RecordBatch]:
    for batch in entries.combine_chunks().to_batches(max_chunksize=100_000):
        request = pa.array(np.full(len(batch), index, np.int32))
        yield pa.RecordBatch.from_arrays(
            [request, pa.nulls(len(batch), pa.string()), *batch.columns], schema=_SCHEMA
        )
