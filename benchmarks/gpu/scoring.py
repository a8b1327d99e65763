"""Measures how many rows per second one GPU scores with DLRM, in one process and with score_rows in Spark.

    .venv/bin/python benchmarks/gpu/scoring.py [--quick]

The model has the shapes of Criteo's terabyte log. For batches of 32,768 rows in mixed precision in one
process, NVIDIA published 14.8 million rows/s on one A100-80 and 6.7 million rows/s on one V100-32
(DeepLearningExamples, DLRM for PyTorch, inference performance). Our target on an H200 is 30 million rows/s in
one process, and 80% of the rate in one process for score_rows in Spark. Spark tasks also read Parquet, copy
rows to batches on the device and write probabilities.

In one process, the batches are already on the GPU. `bf16_compiled` compiles the part of the model after the
lookups. `int8_bf16` stores tables in int8. In Spark, tables have at most a million rows, because
each Python worker of the session holds the model. With --quick, this limit also applies in one process. Without a
GPU, shapes are tiny and nothing is measured.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import yaml
from torch import Tensor

from benchmarks.criteo_shapes import make_batches, spec_of
from benchmarks.gpu.setting import CACHE, ROOT, Setting, read_setting
from benchmarks.report import summary_line, table
from benchmarks.scoring_contenders import Rows, open_session, request_of
from benchmarks.scoring_world import Data
from benchmarks.steps import alternate
from benchmarks.training_files import write_files
from conf.types import ModelConfig
from scoring.rows.file_splits import RowGroup
from training.checkpoints import save_model
from training.data.batch import Batch
from training.embeddings.int8 import to_int8
from training.loop.forward import DensePart
from training.models import build_model

PUBLISHED = {"a100": 14.8e6, "v100": 6.7e6}
AIM, AIM_IN_SPARK = 30e6, 0.8
BATCH = 32_768
_SPARK_MOST_ROWS = 1_000_000
_FILES, _SLOTS = 8, 4

Score = Callable[[Batch], Tensor]


def main(arguments: Sequence[str] | None = None) -> int:
    setting = read_setting(__doc__, arguments)
    if setting.measures:
        setting = replace(setting, batch=BATCH)
    of_machine = setting.machine()
    speeds = in_process(setting)
    speeds["in_spark"] = in_spark(setting)
    print(setting.heading())
    keys = ("samples_per_s", "lowest", "highest")
    rows = [[name, *(f"{figures[key]:,.0f}" for key in keys)] for name, figures in speeds.items()]
    print(table(["scoring", "rows/s", "lowest", "highest"], rows))
    ratios = ratios_of(setting, speeds)
    for name, ratio in ratios.items():
        if ratio is not None:
            print(f"{name}: {ratio:.2f}")
    print(summary_line("gpu_scoring", of_machine, speeds, {}, ratios, published=PUBLISHED, aim=AIM))
    return 0


def in_process(setting: Setting) -> dict[str, dict[str, float]]:
    """Returns a dict that maps each contender to its rows per second in one process.

    Contenders run one after the other, because the tables of one contender take 16 GiB.
    """
    batches = [batch.to(setting.device) for batch in make_batches(4, setting.batch, setting.cardinalities)]
    # Triton's interpreter has no bf16 product.
    names = ("fp32", "bf16", "bf16_compiled", "int8_bf16") if setting.measures else ("fp32", "int8_fp32")
    speeds: dict[str, dict[str, float]] = {}
    for name in names:
        score = scorer(name, setting)
        speeds |= alternate(
            {name: score},
            batches,
            warm_up=5 if setting.measures else 1,
            steps=setting.steps,
            turns=setting.turns,
            device=setting.device,
        )
        del score
        if setting.measures:
            torch.cuda.empty_cache()
    return speeds


def scorer(name: str, setting: Setting) -> Score:
    """Returns a function that computes the probabilities (B,) float32 of a batch on the device."""
    with torch.device(setting.device):
        model: Any = build_model(model_of(setting), spec_of(setting.cardinalities)).to(setting.device).eval()
    if name.startswith("int8"):
        to_int8(model)
        model = model.to(setting.device).eval()
    part: Any = DensePart(model).eval()
    if name.endswith("compiled"):
        part.compile(dynamic=False)

    @torch.inference_mode()
    def score(batch: Batch) -> Tensor:
        vectors = model.embed(batch.categorical)
        halved = torch.autocast(setting.device.type, torch.bfloat16) if "bf16" in name else nullcontext()
        with halved:
            logits: Tensor = part(batch.dense, *vectors)
        return torch.sigmoid(logits.float())

    return score


def model_of(setting: Setting) -> ModelConfig:
    """Returns the configuration of the published model, or that of a small DLRM if there is no GPU."""
    sections = yaml.safe_load((ROOT / "conf/models/dlrm_criteo.yaml").read_text(encoding="utf-8"))
    if not setting.measures:
        sections |= {"embedding_dim": setting.dim, "bottom_mlp": [16, setting.dim], "top_mlp": [16]}
    return ModelConfig.model_validate(sections)


def in_spark(setting: Setting) -> dict[str, float]:
    """Returns the rows per second of score_rows in Spark: tasks read Parquet, score and write Parquet."""
    capped = replace(setting, most_rows=min(setting.most_rows or _SPARK_MOST_ROWS, _SPARK_MOST_ROWS))
    cardinalities = capped.cardinalities
    rows = setting.batch * _FILES * (32 if setting.measures else 2)
    files = write_files(
        CACHE / f"scoring-{rows}-{capped.most_rows}", rows, _FILES, cardinalities, row_ids=True
    )
    data = Data(rows, 1, (), tuple(RowGroup(file.path, 0, 1, file.rows, "2026-01-01") for file in files))
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
        spark = open_session(_SLOTS if setting.measures else 2, scratch)
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


def ratios_of(setting: Setting, speeds: dict[str, dict[str, float]]) -> dict[str, float | None]:
    """Returns the ratios of the benchmark. All ratios are None if there is no GPU.

    Our best rate in one process is divided by each published figure and by the target. The rate in Spark is
    divided by our best rate in one process.
    """
    best = max(figures["samples_per_s"] for name, figures in speeds.items() if name != "in_spark")
    ratios = {name: best / published for name, published in {**PUBLISHED, "aim": AIM}.items()}
    ratios["in_spark"] = speeds["in_spark"]["samples_per_s"] / best
    return {name: ratio if setting.measures else None for name, ratio in ratios.items()}


if __name__ == "__main__":
    sys.exit(main())
