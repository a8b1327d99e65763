"""Ranks as threads of one process: `Collectives` that wait for each other, for tests without Horovod."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Condition
from typing import TypeVar

import torch
from torch import Tensor

from training.collectives import Collectives, ReceivedRows

Result = TypeVar("Result")

# How long a rank waits for the others before its test fails: a loaded machine stops threads for a minute.
_PATIENCE_S = 240


class Table:
    """Where ranks put the tensors of each call, until every rank has taken those of all ranks."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._changed = Condition()
        self._calls: dict[str, dict[int, tuple[Tensor, ...]]] = {}
        self._taken: Counter[str] = Counter()

    def put(self, call: str, rank: int, tensors: tuple[Tensor, ...]) -> None:
        copies = tuple(tensor.detach().clone() for tensor in tensors)
        if any(tensor.is_cuda for tensor in copies):
            torch.cuda.current_stream().synchronize()  # other ranks read the copies on streams of their own
        with self._changed:
            self._calls.setdefault(call, {})[rank] = copies
            self._changed.notify_all()

    def take(self, call: str) -> list[tuple[Tensor, ...]]:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._calls[call]) == self.ranks, _PATIENCE_S):
                raise TimeoutError(f"only ranks {sorted(self._calls[call])} made call {call}")
            tensors = [self._calls[call][rank] for rank in range(self.ranks)]
            self._taken[call] += 1
            if self._taken[call] == self.ranks:
                del self._calls[call], self._taken[call]
        return tensors


class ThreadCollectives:
    """One rank's view of the table. To start a call never waits."""

    def __init__(self, rank: int, table: Table) -> None:
        self.rank = rank
        self.size = table.ranks
        self._table = table
        self._calls: Counter[str] = Counter()
        self._in_flight: set[str] = set()

    def allreduce_sum(self, values: Tensor) -> Tensor:
        return self.start_allreduce_sum(values.clone(), "sum")()

    def start_allreduce_sum(self, values: Tensor, name: str) -> Callable[[], Tensor]:
        wait = self._start(name, values)
        return lambda: values.copy_(torch.stack([of_rank for (of_rank,) in wait()]).sum(dim=0))

    def all_to_all(self, values: Tensor, splits: Sequence[int]) -> tuple[Tensor, list[int]]:
        return self.start_all_to_all(values, splits, "exchange")()

    def start_all_to_all(self, values: Tensor, splits: Sequence[int], name: str) -> ReceivedRows:
        wait = self._start(name, *values.split(list(splits)))

        def receive() -> tuple[Tensor, list[int]]:
            received = [of_rank[self.rank] for of_rank in wait()]
            return torch.cat(received), [len(of_rank) for of_rank in received]

        return receive

    def allgather(self, *tensors: Tensor) -> list[Tensor]:
        return [torch.cat(of_ranks) for of_ranks in zip(*self._start("rows", *tensors)(), strict=True)]

    def _start(self, name: str, *tensors: Tensor) -> Callable[[], list[tuple[Tensor, ...]]]:
        assert name not in self._in_flight, f"{name} is in flight"
        self._in_flight.add(name)
        self._calls[name] += 1
        call = f"{name} {self._calls[name]}"
        self._table.put(call, self.rank, tensors)

        def wait() -> list[tuple[Tensor, ...]]:
            received = self._table.take(call)
            self._in_flight.remove(name)
            return received

        return wait


def on_ranks(ranks: int, body: Callable[[Collectives], Result]) -> list[Result]:
    """What `body` returns on each of so many ranks."""
    cores = sorted(os.sched_getaffinity(0))
    core = cores[os.getpid() % len(cores)]
    table = Table(ranks)
    # On one core: they take turns anyway, and to wake a thread on another costs more than what it then does.
    with ThreadPoolExecutor(ranks, initializer=os.sched_setaffinity, initargs=(0, {core})) as pool:
        return list(pool.map(lambda rank: body(ThreadCollectives(rank, table)), range(ranks)))
