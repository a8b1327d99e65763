"""Times the training steps of several contenders in one process, in turns, under the same conditions.

Contenders use the same number of threads, the same batches and the same device. In each turn, every contender
runs some steps. The order of the contenders shifts by one from turn to turn. The speed of a contender is the
median over turns. Before a time is read, the device finishes all its work.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from typing import Any

import torch

from training.data.batch import Batch

Step = Callable[[Batch], Any]


def wait_for(device: torch.device) -> None:
    """Waits until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(step: Step, batches: Sequence[Batch], steps: int, device: torch.device) -> float:
    """Returns the seconds of `steps` training steps, which use the batches in turn, again and again."""
    wait_for(device)
    began = time.perf_counter()
    for batch in islice(cycle(batches), steps):
        step(batch)
    wait_for(device)
    return time.perf_counter() - began


def alternate(
    contenders: Mapping[str, Step],
    batches: Sequence[Batch],
    *,
    warm_up: int,
    steps: int,
    turns: int,
    device: torch.device,
) -> dict[str, dict[str, float]]:
    """Runs the contenders in turns.

    Returns:
        A mapping for each contender, with rates in samples per second: `samples_per_s` is the median over
            turns, `lowest` the lowest and `highest` the highest rate.
    """
    for step in contenders.values():
        seconds_of(step, batches, warm_up, device)
    rows = len(batches[0].labels)
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(turns):
        first = turn % len(names)
        for name in [*names[first:], *names[:first]]:
            speeds[name].append(rows * steps / seconds_of(contenders[name], batches, steps, device))
    return {name: spread(rates) for name, rates in speeds.items()}


def spread(speeds: Sequence[float]) -> dict[str, float]:
    return {
        "samples_per_s": round(statistics.median(speeds), 1),
        "lowest": round(min(speeds), 1),
        "highest": round(max(speeds), 1),
    }
