"""Measures how many rows per second one GPU scores with DLRM, in one process that needs only torch.

    .venv/bin/python benchmarks/gpu/scoring.py [--quick]

The model has the shapes of Criteo's terabyte log. For batches of 32,768 rows in mixed precision in one
process, NVIDIA published 14.8 million rows/s on one A100-80 and 6.7 million rows/s on one V100-32
(DeepLearningExamples, DLRM for PyTorch, inference performance). Our target on an H200 is 30 million rows/s.
scoring_in_spark.py measures the job score_rows.

The batches are already on the GPU. `bf16_compiled` compiles the part of the model after the lookups.
`int8_bf16` stores tables in int8. With --quick, tables have at most a million rows. Without a GPU, shapes are
tiny and nothing is measured.
"""

from __future__ import annotations

import sys
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
from benchmarks.gpu.setting import ROOT, Setting, read_setting
from benchmarks.report import summary_line, table
from benchmarks.steps import alternate
from conf.types import ModelConfig
from training.data.batch import Batch
from training.embeddings.scoring_tables import to_int8
from training.loop.forward import DensePart
from training.models import build_model

PUBLISHED = {"a100": 14.8e6, "v100": 6.7e6}
AIM = 30e6
BATCH = 32_768

Score = Callable[[Batch], Tensor]


def main(arguments: Sequence[str] | None = None) -> int:
    setting = read_setting(__doc__, arguments)
    if setting.measures:
        setting = replace(setting, batch=BATCH)
    of_machine = setting.machine()
    speeds = in_process(setting)
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
        halved = torch.autocast(setting.device.type, torch.bfloat16) if "bf16" in name else nullcontext()
        with halved:
            vectors = model.embed(batch.categorical)
            logits: Tensor = part(batch.dense, *vectors)
        return torch.sigmoid(logits.float())

    return score


def model_of(setting: Setting) -> ModelConfig:
    """Returns the configuration of the published model, or that of a small DLRM if there is no GPU."""
    sections = yaml.safe_load((ROOT / "conf/models/dlrm_criteo.yaml").read_text(encoding="utf-8"))
    if not setting.measures:
        sections |= {"embedding_dim": setting.dim, "bottom_mlp": [16, setting.dim], "top_mlp": [16]}
    return ModelConfig.model_validate(sections)


def ratios_of(setting: Setting, speeds: dict[str, dict[str, float]]) -> dict[str, float | None]:
    """Returns our best rate divided by each published figure and by the target; None without a GPU."""
    best = max(figures["samples_per_s"] for figures in speeds.values())
    ratios = {name: best / published for name, published in {**PUBLISHED, "aim": AIM}.items()}
    return {name: ratio if setting.measures else None for name, ratio in ratios.items()}


if __name__ == "__main__":
    sys.exit(main())
