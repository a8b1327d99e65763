"""Measures whether the loader reads fast enough to keep one GPU busy.

    .venv/bin/python benchmarks/gpu/loader_feeding.py [--quick]

The script prints the rows per second of the loader alone, of the training step alone, and of both together.
The step alone uses batches that are already on the device. The ratio `feeds` is the rate of the loader divided by the
rate of the step. The ratio `end_to_end` is the rate of both together divided by the rate of the step alone.
Without a GPU, shapes are tiny and nothing is measured.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.criteo_shapes import spec_of
from benchmarks.gpu.setting import CACHE, Setting, read_setting
from benchmarks.gpu.training_step import make, model_of
from benchmarks.report import summary_line, table
from benchmarks.steps import seconds_of, wait_for
from benchmarks.training_files import full_batches, write_files
from conf.types import Train
from training.data.loader import Loader
from training.data.prefetch import Prefetch
from training.data.sharding import plan_shards, shards_of_rank

_BATCHES_A_FILE, _FILES = 32, 4
# More epochs than a measurement consumes, so that it does not run dry. Tiny files get fewer, because the
# reader would decode thousands of them ahead.
_EPOCHS, _TINY_EPOCHS = 10_000, 2


def main(arguments: Sequence[str] | None = None) -> int:
    setting = read_setting(__doc__, arguments)
    of_machine = setting.machine()
    if not setting.measures:
        setting = replace(setting, batch=Train().num_shards)  # a row of every shard
    speeds = measure(setting)
    ratios = {
        "feeds": speeds["loader"] / speeds["step"] if setting.measures else None,
        "end_to_end": speeds["end_to_end"] / speeds["step"] if setting.measures else None,
    }
    print(setting.heading())
    print(table(["", "rows/s"], [[name, f"{rate:,.0f}"] for name, rate in speeds.items()]))
    for name, ratio in ratios.items():
        if ratio is not None:
            print(f"{name}: {ratio:.2f}")
    print(summary_line("gpu_loader_feeding", of_machine, speeds, {}, ratios))
    return 0


def measure(setting: Setting) -> dict[str, float]:
    """Returns the rows per second of the loader alone, of the training step alone, and of both together."""
    cardinalities, device = setting.cardinalities, setting.device
    rows = setting.batch * _BATCHES_A_FILE * _FILES
    files = write_files(CACHE / f"{rows}-{setting.most_rows}", rows, _FILES, cardinalities)
    train = Train.model_validate({"num_ranks": 1, "global_batch_size": setting.batch})
    plan = plan_shards([file.rows for file in files], train.num_shards, train.global_batch_size)
    own_shards = shards_of_rank(train.num_shards, 0, 1)
    loader = Loader(files, plan, own_shards, spec_of(cardinalities), train.seed, device=device)
    step = make("ours_bf16" if setting.measures else "ours_tf32", setting, model_of(setting))
    steps = setting.steps * setting.turns
    epochs = _EPOCHS if setting.measures else _TINY_EPOCHS

    def run(takes: bool) -> float:
        """Returns the seconds in which all measured batches are read.

        The first batches are not measured, because they were read in advance.

        If `takes` is true, each batch goes through the training step. As in a training, pools are copied to the
        device ahead of time.
        """
        with Prefetch(loader.batches(epochs)) as prefetch:
            coming = full_batches(iter(prefetch), setting.batch)
            for batch in islice(coming, 10):
                batch.to(device)
            began = time.perf_counter()
            for batch in islice(coming, steps):
                moved = batch.to(device)
                if takes:
                    step(moved)
            wait_for(device)
            return time.perf_counter() - began

    with Prefetch(loader.batches(epochs)) as prefetch:
        held = [batch.to(device) for batch in islice(iter(prefetch), 2)]
    seconds_of(step, held, 5 if setting.measures else 1, device)  # compiles
    alone = seconds_of(step, held, steps, device)
    rows = steps * setting.batch
    return {
        "loader": round(rows / run(takes=False)),
        "step": round(rows / alone),
        "end_to_end": round(rows / run(takes=True)),
    }


if __name__ == "__main__":
    sys.exit(main())
