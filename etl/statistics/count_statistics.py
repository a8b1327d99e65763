"""Computes the statistics of a fit and of the data report from value counts instead of rows.

Normally, one task merges the counts of a column. If a column or a vocabulary has very many values, they are
divided into hash buckets, and one task processes each bucket.

For a fit, the task that processes a bucket of a vocabulary writes the bucket's rare values. It sends the
values that may get an id to another task, which assigns the ids of the vocabulary. For the data report, each
task returns a summary and a comparison of days for its bucket. The driver adds up the summaries and the
comparisons of a column's buckets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from etl.native.distinct_values import Sums
from etl.ops.training_statistics import Moments
from etl.quality.column_summary import (
    LABEL_CELLS,
    ColumnSummary,
    CountedColumn,
    Values,
    compare_counts,
    summarise_values,
)
from etl.statistics.id_rule import IdRule, assign_ids_of_column
from etl.statistics.moments import ExactSums, quantiles_of_counts, sums_of_counts
from etl.statistics.value_counts import (
    ALL,
    DELTAS,
    Bucket,
    CountRequest,
    Counts,
    assign_to_tasks,
    count_buckets,
    derived_texts,
    derived_values,
    read_counts,
)
from spark.workers import Workers
from storage.file_digests import new_file, open_file
from storage.publish import own_path

# Each row that a task returns belongs to one request. The row is either a result as JSON, or an entry of a
# vocabulary (value, id, count, last_seen).
_FIT_SCHEMA = pa.schema(
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

    The keys of a result depend on the statistic:

    * moments: `rows`, `mean` and `std`.
    * quantiles: `quantiles`, a list with one value for each probability. It is empty if there are no values.
    * a statistic that an operator defines itself: `merged`.
    * a vocabulary: `facts` and `files`.

    Tasks write the files of vocabularies to `folders`. The caller must publish these files.

    Raises:
        DataError: a value is too large to compute exact moments, or the state of a statistic is too large.
    """
    all_requests = tuple(requests)
    values = {index: _most_values_of_request(request, counts) for index, request in enumerate(all_requests)}
    tasks = assign_to_tasks(values, workers.parallelism)
    merge = partial(_merge_buckets, tasks, all_requests, counts, folders)
    results = workers.run(len(tasks), merge, _FIT_SCHEMA)
    divided = count_buckets(tasks) > len(all_requests)
    combine = partial(_combine_buckets, all_requests, folders)
    if isinstance(results, pa.Table):
        batches = list(combine(results.to_batches())) if divided else results.to_batches()
        rows = pa.Table.from_batches(batches, _FIT_SCHEMA).select(["request", "result"]).to_pylist()
    else:
        if divided:
            by_request = results.repartition(len(tasks), "request")
            results = by_request.mapInArrow(combine, results.schema)
        rows = [row.asDict() for row in results.select("request", "result").collect()]
    # the result of each request is in one row
    return {all_requests[row["request"]].key: json.loads(row["result"]) for row in rows}


def moments_from(result: Mapping[str, Any]) -> Moments:
    """Returns the moments in a result of `compute_statistics`."""
    return Moments(result["rows"], result["mean"], result["std"])


