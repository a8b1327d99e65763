"""Assigns columns, or hash buckets of columns, to the tasks that merge their value counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from etl.value_counts.count_file_format import Bucket, buckets_for

# Maximum number of different values that one task merges. A value needs about 100 bytes of memory.
MERGE_VALUES = 8_000_000
_TASKS_PER_SLOT = 3

K = TypeVar("K")


def assign_to_tasks(values: Mapping[K, int], slots: int) -> list[list[tuple[K, Bucket]]]:
    """Returns one list per task: the (column, hash bucket) pairs that the task merges.

    Small columns share a task, because every Python task has an overhead of some milliseconds. Each task
    starts with its largest bucket, so that no large bucket is begun near the end of the job.

    Args:
        values: maps each column to an upper bound for the number of its different values. The keys may be
            names of columns or any other keys.
        slots: number of tasks that run at the same time.
    """
    buckets = []
    for key, count in values.items():
        of = buckets_for(count, MERGE_VALUES)
        buckets += [(count / of, key, Bucket(index, of)) for index in range(of)]
    ordered = sorted(buckets, key=lambda entry: -entry[0])  # stable: buckets of equal size keep their order
    tasks = max(1, min(len(ordered), _TASKS_PER_SLOT * slots))
    return [[(key, bucket) for _, key, bucket in ordered[task::tasks]] for task in range(tasks)]


def count_buckets(tasks: Sequence[Sequence[tuple[K, Bucket]]]) -> int:
    """Returns the total number of buckets of all tasks."""
    return sum(len(task) for task in tasks)
