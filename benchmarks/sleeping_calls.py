"""Replaces functions of a rank by sleeps that are as long as the functions take on a core of their own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from training.embeddings.rows import SummedRowGradient
from training.embeddings.table import tables_of
from training.loop.train_step import Trainer

_RECORDED = 4  # calls of each function
_REPEATS = 3


class SleepingCalls:
    """The functions of a trainer that compute with table rows or update parameters.

    At first they compute, and their arguments are recorded. After `sleep`, they sleep. What they return then
    has the right shapes, but the numbers are arbitrary, except for the grouping of ids, which determines the
    sizes of messages.

    Args:
        trainer: a trainer whose model has one table, without replicated rows.
    """

    def __init__(self, trainer: Trainer) -> None:
        (table,) = tables_of(trainer.model).values()
        updates, pending = trainer._updates, table._pending
        self._functions: list[_Function] = [
            _Grouping(table.router, "group"),
            _Function(table, "_take", lambda rows, positions: torch.empty(len(positions), rows.shape[1])),
            _Function(
                pending,
                "_summed",
                lambda lookup, groups: SummedRowGradient(
                    groups.keys, torch.empty(len(groups.keys), lookup.vectors.shape[2])
                ),
            ),
            _Function(
                pending,
                "_sum",
                lambda weight, parts, distinct: SummedRowGradient(
                    torch.zeros(0, dtype=torch.int64), torch.zeros(0, weight.shape[1])
                ),
            ),
            _Function(updates, "_update_rows", lambda *_: None),
            _Function(updates._adam, "step", lambda *_: None),
        ]

    def measure(self) -> None:
        """Measures each function with the recorded arguments. No other rank may compute meanwhile."""
        for function in self._functions:
            function.measure()

    def sleep(self) -> dict[str, float]:
        """Lets the functions sleep from now on. Returns the mean seconds of a call by the function's name."""
        for function in self._functions:
            function.sleeps = True
        return {function.name: function.seconds for function in self._functions}


class _Function:
    """A function that can sleep.

    Args:
        owner, name: the method `name` of `owner` is replaced.
        result: computes what the sleeping function returns, from its arguments.
    """

    def __init__(self, owner: Any, name: str, result: Callable[..., Any]) -> None:
        self.name, self.sleeps, self.seconds = name, False, 0.0
        self._compute, self._result = getattr(owner, name), result
        self._recorded: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        setattr(owner, name, self)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.sleeps:
            time.sleep(self.seconds)
            return self._result(*arguments, **named)
        if len(self._recorded) < _RECORDED:
            self._recorded.append((arguments, named))
        return self._compute(*arguments, **named)

    def measure(self) -> None:
        """Measures the function with the recorded arguments, and forgets them."""
        medians = [
            statistics.median(self._time(arguments, named) for _ in range(_REPEATS))
            for arguments, named in self._recorded
        ]
        self.seconds = statistics.mean(medians)
        self._recorded.clear()

    def _time(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> float:
        began = time.perf_counter()
        self._compute(*arguments, **named)
        return time.perf_counter() - began


class _Grouping(_Function):
    """Grouping of keys, whose result is remembered for each batch."""

    def __init__(self, owner: Any, name: str) -> None:
        super().__init__(owner, name, lambda keys: self._groups[int(keys.sum())])
        self._groups: dict[int, Any] = {}

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        result = super().__call__(*arguments, **named)
        self._groups[int(arguments[0].sum())] = result
        return result
