"""Measures how much a loader slows down the Python thread of a training run in the same process.

    .venv/bin/python benchmarks/loader_interference.py [--quick] [--rows N] [--seconds S]

A training step on a GPU is hundreds of calls of torch from one Python thread. A loader in the same process
needs Python's global interpreter lock for its own Python code, and the step waits for it. Here, the step is
`CALLS` small calls of torch on the CPU. It has a core of its own, and the loader has the others, so they do
not take cores from each other. The loader reads as fast as it can: there is one step for each batch. The table
and the contenders are those of loader.py; each contender runs in a process of its own.

Figures of a contender:

* alone_ms: milliseconds of a step without a loader, the median.
* beside_ms: milliseconds of a step beside the loader, the mean.
* rows_per_s: rows that the loader delivers meanwhile.

A ratio is beside_ms / alone_ms of a peer, divided by that of our loader. The benchmark needs two cores.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a file in this folder hides our package etl

import torch

from benchmarks.etl_runs import CACHE
from benchmarks.loader import OURS, PEERS, Contender
from benchmarks.loader_contender import LoaderTask
from benchmarks.loader_data import FeatureTable, make_table
from benchmarks.report import machine, summary_line, table
from training.data.prefetch import Prefetch

ROWS, QUICK_ROWS = 4_000_000, 1_000_000
SECONDS, QUICK_SECONDS = 20.0, 5.0
CALLS = 1_200
BATCH, BUFFER = 65_536, 262_144
_AHEAD = 2  # batches that wait for the step
_ALONE = 60  # steps without a loader
CONTENDERS: dict[str, Contender] = {
    "ours": OURS,
    "petastorm_batched": PEERS["petastorm_batched"][0],
    "petastorm_best": PEERS["petastorm_best"][0],
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_ROWS:,} rows, {QUICK_SECONDS:.0f} seconds"
    )
    parser.add_argument("--rows", type=int, help=f"rows of the table (default {ROWS:,})")
    parser.add_argument("--seconds", type=float, help=f"seconds of each contender (default {SECONDS:.0f})")
    parser.add_argument("--batch", type=int, default=BATCH, help=f"rows of a batch (default {BATCH:,})")
    options = parser.parse_args(arguments)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print(
            "error: the benchmark needs two cores, one for the step and one for the loader", file=sys.stderr
        )
        return 1
    options.rows = options.rows or (QUICK_ROWS if options.quick else ROWS)
    options.seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    of_machine = machine(len(cores), ("torch", "petastorm", "pyarrow"))
    features = make_table(CACHE, options.rows)
    figures = {}
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as processes:
        for name in CONTENDERS:
            print(f"loader_interference: {name} …", file=sys.stderr, flush=True)
            figures[name] = processes.apply(measure, (name, features, options.batch, options.seconds, cores))
    slowdowns = {name: it["beside_ms"] / it["alone_ms"] for name, it in figures.items()}
    ratios: dict[str, float | None] = {
        name: slowdown / slowdowns["ours"] for name, slowdown in slowdowns.items() if name != "ours"
    }
    rows = [
        [
            name,
            f"{it['alone_ms']:.2f}",
            f"{it['beside_ms']:.2f}",
            f"{slowdowns[name]:.2f}",
            f"{it['rows_per_s']:,.0f}",
        ]
        for name, it in figures.items()
    ]
    print(table(["loader", "step alone, ms", "beside it, ms", "slowdown", "rows/s"], rows))
    ours = figures.pop("ours")
    print(summary_line("loader_interference", of_machine, {"ours": ours}, figures, ratios, calls=CALLS))
    return 0


def measure(
    name: str, features: FeatureTable, batch: int, seconds: float, cores: Sequence[int]
) -> dict[str, float]:
    """Measures one contender in this process, whose threads are then bound to cores."""
    torch.set_num_threads(1)
    contender = CONTENDERS[name]
    task = LoaderTask(contender.module, features, batch, BUFFER, 1, 1, "", contender.settings)
    for _ in range(_ALONE):
        step()
    alone = statistics.median(step() for _ in range(_ALONE))
    os.sched_setaffinity(0, cores[1:])  # threads that the loader starts inherit this
    with Prefetch(_batches(task), _AHEAD) as batches:
        next(batches)
        os.sched_setaffinity(0, cores[:1])  # only of this thread
        steps: list[float] = []
        rows, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            rows += next(batches)
            steps.append(step())
        elapsed = time.perf_counter() - began
    return {
        "alone_ms": round(alone * 1e3, 4),
        "beside_ms": round(statistics.mean(steps) * 1e3, 4),
        "rows_per_s": round(rows / elapsed),
    }


def _batches(task: LoaderTask) -> Iterator[int]:
    """Yields the number of rows of each batch, epoch after epoch, without end."""
    module: Any = importlib.import_module(task.module)
    seed = 0
    while True:
        for labels, _ in module.epoch(task.table, task, seed):
            yield len(labels)
        seed += 1


def step() -> float:
    """Calls torch as a step on a GPU does, and returns the seconds."""
    began = time.perf_counter()
    weight = torch.eye(8)
    values = weight
    for _ in range(CALLS // 3):
        values = torch.relu(values)
        values = values + weight
        values = values.view(8, 8)
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
