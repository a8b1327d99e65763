"""Measures the scanner of text in torch operators: bytes per second, and the seconds of its stages.

    .venv/bin/python benchmarks/gpu/text_scan.py [--quick]

The text is a block of 64 MiB of a log in Criteo's layout, as a task reads it. First, the result is compared with that
of the compiled scanner: lines, rows, reasons, dictionaries, codes and counts must be equal. Then whole scans are timed.
Finally, a scan is timed stage by stage. The script waits for the device after each stage, so the stages together take
longer than a whole scan:

    upload         copy of the text to the device
    words          bytes of the values as words of 8 bytes; empty fields are left out
    keys           hashes of the words
    compare        comparison of each word with that of the first value with the same key
    distinct       copy of the bytes of distinct values
    rest           delimiters, bounds of fields, the sort, codes, and waiting for the host

The ratio `over_one_core` is the time of the compiled scanner on one core divided by that of the device. Without a GPU,
the block is tiny, torch's operators run on the CPU, and nothing is measured.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch

from benchmarks.criteo_log import make_log
from benchmarks.etl_runs import CACHE, DAYS
from benchmarks.report import machine, summary_line, table
from benchmarks.steps import wait_for
from device import text_scan
from device.text_scan import ScannedText, scan_text
from etl.native.scan import Scanned, scan

WIDTH = 40
BLOCK_BYTES, QUICK_BYTES, TINY_BYTES = 64 * 2**20, 16 * 2**20, 2**16
ROWS, TINY_ROWS = 4_000_000, 4_000
TURNS = 7
STAGES = {
    "upload": "_upload",
    "words": "_values",
    "keys": "_keys",
    "compare": "_are_same",
    "distinct": "_bytes_of",
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"a block of {QUICK_BYTES >> 20} MiB")
    options = parser.parse_args(arguments)
    measures = torch.cuda.is_available()
    device = torch.device("cuda", 0) if measures else torch.device("cpu")
    gpu = torch.cuda.get_device_name(device) if measures else None
    cores = len(os.sched_getaffinity(0))
    size = (QUICK_BYTES if options.quick else BLOCK_BYTES) if measures else TINY_BYTES
    block = read_block(size, cores, measures)
    require_equal(on_device(block, device), compiled(block))
    seconds = median_s(lambda: on_device(block, device), device)
    compiled_s = median_s(lambda: compiled(block), torch.device("cpu"))
    stages = stages_of(block, device)
    rates = {
        "device_bytes_per_s": len(block) / seconds,
        "compiled_bytes_per_s": len(block) / compiled_s,
    }
    facts: dict[str, float] = {name: round(rate) for name, rate in rates.items()}
    facts |= {f"{name}_us": round(1e6 * one, 1) for name, one in stages.items()}
    print(f"{gpu or 'There is no GPU: the block is tiny and nothing is measured.'}\n")
    lines = [[name, f"{1e3 * one:.3f}", f"{len(block) / one / 1e9:.2f}"] for name, one in stages.items()]
    lines += [["whole scan", f"{1e3 * seconds:.3f}", f"{len(block) / seconds / 1e9:.2f}"]]
    lines += [["compiled, one core", f"{1e3 * compiled_s:.3f}", f"{len(block) / compiled_s / 1e9:.2f}"]]
    print(table(["", "ms", "GB/s"], lines))
    of_machine: dict[str, Any] = {**machine(cores, ("torch", "pyarrow")), "gpu": gpu}
    ratios = {"over_one_core": compiled_s / seconds if measures else None}
    print(summary_line("gpu_text_scan", of_machine, facts, {}, ratios, block_bytes=len(block)))
    return 0


def read_block(size: int, cores: int, measures: bool) -> bytes:
    """Returns complete lines of the first day of a log, about `size` bytes."""
    log = make_log(CACHE, ROWS if measures else TINY_ROWS, DAYS, processes=min(DAYS, cores))
    with Path(log[0].path).open("rb") as stream:
        text = stream.read(size)
    return text[: text.rfind(b"\n") + 1]


def on_device(block: bytes, device: torch.device) -> ScannedText:
    """Scans all fields on a device.

    Raises:
        RuntimeError: two values have the same key, so nothing was scanned.
    """
    found = scan_text(block, "\t", WIDTH, range(WIDTH), False, device)
    if found is None:
        raise RuntimeError("two values of the block have the same key")
    return found


def compiled(block: bytes) -> Scanned:
    """Scans all fields with the compiled scanner."""

    def split_lines(lines: object) -> Any:
        raise TypeError("a log in Criteo's layout has no quotes")

    return scan(block, "\t", WIDTH, range(WIDTH), False, split_lines)


def require_equal(found: ScannedText, expected: Scanned) -> None:
    """Raises RuntimeError if two scans differ."""
    equal = found.lines == expected.lines and dict(found.broken) == dict(expected.broken)
    equal &= np.array_equal(found.row_lines, expected.row_lines)
    for field, column in expected.columns.items():
        equal &= found.columns[field].to_arrow().equals(column)
        equal &= np.array_equal(found.counts[field], expected.counts[field])
    if not equal:
        raise RuntimeError("the device and the compiled scanner give different rows")


def median_s(run: Callable[[], object], device: torch.device) -> float:
    """Returns the median of the seconds of some runs, after one that is not timed."""
    run()
    times = []
    for _ in range(TURNS):
        wait_for(device)
        began = time.perf_counter()
        run()
        wait_for(device)
        times.append(time.perf_counter() - began)
    return float(np.median(times))


def stages_of(block: bytes, device: torch.device) -> dict[str, float]:
    """Returns the seconds of each stage of a scan, the medians of some scans."""
    turns: list[dict[str, float]] = []
    for _ in range(TURNS):
        with timed_stages(device) as seconds:
            began = time.perf_counter()
            on_device(block, device)
            wait_for(device)
            whole = time.perf_counter() - began
        turns.append({**seconds, "rest": max(whole - sum(seconds.values()), 1e-9)})
    return {name: float(np.median([turn[name] for turn in turns])) for name in turns[0]}


@contextmanager
def timed_stages(device: torch.device) -> Iterator[dict[str, float]]:
    """Times the functions of `STAGES`, and yields their seconds by the name of the stage."""
    seconds = dict.fromkeys(STAGES, 1e-9)
    originals = {name: getattr(text_scan, name) for name in STAGES.values()}

    def timed(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            wait_for(device)
            began = time.perf_counter()
            result = function(*arguments)
            wait_for(device)
            seconds[stage] += time.perf_counter() - began
            return result

        return call

    try:
        for stage, name in STAGES.items():
            setattr(text_scan, name, timed(stage, originals[name]))
        yield seconds
    finally:
        for name, function in originals.items():
            setattr(text_scan, name, function)


if __name__ == "__main__":
    sys.exit(main())
