"""Measures how long build_features takes for each additional row, with workflow.device=cuda and with cpu.

    .venv/bin/python benchmarks/gpu/etl_on_gpu.py [--quick]

As in gpu/terabyte.py, the job runs on a log in Criteo's layout and on one with four times as many rows, first with the
GPU and then without it, on all cores of the machine. The feature tables of the smaller log must have the same
checksums. `cuda_minutes` is the time of a row with the GPU multiplied by 4.11 billion rows: a prediction for Criteo's
terabyte log. The ratio `cpu_over_cuda` is the time of a row without the GPU divided by that with the GPU. On a machine
without a GPU, logs are tiny, both jobs use the CPUs, and nothing is measured.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.etl_runs import ContenderFailed
from benchmarks.gpu.etl import gpu_name
from benchmarks.gpu.terabyte import (
    QUICK_ROWS,
    ROWS,
    TERABYTE_ROWS,
    TINY_ROWS,
    run_twice,
    seconds_of_row,
)
from benchmarks.report import machine, summary_line, table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} and four times as many rows")
    options = parser.parse_args(arguments)
    gpu, cores = gpu_name(), len(os.sched_getaffinity(0))
    rows = (QUICK_ROWS if options.quick else ROWS) if gpu else TINY_ROWS
    runs = {
        device: run_twice(rows, cores, [f"workflow.device={device}"], compared=True)
        for device in ("cuda", "cpu")
    }
    if runs["cuda"][rows].summary != runs["cpu"][rows].summary:
        raise ContenderFailed("the tables with workflow.device=cuda and workflow.device=cpu differ")
    of_row = {device: seconds_of_row(of_device) for device, of_device in runs.items()}
    print(f"{gpu or 'There is no GPU: logs are tiny and nothing is measured.'}, {cores} cores\n")
    lines = [
        [device, f"{number:,}", f"{run.seconds:.1f}", f"{run.cpu_s:.1f}"]
        for device, of_device in runs.items()
        for number, run in of_device.items()
    ]
    print(table(["workflow.device", "rows", "seconds", "CPU s"], lines))
    facts = {
        f"{device}_{number}": {"seconds": round(run.seconds, 2), "cpu_s": round(run.cpu_s, 2)}
        for device, of_device in runs.items()
        for number, run in of_device.items()
    }
    minutes = of_row["cuda"] * TERABYTE_ROWS / 60
    if gpu:
        print(
            f"\nmicroseconds of a row: {1e6 * of_row['cuda']:.3f} with the GPU, {1e6 * of_row['cpu']:.3f} without"
        )
    more = {"cuda_minutes": round(minutes, 1) if gpu else None, "predicted": True}
    ratios = {"cpu_over_cuda": of_row["cpu"] / of_row["cuda"] if gpu and of_row["cuda"] > 0 else None}
    of_machine = {**machine(cores, ("pyarrow", "torch")), "gpu": gpu}
    print(summary_line("gpu_etl_on_gpu", of_machine, facts, {}, ratios, **more))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ContenderFailed as error:
        print(f"etl_on_gpu: {error}", file=sys.stderr)
        sys.exit(1)