def _most_values_of_request(request: CountRequest, counts: Counts) -> int:
    """Returns an upper bound for the number of values of a requested vocabulary.

    The result is 0 for requests that are never divided into buckets.
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

    If a request is not divided into buckets, the task yields the request's result. For one bucket of a
    request, the task yields the vocabulary entries that have or may get an id. It also yields the file name
    and the counts of the rare values, which get no id.

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

    If `batches` contain a row of a request, they contain all rows of this request.
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
    """Computes the result of a request for statistics whose values are not divided into hash buckets."""
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
        [*arrays, *(pa.nulls(1, field.type) for field in list(_FIT_SCHEMA)[2:])], schema=_FIT_SCHEMA
    )


def _entry_batches(index: int, entries: pa.Table) -> Iterator[pa.RecordBatch]:
    for batch in entries.combine_chunks().to_batches(max_chunksize=100_000):
        request = pa.array(np.full(len(batch), index, np.int32))
        yield pa.RecordBatch.from_arrays(
            [request, pa.nulls(len(batch), pa.string()), *batch.columns], schema=_FIT_SCHEMA
        )


# The functions below build a vocabulary from value counts: they merge the counts, assign ids and write files.
#
# If an earlier workflow version (the parent) is extended, the counts of the new days are added to the counts
# in the parent's vocabulary.

VOCABULARY_SCHEMA = pa.schema(
    [
        ("column", pa.string()),
        ("value", pa.string()),
        ("id", pa.int32()),
        ("count", pa.int64()),
        ("last_seen", pa.int32()),
    ]
)
RARE_SCHEMA = pa.schema([field for field in VOCABULARY_SCHEMA if field.name != "id"])


@dataclass(frozen=True)
class VocabularyFolders:
    """The folders into which vocabularies are written.

    Attributes:
        known: the folder for values that have an id.
        rare: the folder for rare values, which have no id.
        row_group_rows: maximum number of rows of a Parquet row group.
    """

    known: str
    rare: str
    row_group_rows: int


def merge_entries(request: CountRequest, counts: Counts, bucket: Bucket) -> pa.Table:
    """Returns a table with one row (value, id, count, last_seen) for each value in a hash bucket.

    The id is null for a value without an id. If a parent workflow is extended, the counts in its vocabulary
    are included.
    """
    if request.fixed_values is not None:
        return _fixed_entries(request.fixed_values, _rule(request), counts.latest)
    sums, ids = Sums(), [np.zeros(0, np.int32)]
    for files, known in zip(request.parent, (True, False), strict=True):
        for entries in _parent_entries(files, request.key, bucket):
            values = entries["value"].combine_chunks()
            sums.add(values, entries["count"].to_numpy(), day=entries["last_seen"].to_numpy())
            if known:
                ids.append(entries["id"].to_numpy())
    for column in request.columns:
        for path, day in counts.files:
            texts, times = derived_texts(column, path, bucket)
            sums.add(texts, times, day=day)
    values, summed, last = sums.result()
    # The parent's values with an id were added first, each of them once. So they are the first values of the
    # result.
    known_ids = np.concatenate(ids)
    all_ids = np.concatenate([known_ids, np.zeros(len(values) - len(known_ids), np.int32)])
    return pa.table(
        {
            "value": values,
            "id": pa.array(all_ids, mask=np.arange(len(values)) >= len(known_ids)),
            "count": pa.array(summed[:, 0]),
            "last_seen": pa.array(last),
        }
    )


def merge_bucket(
    index: int, request: CountRequest, counts: Counts, bucket: Bucket, folders: VocabularyFolders
) -> tuple[pa.Table, dict[str, Any]]:
    """Writes the rare values of a hash bucket. Returns the other entries, and a summary of the rare values.

    The other entries are those that have an id or occur often enough to get one.
    """
    entries = merge_entries(request, counts, bucket)
    enough = pc.greater_equal(entries["count"], _rule(request).min_count)
    stays = pc.or_(pc.is_valid(entries["id"]), enough)
    return entries.filter(stays), _write_rare(
        f"part-{index:05d}-{bucket.index:03d}.parquet", request, entries.filter(pc.invert(stays)), folders
    )


def write_vocabulary(
    index: int,
    request: CountRequest,
    entries: pa.Table,
    rare: Sequence[Mapping[str, Any]],
    folders: VocabularyFolders,
) -> dict[str, Any]:
    """Assigns the ids of a vocabulary and writes its files. Returns its `facts` and the names of its `files`.

    Args:
        index: index of the request. The file names contain it.
        request: the request for the vocabulary.
        entries: all entries that have an id or may get one.
        rare: the summaries of the rare values that other tasks have written, one summary for each bucket.
    """
    whole = entries if request.fixed_values is not None else assign_ids_of_column(entries, _rule(request))
    has_id = pc.is_valid(whole["id"])
    known = whole.filter(has_id).sort_by("id")
    file_name = f"part-{index:05d}.parquet"
    name = _write(file_name, folders.known, request, known, VOCABULARY_SCHEMA, folders)
    written = [*rare, _write_rare(file_name, request, whole.filter(pc.invert(has_id)), folders)]
    return {
        "files": {"known": [name], "rare": [part["rare"] for part in written]},
        "facts": {
            "entries": len(known),
            "highest": pc.max(known["id"]).as_py() or 0,
            "occurrences": pc.sum(known["count"]).as_py() or 0,
            "rare_values": sum(part["values"] for part in written),
            "rare_occurrences": sum(part["occurrences"] for part in written),
        },
    }


def _rule(request: CountRequest) -> IdRule:
    if request.rule is None:
        raise ValueError(f"internal error, please report: the vocabulary {request.key} has no rule for ids")
    return request.rule


def _fixed_entries(values: Sequence[str], rule: IdRule, latest: int) -> pa.Table:
    return pa.table(
        {
            "value": pa.array(values, pa.string()),
            "id": pa.array(np.arange(len(values), dtype=np.int32) + rule.first_id),
            "count": pa.array(np.zeros(len(values), np.int64)),
            "last_seen": pa.array(np.full(len(values), latest, np.int32)),
        }
    )


def _parent_entries(files: Sequence[str], name: str, bucket: Bucket = ALL) -> Iterator[pa.Table]:
    """Yields the entries of the parent's vocabulary that are in a hash bucket, one table per row group."""
    for path in files:
        with open_file(path) as source:
            parquet = pq.ParquetFile(source)
            for group in range(parquet.metadata.num_row_groups):
                names = parquet.metadata.row_group(group).column(0).statistics
                if names is not None and not names.min <= name <= names.max:
                    continue
                entries = parquet.read_row_group(group, use_threads=False)
                entries = entries.filter(pc.equal(entries["column"], name))
                if bucket.of > 1 and len(entries):
                    in_bucket = bucket.holds(entries["value"].combine_chunks())
                    entries = entries.filter(pa.array(in_bucket))
                yield entries


