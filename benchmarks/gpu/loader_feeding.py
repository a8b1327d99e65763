"""Measures whether the loader reads fast enough to keep one GPU busy.

    .venv/bin/python benchmarks/gpu/loader_feeding.py [--quick]

The files have 128 row groups, of which at most 17 are in memory at a time, so every row of a batch is decoded from
Parquet in each epoch. The script prints the rows per second of the training step alone, of loaders alone, and of
each loader and the step together:

    host        one thread decodes row groups; pools are made on the host and copied
    threads     four threads decode; pools are made on the host and copied
    device      four threads decode; pools are made on the device (the default on a GPU)

The step alone uses batches that are already on the device. The ratio `end_to_end` is the rate of `device` and the
step together divided by the rate of the step alone; our target is 0.95. `feeds` is the rate of the loader `device`
divided by that of the step. `device_over_host` compares the loaders alone. Before anything is measured, the first
batches of all loaders are compared: they must be equal to the bit. Without a GPU, shapes are tiny and nothing is
measured.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmarks.criteo_shapes import spec_of
from benchmarks.gpu.setting import CACHE, Setting, read_setting
from benchmarks.gpu.training_step import make, model_of
from benchmarks.report import summary_line, table
from benchmarks.steps import seconds_of, wait_for
from benchmarks.training_files import full_batches, write_files
from conf.types import Reading, Train
from training.data.loader import Loader
from training.data.prefetch import Prefetch
from training.data.sharding import DataFile, plan_shards, shards_of_rank

AIM = 0.95
_FILES, _GROUP_ROWS = 128, 131_072
_TINY_FILES, _TINY_ROWS = 20, 32
# More epochs than a measurement consumes, so that the loader always has batches. Tiny files get fewer, because the
# reader would decode thousands of them ahead.
_EPOCHS, _TINY_EPOCHS = 10_000, 2
_COMPARED = 6  # batches; more than a pool has
LOADERS = {
    "host": Reading(pools="host", threads=1),
    "threads": Reading(pools="host", threads=4),
    "device": Reading(pools="device", threads=4),
}


def main(arguments: Sequence[str] | None = None) -> int:
    setting = read_setting(__doc__, arguments)
    of_machine = setting.machine()
    if not setting.measures:
        setting = replace(setting, batch=Train().num_shards)  # a row of every shard
    speeds = measure(setting)
    ratios = {
        "end_to_end": speeds["device_and_step"] / speeds["step"],
        "feeds": speeds["device"] / speeds["step"],
        "device_over_host": speeds["device"] / speeds["host"],
    }
    shown: dict[str, float | None] = {**ratios} if setting.measures else dict.fromkeys(ratios)
    print(setting.heading())
    print(table(["", "rows/s"], [[name, f"{rate:,.0f}"] for name, rate in speeds.items()]))
    for name, ratio in shown.items():
        if ratio is not None:
            print(f"{name}: {ratio:.2f}")
    if setting.measures:
        print("met" if ratios["end_to_end"] >= AIM else "MISSED")
    print(summary_line("gpu_loader_feeding", of_machine, speeds, {}, shown, aim=AIM))
    return 0


def measure(setting: Setting) -> dict[str, float]:
    """Returns the rows per second of the step alone, and of each loader alone and together with the step.

    Raises:
        RuntimeError: the batches of two loaders differ.
    """
    files = _FILES if setting.measures else _TINY_FILES
    rows = files * (_GROUP_ROWS if setting.measures else _TINY_ROWS)
    folder = CACHE / f"loader-{rows}-{files}-{setting.most_rows}"
    processes = len(os.sched_getaffinity(0)) if setting.measures else 1
    written = write_files(folder, rows, files, setting.cardinalities, row_ids=True, processes=processes)
    loaders = {name: make_loader(setting, written, reading) for name, reading in LOADERS.items()}
    require_equal_batches(setting, loaders)
    step = make("ours_bf16" if setting.measures else "ours_tf32", setting, model_of(setting))
    steps = setting.steps * setting.turns
    epochs = _EPOCHS if setting.measures else _TINY_EPOCHS

    def seconds(loader: Loader, *, takes: bool) -> float:
        """Returns the seconds in which all measured batches are read.

        The first batches are not measured, because they were read in advance. If `takes` is true, each batch
        goes through the training step. As in a training run, pools are made ahead of time.
        """
        with Prefetch(loader.batches(epochs)) as prefetch:
            coming = full_batches(iter(prefetch), setting.batch)
            for batch in islice(coming, 10):
                batch.to(setting.device)
            began = time.perf_counter()
            for batch in islice(coming, steps):
                moved = batch.to(setting.device)
                if takes:
                    step(moved)
            wait_for(setting.device)
            return time.perf_counter() - began

    with Prefetch(loaders["host"].batches(epochs)) as prefetch:
        held = [batch.to(setting.device) for batch in islice(iter(prefetch), 2)]
    seconds_of(step, held, 5 if setting.measures else 1, setting.device)  # compiles
    measured_rows = steps * setting.batch
    speeds = {"step": measured_rows / seconds_of(step, held, steps, setting.device)}
    for name, loader in loaders.items():
        speeds[name] = measured_rows / seconds(loader, takes=False)
        speeds[f"{name}_and_step"] = measured_rows / seconds(loader, takes=True)
    return {name: round(speed) for name, speed in speeds.items()}


def make_loader(setting: Setting, files: Sequence[DataFile], reading: Reading) -> Loader:
    train = Train.model_validate({"num_ranks": 1, "global_batch_size": setting.batch})
    return Loader(
        files,
        plan_shards([file.rows for file in files], train.num_shards, train.global_batch_size),
        shards_of_rank(train.num_shards, 0, 1),
        spec_of(setting.cardinalities),
        train.seed,
        device=setting.device,
        reading=reading,
        kernel=True,  # without a GPU, Triton's interpreter runs it
    )


def require_equal_batches(setting: Setting, loaders: dict[str, Loader]) -> None:
    """Compares the first batches of all loaders.

    Raises:
        RuntimeError: the batches of two loaders differ.
    """
    tensors = ("labels", "weights", "dense", "categorical")
    first = {
        name: [batch.to(setting.device) for batch in islice(loader.batches(), _COMPARED)]
        for name, loader in loaders.items()
    }
    for name, batches in first.items():
        for ours, expected in zip(batches, first["host"], strict=True):
            if not all(torch.equal(getattr(ours, part), getattr(expected, part)) for part in tensors):
                raise RuntimeError(f"the batches of the loader {name} differ from those of the loader host")


if __name__ == "__main__":
    sys.exit(main())
