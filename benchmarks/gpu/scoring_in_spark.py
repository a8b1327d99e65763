"""Measures how many rows per second score_rows scores with DLRM on one GPU in Spark.

    .venv/bin/python benchmarks/gpu/scoring_in_spark.py [--quick]

The model has the shapes of Criteo's terabyte log, but tables of at most a million rows, because each Python
worker of the session holds the model. Spark tasks read Parquet, copy rows to batches on the device, score them
and write probabilities. Each task has one whole row group, and there are four tasks for each slot, so no row is
decoded twice and no slot is idle. The ratio `of_one_process` is this rate divided by the rate of the same model in one
process, whose batches are already on the GPU (scoring.py); our target is 0.8. Without a GPU, shapes are tiny
and nothing is measured.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.criteo_shapes import spec_of
from benchmarks.gpu.one_worker import FEW_COMPILATIONS
from benchmarks.gpu.scoring import BATCH, in_process, model_of
from benchmarks.gpu.setting import CACHE, Setting, read_setting
from benchmarks.report import summary_line, table
from benchmarks.scoring_contenders import Rows, open_session, request_of
from benchmarks.scoring_world import Data
from benchmarks.training_files import write_files
from scoring.rows.file_splits import FileRowGroup
from training.checkpoints import save_model
from training.models import build_model

AIM = 0.8
_MOST_ROWS = 1_000_000
_SLOTS, _TASKS_OF_SLOT, _TASK_ROWS = 4, 4, 1_000_000
_TINY_SLOTS, _TINY_ROWS = 2, 8


def main(arguments: Sequence[str] | None = None) -> int:
    setting = read_setting(__doc__, arguments)
    if setting.measures:
        setting = replace(setting, batch=BATCH)
    else:
        os.environ["JAVA_TOOL_OPTIONS"] = FEW_COMPILATIONS
    setting = replace(setting, most_rows=min(setting.most_rows or _MOST_ROWS, _MOST_ROWS))
    of_machine = setting.machine()
    speeds = in_process(setting)
    best = max(figures["samples_per_s"] for figures in speeds.values())
    speeds = {"one_process": {"samples_per_s": best}, "in_spark": in_spark(setting)}
    print(setting.heading())
    print(
        table(["scoring", "rows/s"], [[name, f"{it['samples_per_s']:,.0f}"] for name, it in speeds.items()])
    )
    share = speeds["in_spark"]["samples_per_s"] / best if setting.measures else None
    if share is not None:
        print(f"of_one_process: {share:.2f}, {'met' if share >= AIM else 'MISSED'}")
    print(summary_line("gpu_scoring_in_spark", of_machine, speeds, {}, {"of_one_process": share}, aim=AIM))
    return 0


def in_spark(setting: Setting) -> dict[str, float]:
    """Returns the rows per second of score_rows in Spark: tasks read Parquet, score and write Parquet."""
    cardinalities = setting.cardinalities
    slots = _SLOTS if setting.measures else _TINY_SLOTS
    number = slots * _TASKS_OF_SLOT
    rows = number * (_TASK_ROWS if setting.measures else _TINY_ROWS)
    folder = CACHE / f"scoring-{rows}-{number}-{setting.most_rows}"
    files = write_files(
        folder, rows, number, cardinalities, row_ids=True, processes=slots if setting.measures else 1
    )
    data = Data(rows, 1, (), tuple(FileRowGroup(file.path, 0, 1, file.rows, "2026-01-01") for file in files))
    speeds = []
    with tempfile.TemporaryDirectory() as scratch:
        spec, config = spec_of(cardinalities), model_of(setting)
        description = {
            "version": "benchmark",
            "architecture": config.architecture,
            "model": config.model_dump(),
            "feature_spec": spec.to_json(),
        }
        path = f"{scratch}/model"
        save_model(path, build_model(config, spec), description)
        request = (request_of(path, "bf16") if setting.measures else None) or request_of(path)
        assert request is not None
        spark = open_session(slots, scratch)
        try:
            contender = Rows(spark, replace(request, device="auto"))
            contender.run(data)  # workers start, models are loaded
            for _ in range(max(setting.turns, 2)):
                began = time.perf_counter()
                contender.run(data)
                speeds.append(rows / (time.perf_counter() - began))
        finally:
            spark.stop()
    middle = sorted(speeds)[len(speeds) // 2]
    return {
        "samples_per_s": round(middle, 1),
        "lowest": round(min(speeds), 1),
        "highest": round(max(speeds), 1),
    }


if __name__ == "__main__":
    sys.exit(main())
