"""Measures how many samples per second one GPU processes in complete training steps of DLRM.

    .venv/bin/python benchmarks/gpu/training_step.py [--quick]

Our rate is compared with figures that NVIDIA published. Network and batches are those of the published runs:
conf/models/dlrm_criteo.yaml, 65,536 rows per batch, and the cardinalities of Criteo's terabyte log if values
with fewer than 15 occurrences share an id. Batches are already on the GPU. For one A100-80 in mixed precision, NVIDIA published
4.02 million samples/s (DeepLearningExamples, PyTorch) and 4.55 million (TensorFlow 2). Our target on an H200
is 12 million samples/s.

The contender `plain_bf16` is benchmarks/peers/plain_dlrm.py on the same GPU. With --quick, tables have at
most a million rows. Without a GPU, shapes are tiny and nothing is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import yaml

from benchmarks.criteo_shapes import NUM_DENSE, make_batches, spec_of
from benchmarks.gpu.setting import ROOT, Setting, read_setting
from benchmarks.peers.plain_dlrm import PlainDLRM, PlainStep
from benchmarks.report import summary_line, table
from benchmarks.steps import Step, alternate
from conf.types import ModelConfig, Train
from training.collectives import LocalCollectives
from training.loop.train_step import Trainer
from training.models import build_model

PUBLISHED = {"a100_pytorch": 4.02e6, "a100_tensorflow2": 4.55e6}
AIM = 12e6


def main(arguments: Sequence[str] | None = None) -> int:
    setting = read_setting(__doc__, arguments)
    of_machine = setting.machine()
    model = model_of(setting)
    batches = [batch.to(setting.device) for batch in make_batches(4, setting.batch, setting.cardinalities)]
    speeds: dict[str, dict[str, float]] = {}
    for name in contenders_of(setting):  # one at a time: the tables take 16 GiB
        step = make(name, setting, model)
        warm_up = 5 if setting.measures else 1
        speeds |= alternate(
            {name: step},
            batches,
            warm_up=warm_up,
            steps=setting.steps,
            turns=setting.turns,
            device=setting.device,
        )
        del step
        if setting.measures:
            torch.cuda.empty_cache()
    _print(setting, speeds)
    ours = {name: figures for name, figures in speeds.items() if name.startswith("ours")}
    peers = {name: figures for name, figures in speeds.items() if name not in ours}
    print(
        summary_line(
            "gpu_training_step", of_machine, ours, peers, ratios_of(setting, speeds), published=PUBLISHED
        )
    )
    return 0


def contenders_of(setting: Setting) -> dict[str, dict[str, Any]]:
    """Returns a dict that maps each contender to its training settings.

    On a CPU, where nothing is measured, slow or unsupported contenders are left out.
    """
    if not setting.measures:  # Triton's interpreter has no bf16 product either
        return {"ours_tf32": {"precision": "tf32"}, "plain_bf16": {}}
    return {
        "ours_bf16": {"precision": "bf16", "compile": True},
        "ours_bf16_graphs": {"precision": "bf16", "cuda_graphs": True},
        "ours_bf16_compiled_graphs": {"precision": "bf16", "compile": True, "cuda_graphs": True},
        "ours_tf32": {"precision": "tf32", "compile": True},
        "plain_bf16": {},
    }


def model_of(setting: Setting) -> ModelConfig:
    """Returns the configuration of the published model, or that of a small DLRM if there is no GPU."""
    sections = yaml.safe_load((ROOT / "conf/models/dlrm_criteo.yaml").read_text(encoding="utf-8"))
    if not setting.measures:
        sections |= {"embedding_dim": setting.dim, "bottom_mlp": [16, setting.dim], "top_mlp": [16]}
    return ModelConfig.model_validate(sections)


def make(name: str, setting: Setting, model: ModelConfig) -> Step:
    train = Train.model_validate(
        {
            "num_ranks": 1,
            "num_shards": 1,
            "global_batch_size": setting.batch,
            **contenders_of(setting)[name],
        }
    )
    if name.startswith("plain"):
        settings = model.settings
        shape = (setting.cardinalities, setting.dim, settings["bottom_mlp"], settings["top_mlp"])
        rates = (train.learning_rate, train.embedding_learning_rate)
        with torch.device(setting.device):
            plain = PlainDLRM(NUM_DENSE, *shape)
        return PlainStep(plain, setting.device, "bf16", "sgd", *rates)
    with torch.device(setting.device):  # draws the 16 GiB of rows directly on the device
        built = build_model(model, spec_of(setting.cardinalities))
    trainer = Trainer(built.to(setting.device), train, LocalCollectives())
    built.train()
    return lambda batch: trainer.step(batch, 1.0)


def ratios_of(setting: Setting, speeds: dict[str, dict[str, float]]) -> dict[str, float | None]:
    """Returns our best rate, divided by each published figure, our target and the rate of the peer.

    All ratios are null if nothing is measured.
    """
    best = max(figures["samples_per_s"] for name, figures in speeds.items() if name.startswith("ours"))
    peers = {**PUBLISHED, "aim": AIM, "plain_bf16": speeds["plain_bf16"]["samples_per_s"]}
    return {name: best / peer_speed if setting.measures else None for name, peer_speed in peers.items()}


def _print(setting: Setting, speeds: dict[str, dict[str, float]]) -> None:
    print(setting.heading())
    keys = ("samples_per_s", "lowest", "highest")
    print(
        table(
            ["step", "samples/s", "lowest", "highest"],
            [[name, *(f"{figures[key]:,.0f}" for key in keys)] for name, figures in speeds.items()],
        )
    )
    for name, ratio in ratios_of(setting, speeds).items():
        if ratio is not None:
            print(f"{name}: {ratio:.2f}, {'met' if ratio >= 1 else 'MISSED'}")


if __name__ == "__main__":
    sys.exit(main())
