"""Measures an upper limit of the speed of score_rows: the model without a Spark job, on rows in memory.

There is one process per core. Each process scores an equal number of row groups with one thread, as the
Python workers of a Spark session with that many cores do.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier
from typing import Any

from benchmarks.scoring_world import read_inputs
from scoring.requests import ModelRequest
from scoring.rows.file_splits import FileRowGroup


def rows_per_s(
    request: ModelRequest, groups: Sequence[FileRowGroup], processes: int, turns: int
) -> list[float]:
    """Returns the rows per second of all processes together, with one element per turn.

    Reading the rows, loading the model and a first pass over a few rows are not timed.

    Args:
        request: the model.
        groups: the row groups, which are distributed over the processes.
        processes: number of processes.
        turns: number of turns. In each turn, all rows are scored once.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    queue: Any = context.Queue()
    shares = [list(groups[place::processes]) for place in range(processes)]
    started = [
        context.Process(target=_score, args=(request, share, barrier, queue, turns), daemon=True)
        for share in shares
    ]
    for process in started:
        process.start()
    spans = [queue.get(timeout=600) for _ in started]
    for process in started:
        process.join()
    rows = sum(group.rows for group in groups)
    return [
        rows / (max(span[turn][1] for span in spans) - min(span[turn][0] for span in spans))
        for turn in range(turns)
    ]


def _score(
    request: ModelRequest, groups: Sequence[FileRowGroup], barrier: Barrier, queue: Any, turns: int
) -> None:
    from scoring.model.predictor import load_predictor

    predictor = load_predictor(request, None, 1)
    dense, ids = read_inputs(groups, predictor.spec)
    predictor.probabilities(dense[:4096], ids[:4096])
    spans = []
    for _ in range(turns):
        barrier.wait()
        began = time.monotonic()
        predictor.probabilities(dense, ids)
        spans.append((began, time.monotonic()))
    queue.put(spans)
