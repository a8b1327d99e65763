"""Which tasks have a GPU of their own: on one machine by its devices, in Spark by the profile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark import workers
from spark.choose_workers import SparkWorkers
from spark.workers import LocalWorkers, gpus_of_machine, slot_of_task


def _devices(monkeypatch: pytest.MonkeyPatch, folder: Path, names: list[str]) -> None:
    for name in names:
        (folder / name).touch()
    monkeypatch.setattr(workers, "Path", lambda _: folder)


@pytest.mark.parametrize(
    "visible, expected",
    [(None, 3), ("0", 1), ("1,2", 2), ("", 0), ("-1", 0), ("2,-1,0", 1), ("0,1,2,3,4", 3)],
)
def test_gpus_that_are_not_visible_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: int
) -> None:
    _devices(monkeypatch, tmp_path, ["nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"])
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus_of_machine() == expected


@pytest.mark.parametrize(
    "number, tasks, expected",
    [
        (0, 5, []),
        (1, 5, [range(5)]),
        (2, 5, [range(2), range(2, 5)]),
        (8, 2, [range(1), range(1, 2)]),
        (1, 0, []),
    ],
)
def test_a_machine_has_one_group_for_each_gpu(
    monkeypatch: pytest.MonkeyPatch, number: int, tasks: int, expected: list[range]
) -> None:
    monkeypatch.setattr(workers, "gpus_of_machine", lambda: number)
    assert LocalWorkers(2, lambda: pytest.fail("no session")).gpu_groups(tasks) == expected


@pytest.mark.parametrize(
    "amount, expected", [("1", [range(64), range(64, 70)]), ("0.25", []), ("0", []), (None, [])]
)
def test_spark_has_groups_if_a_task_has_a_whole_gpu(amount: str | None, expected: list[range]) -> None:
    def get(name: str, default: str) -> str:
        assert name == "spark.task.resource.gpu.amount"
        return default if amount is None else amount

    context = SimpleNamespace(getConf=lambda: SimpleNamespace(get=get))
    session: Any = SimpleNamespace(sparkContext=context)
    assert SparkWorkers(session).gpu_groups(70) == expected


def test_a_thread_without_a_task_of_spark_has_no_slot() -> None:
    assert slot_of_task() is None
