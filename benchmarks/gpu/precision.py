"""Measures how training DLRM in 16 bits on one GPU changes the AUC, compared with float32.

    .venv/bin/python benchmarks/gpu/precision.py [--quick]

It needs only torch. Rows are drawn in memory: whether a row is a click depends on vectors of its ids that the
model does not know, so the best AUC is that of the true probabilities. The model of conf/models/dlrm_small.yaml
is trained in float32 with several seeds, and with the first seed in TF32, bf16, fp16, in bf16 with tables in
bf16, and in bf16 recorded as a CUDA graph. A ratio is two standard deviations of the AUC over seeds, divided by
the change of the AUC: at least 1 if the change is no larger. Without a GPU, shapes are tiny, and nothing is
measured.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import yaml
from torch import Tensor

from benchmarks.criteo_shapes import spec_of
from benchmarks.gpu.setting import ROOT, Setting, read_setting
from benchmarks.report import summary_line, table
from conf.types import ModelConfig, Train
from metrics import auc
from training.collectives import LocalCollectives
from training.data.batch import Batch
from training.embeddings.table import set_kernels
from training.loop.train_step import Trainer
from training.models import build_model

CARDINALITIES = [1_000, 300, 100, 50, 20, 10]
HIDDEN = 4  # numbers of the true vectors

# Contender -> settings of the training, and of the model.
CONTENDERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tf32": ({"precision": "tf32"}, {}),
    "bf16": ({"precision": "bf16"}, {}),
    "fp16": ({"precision": "fp16"}, {}),
    "bf16_tables": ({"precision": "bf16"}, {"embedding_storage": "bf16"}),
    "bf16_graphs": ({"precision": "bf16", "cuda_graphs": True}, {}),
}


def main(arguments: Sequence[str] | None = None) -> int:
    setting = read_setting(__doc__, arguments)
    of_machine = setting.machine()
    rows, steps, seeds = (8_192, 400, 5) if setting.measures else (64, 3, 2)
    cardinalities = CARDINALITIES if setting.measures else [20, 10, 5]
    log = Log(cardinalities, setting.device)
    aucs = [trained_auc(setting, log, seed, rows, steps, {}, {}) for seed in range(seeds)]
    contenders = {name: it for name, it in CONTENDERS.items() if setting.measures or "graphs" not in name}
    changed = {
        name: trained_auc(setting, log, 0, rows, steps, train, model)
        for name, (train, model) in contenders.items()
    }
    limit = 2 * statistics.stdev(aucs)
    best = log.best_auc(rows)
    print(setting.heading())
    lines = [
        [name, f"{value:.5f}", f"{value - aucs[0]:+.5f}"]
        for name, value in {"fp32": aucs[0], **changed}.items()
    ]
    print(table(["training", "AUC", "change"], lines))
    print(f"best possible AUC {best:.5f}; two standard deviations over {seeds} seeds: {limit:.5f}")
    ratios: dict[str, float | None] = dict.fromkeys(contenders)
    if setting.measures:
        ratios |= {name: limit / max(abs(value - aucs[0]), 1e-9) for name, value in changed.items()}
    ours = {"fp32": aucs[0], **changed, "limit": limit, "best": best}
    print(summary_line("gpu_precision", of_machine, ours, {}, ratios, measures=setting.measures))
    return 0


class Log:
    """Draws rows whose clicks depend on products of hidden vectors of their ids.

    Args:
        cardinalities: number of ids of each feature.
        device: the device of the rows.
    """

    def __init__(self, cardinalities: Sequence[int], device: torch.device) -> None:
        generator = torch.Generator().manual_seed(11)
        self.cardinalities = list(cardinalities)
        self._device = device
        self._vectors = [torch.randn(count, HIDDEN, generator=generator) for count in cardinalities]

    def draw(self, rows: int, seed: int) -> tuple[Batch, Tensor]:
        """Returns a batch, and the true probabilities of its rows on the CPU."""
        generator = torch.Generator().manual_seed(seed)
        dense = torch.randn(rows, 13, generator=generator)
        # Squares of uniform numbers: small ids are frequent.
        ids = torch.stack(
            [
                (torch.rand(rows, generator=generator).square() * count).long().clamp(max=count - 1)
                for count in self.cardinalities
            ],
            dim=1,
        )
        vectors = torch.stack(
            [hidden[column] for hidden, column in zip(self._vectors, ids.T, strict=True)], dim=1
        )
        products = vectors.sum(dim=1).square().sum(dim=1) - vectors.square().sum(dim=(1, 2))
        truth = torch.sigmoid(0.25 * products + 0.3 * dense[:, 0] - 1)
        labels = (torch.rand(rows, generator=generator) < truth).float()
        return Batch(dense, ids, labels, torch.ones(rows), rows).to(self._device), truth

    def best_auc(self, rows: int) -> float:
        """Returns the AUC of the true probabilities on the held-out rows."""
        scores, labels = [], []
        for batch, truth in held_out(self, rows):
            scores.append(truth)
            labels.append(batch.labels.cpu())
        return _auc(labels, scores)


def held_out(log: Log, rows: int) -> list[tuple[Batch, Tensor]]:
    """Returns batches that are not used for training."""
    return [log.draw(rows, 1_000_000 + number) for number in range(8)]


def trained_auc(
    setting: Setting, log: Log, seed: int, rows: int, steps: int, train: dict[str, Any], model: dict[str, Any]
) -> float:
    """Trains a model, and returns its AUC on the held-out rows."""
    settings = yaml.safe_load((ROOT / "conf/models/dlrm_small.yaml").read_text(encoding="utf-8"))
    config = ModelConfig.model_validate({**settings, **model})
    built = build_model(config, spec_of(log.cardinalities), seed).to(setting.device).train()
    if not setting.measures:
        set_kernels(built, False)  # Triton's interpreter has no product of bf16
    options = {"num_ranks": 1, "global_batch_size": rows, "embedding_learning_rate": 0.05, **train}
    trainer = Trainer(built, Train.model_validate(options), LocalCollectives())
    for step in range(steps):
        trainer.step(log.draw(rows, seed * 10_000 + step)[0], 1.0)
    built.eval()
    scores, labels = [], []
    with torch.no_grad():
        for batch, _ in held_out(log, rows):
            scores.append(torch.sigmoid(built(batch.dense, batch.categorical)).cpu())
            labels.append(batch.labels.cpu())
    return _auc(labels, scores)


def _auc(labels: Sequence[Tensor], scores: Sequence[Tensor]) -> float:
    value = auc(torch.cat(list(labels)).numpy(), torch.cat(list(scores)).numpy())
    assert value is not None
    return value


if __name__ == "__main__":
    sys.exit(main())
