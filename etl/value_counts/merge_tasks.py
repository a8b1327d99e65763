"""Which task merges the value counts of which column, or of which hash bucket of a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from etl.value_counts.count_files import Bucket, buckets_for

# Most different values that one task merges. A value takes some 100 bytes.
MERGE_VALUES = 8_000_000
_TASKS_PER_SLOT = 3

K = TypeVar("K")


def assign_to_tasks(values: Mapping[K, int], slots: int) -> list[list[tuple[K, Bucket]]]:
    """The hash buckets of columns that each task merges.

    Small columns share a task, because a Python task costs some milliseconds whatever it does. Large buckets
    come first and are spread over the tasks, so that no slot is left with a large one at the end.

    Args:
        values: column, or its key → an upper bound of its different values.
        slots: tasks that run at a time.
    """
    buckets = []
    for key, count in values.items():
        of = buckets_for(count, MERGE_VALUES)
        buckets += [(count / of, key, Bucket(index, of)) for index in range(of)]
    ordered = sorted(buckets, key=lambda entry: -entry[0])  # stable: equal ones keep their order
    tasks = max(1, min(len(ordered), _TASKS_PER_SLOT * slots))
    return [[(key, bucket) for _, key, bucket in ordered[task::tasks]] for task in range(tasks)]


def count_buckets(tasks: Sequence[Sequence[tuple[K, Bucket]]]) -> int:
    """The number of buckets of all tasks."""
    return sum(len(task) for task in tasks)
