"""Writes and reads value counts: for a file split, the number of rows with each value of a column.

A `CountRequest` describes a statistic that a fit needs, and the values from which it is computed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from etl.native.distinct_values import buckets_of
from etl.ops.base import Type
from etl.ops.tables import LocalTables
from etl.raw.text_values import text_array
from etl.statistics.id_rule import IdRule
from etl.statistics.moments import MeasuredStatistic
from etl.workflow.chains import FittedChain
from storage.file_digests import new_file, open_file
from storage.publish import own_path, with_footer

COUNTS_SCHEMA = pa.schema([("column", pa.string()), ("value", pa.string()), ("count", pa.int64())])

# Key in the Parquet footer. Its value is a JSON list that has (column, bucket, number of buckets) for each
# row group.
_GROUPS = b"nightrank.groups"

# Lengths of texts and counts are stored as differences, which take less space and less time to read than
# plain numbers.
DELTAS = {"value": "DELTA_LENGTH_BYTE_ARRAY", "count": "DELTA_BINARY_PACKED"}

# Maximum number of bytes of a day's raw text per hash bucket.
BUCKET_BYTES = 4 * 2**30
MAX_BUCKETS = 256


@dataclass(frozen=True)
class Bucket:
    """A hash bucket: the values whose hash modulo `of` is `index`.

    `of` is a power of two, so buckets are nested: bucket 5 of 8 is a part of bucket 1 of 4.
    """

    index: int = 0
    of: int = 1

    def overlaps(self, other: Bucket) -> bool:
        """Returns whether one of the two buckets contains the other."""
        least = min(self.of, other.of)
        return self.index % least == other.index % least

    def holds(self, values: pa.StringArray) -> np.ndarray:
        """Returns, for each of n strings, whether it is in the bucket: (n,) bool."""
        return np.asarray(buckets_of(values, self.of) == self.index)


ALL = Bucket()


def buckets_for(size: int, most: int) -> int:
    """Returns the number of hash buckets for `size` values or bytes, with at most `most` in each bucket.

    The result is the smallest power of two with size / result <= most, but at most MAX_BUCKETS.
    """
    needed = max(1, -(-size // most))
    return min(MAX_BUCKETS, 1 << (needed - 1).bit_length())


def write_counts(
    path: str, counts: Mapping[str, tuple[pa.StringArray, np.ndarray]], buckets: int
) -> tuple[str, dict[str, int]]:
    """Writes one file of value counts. Returns its name, and the number of values of each column.

    The name contains the digest of the file and a description of its footer (storage.publish.with_footer).

    Args:
        path: path of the file. Each attempt of a task adds different digits to the file name
            (storage.publish.own_path).
        counts: maps each column to (values, counts): n distinct values, and the number of rows with each
            value, shape (n,). If null occurs, it is the last value.
        buckets: the number of hash buckets of each column.
    """
    groups: list[tuple[str, Bucket, pa.StringArray, np.ndarray]] = []
    for name in sorted(counts):
        groups += [(name, bucket, *part) for bucket, part in _by_bucket(*counts[name], buckets)]
    labels = [(name, bucket.index, bucket.of) for name, bucket, *_ in groups]
    schema = COUNTS_SCHEMA.with_metadata({_GROUPS: json.dumps(labels).encode()})
    with (
        new_file(own_path(path)) as file,
        pq.ParquetWriter(
            file.sink,
            schema,
            compression="zstd",
            use_dictionary=["column"],
            column_encoding=DELTAS,
            # Readers search only for the name of a column, so the values and the counts need no statistics.
            write_statistics=["column"],
        ) as writer,
    ):
        for name, _, values, value_counts in groups:
            column = pa.array([name]).take(pa.array(np.zeros(len(values), np.int32)))
            writer.write_table(
                pa.Table.from_arrays([column, values, pa.array(value_counts, pa.int64())], schema=schema),
                row_group_size=len(values),
            )
    return with_footer(file.name), {name: len(values) for name, (values, _) in counts.items()}


def _by_bucket(
    values: pa.StringArray, counts: np.ndarray, buckets: int
) -> list[tuple[Bucket, tuple[pa.StringArray, np.ndarray]]]:
    """Returns (bucket, (values, counts)) for each bucket that is not empty. Null is in the first bucket."""
    if not len(values):
        return []
    if buckets == 1:
        return [(ALL, (values, counts))]
    # If null occurs, it is the last value. The hash function treats null like the empty text, so the bucket
    # of null is set separately.
    of_value = buckets_of(values, buckets)
    if values.null_count:
        of_value[-1] = 0
    order = np.argsort(of_value, kind="stable")
    bounds = np.searchsorted(of_value[order], np.arange(buckets + 1))
    return [
        (Bucket(index, buckets), (values.take(pa.array(positions)), counts[positions]))
        for index in range(buckets)
        if len(positions := order[bounds[index] : bounds[index + 1]])
    ]


def read_counts(path: str, column: str, bucket: Bucket = ALL) -> tuple[pa.StringArray, np.ndarray, int]:
    """Reads the value counts of a column, or of one hash bucket of the column, from a file.

    Returns:
        (values, counts, nulls): n distinct values without null, the number of rows with each value, shape
            (n,), and the number of nulls. Nulls belong to the first bucket.
    """
    with open_file(path) as source:
        parquet = pq.ParquetFile(source)
        labels = json.loads(parquet.metadata.metadata[_GROUPS])
        groups = [
            index
            for index, (name, bucket_index, of) in enumerate(labels)
            if name == column and bucket.overlaps(Bucket(bucket_index, of))
        ]
        table = parquet.read_row_groups(groups, columns=["value", "count"], use_threads=False)
        finer = any(labels[index][2] < bucket.of for index in groups)
    values, counts = table["value"].combine_chunks(), table["count"].to_numpy()
    nulls = 0
    if values.null_count:
        missing = values.is_null().to_numpy(zero_copy_only=False)
        nulls = int(counts[missing].sum()) if bucket.index == 0 else 0
        values, counts = values.drop_null(), counts[~missing]
    if finer:
        in_bucket = bucket.holds(values)
        values, counts = values.filter(pa.array(in_bucket)), counts[in_bucket]
    return values, counts, nulls


# The functions below assign columns, or hash buckets of columns, to the tasks that merge their value counts.

# Maximum number of distinct values that one task merges. A value needs about 100 bytes of memory.
MERGE_VALUES = 8_000_000
_TASKS_PER_SLOT = 3
K = TypeVar("K")


def assign_to_tasks(values: Mapping[K, int], slots: int) -> list[list[tuple[K, Bucket]]]:
    """Returns one list per task: the (column, hash bucket) pairs that the task merges.

    Small columns share a task, because every Python task has an overhead of some milliseconds. Each task
    starts with its largest bucket, so that no large bucket is begun near the end of the job.

    Args:
        values: maps each column to an upper bound for the number of its distinct values. The keys may be
            names of columns or any other keys.
        slots: number of tasks that run at the same time.
    """
    buckets = []
    for key, count in values.items():
        of = buckets_for(count, MERGE_VALUES)
        buckets += [(count / of, key, Bucket(index, of)) for index in range(of)]
    # The sort is stable: buckets of equal size keep their order.
    ordered = sorted(buckets, key=lambda entry: -entry[0])
    tasks = max(1, min(len(ordered), _TASKS_PER_SLOT * slots))
    return [[(key, bucket) for _, key, bucket in ordered[task::tasks]] for task in range(tasks)]


def count_buckets(tasks: Sequence[Sequence[tuple[K, Bucket]]]) -> int:
    """Returns the total number of buckets of all tasks."""
    return sum(len(task) for task in tasks)


# The code below describes the statistics that a fit requests, and computes the values of the requested
# columns from value counts.

_TYPES: Mapping[Type, pa.DataType] = {"int": pa.int64(), "float": pa.float64(), "string": pa.string()}


@dataclass(frozen=True)
class DerivedColumn:
    """Values that fitted steps compute from one raw column.

    Attributes:
        column: name of the raw column.
        chain: the fitted steps.
        value: name of the value whose statistics are needed. It is an input of the chain or an output of one
            of its steps.
    """

    column: str
    chain: FittedChain
    value: str


@dataclass(frozen=True)
class CountRequest:
    """A request for a statistic of one column, or for the vocabulary of one or several columns.

    Attributes:
        key: the name of the vocabulary, or another unique name of the request.
        probabilities: the probabilities of the requested quantiles.
        mergeable: the requested statistic if an operator defines it, otherwise None.
        rule: the rule that decides which values of a vocabulary get an id.
        fixed_values: all values of the vocabulary, if the configuration lists them; None if they are counted.
        parent: the files of the earlier workflow version that is extended: (files of vocabularies, files of
            rare values). Both are empty for a new workflow.
    """

    key: str
    statistic: Literal["moments", "quantiles", "mergeable", "vocabulary"]
    columns: tuple[DerivedColumn, ...]
    probabilities: tuple[float, ...] = ()
    mergeable: MeasuredStatistic | None = None
    rule: IdRule | None = None
    fixed_values: tuple[str, ...] | None = None
    parent: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


@dataclass(frozen=True)
class Counts:
    """The value counts of some days.

    Attributes:
        files: (path, day) of each file of value counts. The day is a number of days since 1970-01-01.
        latest: the last of these days, as a number of days since 1970-01-01. If an earlier workflow is
            extended and includes a later day, `latest` is that day.
        values: maps each column to the sum, over all files, of the number of distinct values in a file. This
            is an upper bound for the number of distinct values on all days.
    """

    files: tuple[tuple[str, int], ...]
    latest: int
    values: Mapping[str, int]


def join_days(latest: int, days: Sequence[Counts]) -> Counts:
    """Combines the value counts of several days.

    The attribute `latest` of the result is the argument `latest`.
    """
    values: Counter[str] = Counter()
    for day in days:
        values.update(day.values)
    return Counts(tuple(file for day in days for file in day.files), latest, dict(values))


def derived_values(column: DerivedColumn, path: str) -> tuple[pa.Array, np.ndarray]:
    """Computes the values of a derived column from one file of value counts.

    Returns:
        (values, counts): n values without null, and the number of rows with each value, shape (n,). A value
            may occur more than once in `values`.
    """
    raw, counts, nulls = read_counts(path, column.column)
    if nulls:  # Nulls are passed to the steps too, because a step may replace nulls by values.
        raw, counts = pa.concat_arrays([raw, pa.nulls(1, pa.string())]), np.append(counts, nulls)
    values = {column.chain.inputs[0]: raw.cast(_TYPES[column.chain.types[0]])}
    for step in column.chain.steps:
        outputs = step.compute([values[name] for name in step.inputs], LocalTables({}))
        values |= dict(zip(step.outputs, outputs, strict=True))
    value = values[column.value]
    if pa.types.is_list(value.type):
        counts = counts[np.asarray(pc.list_parent_indices(value))]
        value = pc.list_flatten(value)
    if value.null_count:
        valid = value.is_valid()
        value, counts = value.filter(valid), counts[np.asarray(valid)]
    return value, counts


def derived_texts(
    column: DerivedColumn, path: str, bucket: Bucket = ALL
) -> tuple[pa.StringArray, np.ndarray]:
    """Computes the values of a derived column as texts, and returns the values in one hash bucket.

    The result is (values, counts), as in `derived_values`.
    """
    if not column.chain.steps:
        values, counts, _ = read_counts(path, column.column, bucket)
        return values, counts
    value, counts = derived_values(column, path)
    texts = text_array(value)
    if bucket.of == 1:
        return texts, counts
    in_bucket = bucket.holds(texts)
    return texts.filter(pa.array(in_bucket)), counts[in_bucket]
