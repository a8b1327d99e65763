"""Ranks as threads of one process: `Collectives` that wait for each other, for tests without Horovod."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch
from torch import Tensor

from training.distributed.collectives import Collectives

Result = TypeVar("Result")

# How long a rank waits for the others before its test fails: a loaded machine stops threads for a minute.
_PATIENCE_S = 240


class ThreadCollectives:
    """One rank's view of tensors that all ranks put on one table."""

    def __init__(self, rank: int, table: list[tuple[Tensor, ...]], barrier: Barrier) -> None:
        self.rank = rank
        self.size = len(table)
        self._table = table
        self._barrier = barrier

    def allreduce_sum(self, values: Tensor) -> Tensor:
        return torch.stack([values_of_rank for (values_of_rank,) in self._exchange(values)]).sum(dim=0)

    def start_allreduce_sum(self, values: Tensor) -> Callable[[], Tensor]:
        summed = self.allreduce_sum(values)
        return lambda: summed

    def all_to_all(self, values: Tensor, splits: Sequence[int]) -> tuple[Tensor, list[int]]:
        sent = self._exchange(*values.split(list(splits)))
        received = [of_rank[self.rank] for of_rank in sent]
        return torch.cat(received), [len(of_rank) for of_rank in received]

    def allgather(self, *tensors: Tensor) -> list[Tensor]:
        return [torch.cat(of_ranks) for of_ranks in zip(*self._exchange(*tensors), strict=True)]

    def _exchange(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        self._table[self.rank] = tensors
        self._barrier.wait(timeout=_PATIENCE_S)
        tensors_of_ranks = list(self._table)
        self._barrier.wait(timeout=_PATIENCE_S)
        return tensors_of_ranks


def on_ranks(ranks: int, body: Callable[[Collectives], Result]) -> list[Result]:
    """What `body` returns on each of so many ranks."""
    cores = sorted(os.sched_getaffinity(0))
    core = cores[os.getpid() % len(cores)]
    table: list[tuple[Tensor, ...]] = [()] * ranks
    barrier = Barrier(ranks)
    # On one core: they take turns anyway, and to wake a thread on another costs more than what it then does.
    with ThreadPoolExecutor(ranks, initializer=os.sched_setaffinity, initargs=(0, {core})) as pool:
        return list(pool.map(lambda rank: body(ThreadCollectives(rank, table, barrier)), range(ranks)))
