"""Shows how the time of a training step of DLRM is divided among GPU kernels.

    .venv/bin/python benchmarks/gpu/profile_step.py [--quick]

Each contender of training_step.py runs some steps under torch.profiler. For each kernel, the script prints
milliseconds per step and the number of launches per step. `busy` is the time in which a kernel runs. In the
rest of a step's time, the GPU waits for the CPU. Kernels are named as the profiler names them. Without a GPU, shapes
are tiny and nothing is measured.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.criteo_shapes import make_batches
from benchmarks.gpu.setting import Setting, read_setting
from benchmarks.gpu.training_step import contenders_of, make, model_of
from benchmarks.report import summary_line, table
from benchmarks.steps import Step, seconds_of
from training.data.batch import Batch

_SHOWN = 25  # kernels of a contender
_STEPS = 10


def main(arguments: Sequence[str] | None = None) -> int:
    setting = read_setting(__doc__, arguments)
    of_machine = setting.machine()
    batches = [batch.to(setting.device) for batch in make_batches(4, setting.batch, setting.cardinalities)]
    figures = {}
    for name in contenders_of(setting):  # one at a time: the tables take 16 GiB
        step = make(name, setting, model_of(setting))
        figures[name] = profiled(name, step, batches, setting)
        del step
        if setting.measures:
            torch.cuda.empty_cache()
    ours = {name: values for name, values in figures.items() if name.startswith("ours")}
    peers = {name: values for name, values in figures.items() if name not in ours}
    ratios: dict[str, float | None] = dict.fromkeys(ours)
    if setting.measures:
        ratios |= {f"{name}_busy": values["busy_ms"] / values["step_ms"] for name, values in ours.items()}
    print(summary_line("gpu_profile_step", of_machine, ours, peers, ratios, measures=setting.measures))
    return 0


def profiled(name: str, step: Step, batches: Sequence[Batch], setting: Setting) -> dict[str, float]:
    """Prints the kernels of a step. Returns the milliseconds of a step, and those in which a kernel runs."""
    steps = _STEPS if setting.measures else 1
    seconds_of(step, batches, 5 if setting.measures else 1, setting.device)
    step_ms = seconds_of(step, batches, steps, setting.device) / steps * 1e3
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if setting.measures else [])]
    with profile(activities=activities, acc_events=True) as recorded:
        for batch in islice(cycle(batches), steps):
            step(batch)
        if setting.measures:
            torch.cuda.synchronize(setting.device)
    kernels = by_kernel(recorded.events() or [])
    busy_ms = sum(milliseconds for milliseconds, _ in kernels.values()) / steps
    print(
        f"{name}: {step_ms:.3f} ms a step, busy {busy_ms:.3f} ms, {setting.batch / step_ms * 1e3:,.0f} samples/s"
    )
    longest = sorted(kernels.items(), key=lambda item: -item[1][0])[:_SHOWN]
    rows = [
        [kernel[:90], f"{milliseconds / steps:.3f}", f"{count / steps:.1f}"]
        for kernel, (milliseconds, count) in longest
    ]
    print(table(["kernel", "ms", "launches"], rows))
    return {"step_ms": round(step_ms, 4), "busy_ms": round(busy_ms, 4)}


def by_kernel(events: Sequence[Any]) -> dict[str, tuple[float, int]]:
    """Returns milliseconds and launches of each kernel, by its name."""
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    for event in events:
        if event.device_type.name == "CUDA" and not event.is_user_annotation:
            entry = found[event.name]
            entry[0] += event.time_range.elapsed_us() / 1e3
            entry[1] += 1
    return {name: (milliseconds, int(count)) for name, (milliseconds, count) in found.items()}


if __name__ == "__main__":
    sys.exit(main())
