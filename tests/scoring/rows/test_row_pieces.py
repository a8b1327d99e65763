"""Which rows a task reads: every row once, in order, in tasks of about equal size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from scoring.requests import DeviceKind, ModelRequest
from scoring.rows.file_splits import FileRowGroup, RowGroupRange, divide_rows
from scoring.spark import score_frames
from scoring.spark.score_frames import divide_split


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


@pytest.mark.parametrize("seed", range(40))
def test_tasks_of_complete_row_groups_have_every_row_once_and_in_order(seed: int) -> None:
    draw = np.random.default_rng(seed)
    groups = groups_of(draw.integers(1, 500, draw.integers(1, 30)).tolist())
    slots, most = int(draw.integers(1, 20)), int(draw.integers(1, 3000))
    tasks = divide_rows(groups, slots, most, whole=True)
    assert [piece for task in tasks for piece in task] == [
        RowGroupRange(group, 0, group.rows) for group in groups
    ]
    for task in tasks:
        assert len(task) == 1 or sum(piece.rows for piece in task) <= most * (1 + 1 / 8)


def test_a_gpu_gets_few_large_tasks_of_complete_row_groups() -> None:
    groups = groups_of([276_000] * 1000)
    assert [len(task) for task in divide_rows(groups, 1, 2**26, whole=True)] == [200] * 5
    assert [len(task) for task in divide_rows(groups, 8, 2**26, whole=True)] == [125] * 8
    assert len(divide_rows(groups[:3], 8, 2**26, whole=True)) == 3


def divided(tasks: list[tuple[RowGroupRange, ...]]) -> int:
    """The number of pieces that are not a complete row group."""
    return sum(piece.rows < piece.group.rows for task in tasks for piece in task)


@pytest.mark.parametrize("rows, count", [(276_000, 1000), (400_000, 160), (1_000_000, 64), (50_000, 333)])
@pytest.mark.parametrize("slots", [1, 2, 16])
def test_no_row_group_of_many_is_decoded_twice(rows: int, count: int, slots: int) -> None:
    tasks = divide_rows(groups_of([rows] * count), slots, 1_000_000)
    assert divided(tasks) == 0
    largest = max(sum(piece.rows for piece in task) for task in tasks)
    # The last slot ends at most an eighth later than if all slots had equally many rows.
    assert -(-len(tasks) // slots) * largest <= 9 / 8 * rows * count / slots


def test_few_row_groups_are_divided_if_slots_would_have_unequal_shares() -> None:
    tasks = divide_rows(groups_of([100] * 5), slots=4, max_rows=1000)
    assert [sum(piece.rows for piece in task) for task in tasks] == [125] * 4
    assert divided(tasks) == 6


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


@pytest.mark.parametrize(
    "settings, device, sizes",
    [
        ({}, "auto", [50] * 16),
        ({"spark.task.cpus": "4"}, "auto", [100] * 8),
        ({"spark.task.cpus": "16", "spark.task.resource.gpu.amount": "1"}, "auto", [800]),
        ({"spark.task.cpus": "8", "spark.task.resource.gpu.amount": "1"}, "auto", [400, 400]),
        ({"spark.task.cpus": "16", "spark.task.resource.gpu.amount": "1"}, "cpu", [100] * 8),
        ({"spark.task.cpus": "4"}, "cuda", [200] * 4),
    ],
)
def test_tasks_on_gpus_have_more_rows_than_a_file(
    settings: dict[str, str], device: DeviceKind, sizes: list[int]
) -> None:
    spark: Any = SimpleNamespace(conf=settings, sparkContext=SimpleNamespace(defaultParallelism=16))
    request = ModelRequest("model", device, None)
    tasks = divide_split(spark, groups_of([100] * 8), request, 100)
    assert [sum(piece.rows for piece in task) for task in tasks] == sizes


@pytest.mark.parametrize(
    "device, has_gpu, threads", [("cpu", True, 16), ("auto", True, 1), ("auto", False, 16), ("cuda", True, 1)]
)
def test_a_process_has_one_thread_for_the_gpu_it_uses_or_one_for_each_core(
    monkeypatch: pytest.MonkeyPatch, device: DeviceKind, has_gpu: bool, threads: int
) -> None:
    monkeypatch.setattr(score_frames, "cores_without_jvm", lambda: 16)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    used = []

    def map_rows(rows: pa.Table, *arguments: Any) -> pa.Table:
        used.append(arguments[-2])
        return rows

    monkeypatch.setattr(score_frames, "map_rows_in_threads", map_rows)
    table = pa.table({"dense": [0.0]})
    score_frames.score_in_batches(table, iter, table.schema, 10, device)
    assert used == [threads]
    tasks = divide_split(None, groups_of([100] * 64), ModelRequest("model", device, None), 1_000_000)
    assert len(tasks) == threads
