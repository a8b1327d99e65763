"""Which rows a task reads: every row once, in order, in tasks of about equal size."""

from __future__ import annotations

import numpy as np
import pytest

from scoring.rows.file_splits import FileRowGroup, divide_rows


def groups_of(rows: list[int]) -> list[FileRowGroup]:
    """Row groups of these sizes."""
    return [FileRowGroup(f"f{place}", place % 3, 3, count, "2026-01-01") for place, count in enumerate(rows)]


@pytest.mark.parametrize("seed", range(40))
def test_every_row_is_in_one_piece_and_in_order(seed: int) -> None:
    draw = np.random.default_rng(seed)
    groups = groups_of(draw.integers(1, 500, draw.integers(1, 30)).tolist())
    slots, most = int(draw.integers(1, 20)), int(draw.integers(1, 800))
    tasks = divide_rows(groups, slots, most)
    read = [
        (piece.group.path, row) for task in tasks for piece in task for row in range(piece.start, piece.stop)
    ]
    assert read == [(group.path, row) for group in groups for row in range(group.rows)]
    sizes = [sum(piece.rows for piece in task) for task in tasks]
    assert min(sizes) > 0
    assert max(sizes) <= most * (1 + 1 / 8) + 1
    assert len(tasks) >= min(slots, len(read)) * 7 // 8


def test_equal_row_groups_are_not_cut() -> None:
    tasks = divide_rows(groups_of([100, 104, 98, 102]), slots=4, max_rows=1000)
    assert [[(piece.start, piece.stop) for piece in task] for task in tasks] == [
        [(0, 100)],
        [(0, 104)],
        [(0, 98)],
        [(0, 102)],
    ]


def test_one_large_row_group_feeds_all_slots() -> None:
    tasks = divide_rows(groups_of([900]), slots=3, max_rows=1000)
    assert [[(piece.start, piece.stop) for piece in task] for task in tasks] == [
        [(0, 300)],
        [(300, 600)],
        [(600, 900)],
    ]


def test_without_rows_there_is_one_empty_task() -> None:
    assert divide_rows([], slots=4, max_rows=10) == [()]
