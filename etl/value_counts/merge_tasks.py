"""How the merging of value counts is shared out: pieces of columns over tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from etl.value_counts.count_files import Bucket, buckets_for

# Different values that one task merges at most, some 100 bytes each.
MERGE_VALUES = 8_000_000
_TASKS_A_SLOT = 3

K = TypeVar("K")


def shared_out(values: Mapping[K, int], slots: int) -> list[list[tuple[K, Bucket]]]:
    """The hash buckets of columns, by task.

    A Python task costs some milliseconds whatever it does, so that small columns share one; large ones come first and are spread, so that
    no slot is left with a large one at the end.

    Args:
        values: column, or what stands for it → an upper bound of its different values.
        slots: tasks that run at a time.
    """
    pieces = []
    for key, count in values.items():
        of = buckets_for(count, MERGE_VALUES)
        pieces += [(count / of, key, Bucket(index, of)) for index in range(of)]
    ordered = sorted(pieces, key=lambda piece: -piece[0])  # stable: equal ones keep their order
    tasks = max(1, min(len(ordered), _TASKS_A_SLOT * slots))
    return [[(key, bucket) for _, key, bucket in ordered[task::tasks]] for task in range(tasks)]


def count_pieces(tasks: Sequence[Sequence[tuple[K, Bucket]]]) -> int:
    return sum(len(task) for task in tasks)