def _write_rare(
    name: str, request: CountRequest, rare: pa.Table, folders: VocabularyFolders
) -> dict[str, Any]:
    written = _write(name, folders.rare, request, rare.drop_columns(["id"]), RARE_SCHEMA, folders)
    return {"rare": written, "values": len(rare), "occurrences": pc.sum(rare["count"]).as_py() or 0}


def _write(
    name: str,
    folder: str,
    request: CountRequest,
    part: pa.Table,
    schema: pa.Schema,
    folders: VocabularyFolders,
) -> str:
    """Writes one file of a vocabulary. Returns its name with the digest, and without the folder.

    Every attempt at the task uses a different name.
    """
    column = pa.array([request.key]).take(pa.array(np.zeros(len(part), np.int64)))
    with new_file(own_path(f"{folder}/{name}")) as file:
        pq.write_table(
            part.add_column(0, "column", column).select(schema.names),
            file.sink,
            compression="zstd",
            row_group_size=folders.row_group_rows,
            use_dictionary=["column", "last_seen"],
            column_encoding=DELTAS,
            # `_parent_entries` uses the statistics of this column to find row groups
            write_statistics=["column"],
        )
    return file.name.rsplit("/", 1)[1]


# The functions below compute the column summaries and the comparisons of days in the data report. They read
# only value counts.

_REPORT_SCHEMA = pa.schema([("name", pa.string()), ("bucket", pa.int32()), ("result", pa.string())])


def summarise_and_compare(
    workers: Workers,
    days: Sequence[Counts],
    train: Sequence[Counts],
    day: Counts,
    columns: Sequence[CountedColumn],
) -> tuple[list[dict[str, ColumnSummary]], dict[str, Values]]:
    """Returns summaries of days, and the comparison of a day with the training days. Reads all counts once.

    One call of `Workers.run` runs all tasks. The driver collects one row per column and bucket.

    Args:
        workers: the processes that run the tasks.
        days: the value counts of the days to summarise; may be empty.
        train: the value counts of the training days.
        day: the value counts of the day that is compared with the training days.
        columns: the columns to summarise. Columns that are not numeric are also compared.

    Returns:
        Two values. The first has a dictionary for each of `days`, which maps each column and the label to its
        summary. The second maps the name of each column that is not numeric to its comparison. A column that
        has no value on any of the compared days has no comparison.
    """
    by_name = {column.name: column for column in [CountedColumn(LABEL_CELLS, "float"), *columns]}
    compared = {name: not column.numeric for name, column in by_name.items() if name != LABEL_CELLS}
    names = [name for name in by_name if days or compared.get(name)]
    results = _run_by_bucket(
        workers,
        _most_values_of_column(
            names, list({counts.files: counts for counts in [*days, *train, day]}.values())
        ),
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
    """Returns, as JSON, a summary for each of `days` and the comparison, for one bucket of a column.

    If the column is not compared, the comparison is missing.
    """
    column = by_name[name]
    compares = name != LABEL_CELLS and not column.numeric
    # Value counts with the same files are added up only once. If the log is not divided by days, all splits
    # have the same files.
    summarised = [counts.files for counts in days]
    others = [counts for counts in (*train, day) if compares and counts.files not in summarised]
    # The counts of each summarised day are added to a sum of their own. For the comparison, the counts of all
    # other training days are added to one sum, and the counts of the compared day to another.
    of_train = {counts.files for counts in train}
    side_of = {files: side for side, files in enumerate(summarised)}
    side_of |= {counts.files: len(days) + (counts.files not in of_train) for counts in others}
    # Make no more sums than needed, because each sum takes memory and time.
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


def _most_values_of_column(names: Sequence[str], days: Sequence[Counts]) -> dict[str, int]:
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

    rows = workers.run(len(tasks), partial(_run_buckets, tasks, function), _REPORT_SCHEMA)
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
    yield pa.RecordBatch.from_arrays([pa.array(names), indexes, pa.array(results)], schema=_REPORT_SCHEMA)
