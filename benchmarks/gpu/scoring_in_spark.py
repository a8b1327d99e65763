"""Measures how many rows per second score_rows scores with DLRM on one GPU, with and without Spark.

    .venv/bin/python benchmarks/gpu/scoring_in_spark.py [--quick]

The model has the shapes of Criteo's terabyte log, but tables of at most a million rows. Contenders:

    one_process   the best rate of the model in one process, whose batches are already on the GPU (scoring.py)
    pipeline      a task of score_rows in this process: it reads Parquet, scores, and writes Parquet
    in_spark      score_rows in Spark, from Parquet to Parquet: one task owns the GPU and all cores

The features are 64 row groups of 262,144 rows, and each of them is read and scored four times, so the task
has 67 million rows. The ratio `of_one_process` is the rate of `in_spark` divided by that of `one_process`; our
target is 0.8. `pipeline_of_one_process` is the same for `pipeline`, and `of_aim` is the rate of `in_spark`
divided by 30 million rows/s. Without a GPU, shapes are tiny, tasks use the code for CPUs, and nothing
is measured.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.criteo_shapes import spec_of
from benchmarks.gpu.one_worker import FEW_COMPILATIONS
from benchmarks.gpu.scoring import BATCH, in_process, model_of
from benchmarks.gpu.setting import CACHE, Setting, read_setting
from benchmarks.report import summary_line, table
from benchmarks.scoring_contenders import FILE_ROWS, Rows, open_session, request_of
from benchmarks.scoring_world import Data
from benchmarks.steps import spread
from benchmarks.training_files import write_files
from scoring.model.predictor import load_predictor
from scoring.requests import ModelRequest
from scoring.rows.file_splits import FileRowGroup, divide_rows
from scoring.rows.task import write_scores
from training.checkpoints import save_model
from training.models import build_model

AIM, AIM_ROWS = 0.8, 30e6
_MOST_ROWS = 1_000_000
_FILES, _GROUP_ROWS, _TIMES = 64, 262_144, 4
_TINY_FILES, _TINY_ROWS = 4, 8


def main(arguments: Sequence[str] | None = None) -> int:
    setting = read_setting(__doc__, arguments)
    if setting.measures:
        setting = replace(setting, batch=BATCH)
    else:
        os.environ["JAVA_TOOL_OPTIONS"] = FEW_COMPILATIONS
    setting = replace(setting, most_rows=min(setting.most_rows or _MOST_ROWS, _MOST_ROWS))
    of_machine = setting.machine()
    best = max(in_process(setting).values(), key=lambda figures: figures["samples_per_s"])
    speeds = {"one_process": best, **from_files(setting)}
    rates = {name: figures["samples_per_s"] for name, figures in speeds.items()}
    ratios = {
        "of_one_process": rates["in_spark"] / rates["one_process"],
        "pipeline_of_one_process": rates["pipeline"] / rates["one_process"],
        "of_aim": rates["in_spark"] / AIM_ROWS,
    }
    shown: dict[str, float | None] = {**ratios} if setting.measures else dict.fromkeys(ratios)
    print(setting.heading())
    print(table(["scoring", "rows/s"], [[name, f"{rate:,.0f}"] for name, rate in rates.items()]))
    for name, ratio in shown.items():
        if ratio is not None:
            print(f"{name}: {ratio:.2f}")
    if setting.measures:
        print("met" if ratios["of_one_process"] >= AIM else "MISSED")
    print(summary_line("gpu_scoring_in_spark", of_machine, speeds, {}, shown, aim=AIM))
    return 0


def from_files(setting: Setting) -> dict[str, dict[str, float]]:
    """Returns the rows per second of `pipeline` and `in_spark`, which read and write Parquet."""
    cores = len(os.sched_getaffinity(0)) if setting.measures else 2
    with tempfile.TemporaryDirectory() as scratch:
        data, request = data_of(setting, cores), model_request(setting, scratch)
        speeds = {"pipeline": pipeline(setting, data, request, cores, scratch)}
        spark = open_session(cores, scratch, {"spark.task.cpus": str(cores)})
        try:
            contender = Rows(spark, request)
            speeds["in_spark"] = rates_of(lambda: contender.run(data), data.pairs, setting.turns)
        finally:
            spark.stop()
    return speeds


def pipeline(
    setting: Setting, data: Data, request: ModelRequest, cores: int, scratch: str
) -> dict[str, float]:
    """Returns the rows per second of a task of score_rows in this process."""
    predictor = load_predictor(request, None, 1)
    (pieces,) = divide_rows(data.joined, 1, data.pairs, whole=True)
    folder = f"{scratch}/scores"

    def run() -> None:
        write_scores(predictor, pieces, folder, cores, FILE_ROWS)
        shutil.rmtree(folder)

    return rates_of(run, data.pairs, setting.turns)


def rates_of(run: Callable[[], None], rows: int, turns: int) -> dict[str, float]:
    """Returns the rows per second of some runs. The first run is not timed, because it also loads the model."""
    run()
    rates = []
    for _ in range(max(turns, 2)):
        began = time.perf_counter()
        run()
        rates.append(rows / (time.perf_counter() - began))
    return spread(rates)


def data_of(setting: Setting, processes: int) -> Data:
    """Returns the row groups to score. Writes files that do not exist."""
    number, rows = (_FILES, _GROUP_ROWS) if setting.measures else (_TINY_FILES, _TINY_ROWS)
    folder = CACHE / f"scoring-{number * rows}-{number}-{setting.most_rows}"
    files = write_files(
        folder,
        number * rows,
        number,
        setting.cardinalities,
        row_ids=True,
        processes=processes if setting.measures else 1,
    )
    groups = [FileRowGroup(file.path, 0, 1, file.rows, "2026-01-01") for file in files] * _TIMES
    return Data(sum(group.rows for group in groups), 1, (), tuple(groups))


def model_request(setting: Setting, folder: str) -> ModelRequest:
    """Saves a model with initial weights, and returns the request to score with it."""
    spec, config = spec_of(setting.cardinalities), model_of(setting)
    description = {
        "version": "benchmark",
        "architecture": config.architecture,
        "model": config.model_dump(),
        "feature_spec": spec.to_json(),
    }
    path = f"{folder}/model"
    save_model(path, build_model(config, spec), description)
    request = request_of(path, "bf16" if setting.measures else "fp32")
    assert request is not None
    return replace(request, device="cuda") if setting.measures else request


if __name__ == "__main__":
    sys.exit(main())
