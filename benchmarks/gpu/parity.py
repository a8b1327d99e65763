"""Checks that every architecture computes the same on one GPU as on a CPU, with and without kernels.

    .venv/bin/python benchmarks/gpu/parity.py [--quick]

Each architecture has the settings of a file in conf/models, and a few features of users, items and rows, with
lists. Some steps of training in float32 and the probabilities of other rows are compared with those of a CPU
that uses torch's operators. Dropout is off, because random numbers of a GPU are not those of a CPU. For the
same reason, BERT4Rec and Mult-VAE are trained, but compared only before the training.

A ratio is the tolerance divided by the largest difference: at least 1 if they agree. The script fails if an
architecture does not agree. Without a GPU, batches are small, and Triton's interpreter runs the kernels.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import yaml
from torch import Tensor, nn

from benchmarks.gpu.setting import ROOT, read_setting
from benchmarks.report import summary_line, table
from conf.types import ModelConfig, Train
from storage.feature_spec import Feature, FeatureSpec
from training.collectives import LocalCollectives
from training.data.batch import Batch
from training.embeddings.table import set_kernels
from training.loop.train_step import Trainer
from training.models import build_model

# Architecture -> file of conf/models.
PRESETS = {
    "logistic_regression": None,
    "dlrm": "dlrm_small",
    "dcn_v2": "dcn_v2_small",
    "deepfm": "deepfm_small",
    "wide_and_deep": "wide_and_deep_small",
    "neumf": "neumf",
    "two_tower": "two_tower_small",
    "din": "din_small",
    "sasrec": "sasrec",
    "hstu": "hstu",
    "bert4rec": "bert4rec",
    "mult_vae": "mult_vae",
}
DRAWS_IN_TRAINING = {"bert4rec", "mult_vae"}
LENGTH = 6
SPEC = FeatureSpec(
    (
        Feature("age", "dense", "float32", "user"),
        Feature("price", "dense", "float32", "item"),
        Feature("hour", "dense", "float32", "context"),
        Feature("user", "categorical", "int32", "user", 5_000),
        Feature("item_id", "categorical", "int32", "item", 800),
        Feature("device", "categorical", "int32", "context", 9),
        Feature("genres", "multi_hot", "list<int32>", "item", 60),
        Feature("history", "multi_hot", "list<int32>", "user", 800),
    ),
    ("row_id",),
    "parity",
)
# On a GPU, sums have another order, and matrix products of float32 may be fused.
TOLERANCE = 2e-3


def main(arguments: Sequence[str] | None = None) -> int:
    setting = read_setting(__doc__, arguments)
    of_machine = setting.machine()
    steps, rows = (5, 4_096) if setting.measures else (1, 12)
    ours: dict[str, dict[str, float]] = {}
    for name in PRESETS:
        model = built(name)
        batches = [batch_of(rows, seed) for seed in range(steps + 1)]
        # Without a GPU, the interpreter would also run the kernels of the reference, so it is told not to.
        expected = trained(copy.deepcopy(model), batches, torch.device("cpu"), with_kernels=False)
        ours[name] = {
            kind: difference(
                trained(copy.deepcopy(model), batches, setting.device, with_kernels=used), expected, name
            )
            for kind, used in (("kernels", True), ("torch", False))
        }
    print(setting.heading())
    lines = [[name, *(f"{value:.1e}" for value in values.values())] for name, values in ours.items()]
    print(table(["architecture", "difference with kernels", "with torch's operators"], lines))
    ratios = {name: TOLERANCE / max(*values.values(), 1e-12) for name, values in ours.items()}
    wrong = sorted(name for name, ratio in ratios.items() if ratio < 1)
    print(f"differ by more than {TOLERANCE}: {', '.join(wrong)}" if wrong else "all agree")
    shown = {name: round(ratio, 2) if setting.measures else None for name, ratio in ratios.items()}
    more = {"measures": setting.measures, "tolerance": TOLERANCE}
    print(summary_line("gpu_parity", of_machine, ours, {}, shown, **more))
    return 1 if wrong else 0


def built(name: str) -> nn.Module:
    """Returns a model of an architecture with fresh weights, on the CPU."""
    settings: dict[str, Any] = {"architecture": name}
    preset = PRESETS[name]
    if preset is not None:
        settings = yaml.safe_load((ROOT / f"conf/models/{preset}.yaml").read_text(encoding="utf-8"))
    if "dropout" in settings:
        settings["dropout"] = 0.0
    settings["multi_hot"] = {"max_length": LENGTH, "pooling": "mean"}
    return build_model(ModelConfig.model_validate(settings), SPEC, seed=3)


def batch_of(rows: int, seed: int) -> Batch:
    """Returns random rows on the CPU. Lists are of any length up to LENGTH."""
    generator = torch.Generator().manual_seed(seed)
    columns = []
    for feature in (*SPEC.categorical, *SPEC.multi_hot):
        width, first = (LENGTH, 1) if feature.kind == "multi_hot" else (1, 0)
        assert feature.cardinality is not None
        ids = torch.randint(first, feature.cardinality, (rows, width), generator=generator)
        if feature.kind == "multi_hot":
            lengths = torch.randint(0, LENGTH + 1, (rows, 1), generator=generator)
            ids[torch.arange(LENGTH) >= lengths] = 0
        columns.append(ids)
    dense = torch.randn(rows, len(SPEC.dense), generator=generator)
    labels = (torch.rand(rows, generator=generator) < 0.3).float()
    return Batch(dense, torch.cat(columns, dim=1), labels, torch.ones(rows), rows)


def trained(
    model: nn.Module, batches: Sequence[Batch], device: torch.device, *, with_kernels: bool
) -> dict[str, Tensor]:
    """Trains a model with all batches but the last. Returns losses and probabilities, on the CPU."""
    model = model.to(device)
    set_kernels(model, with_kernels)
    *to_train, held_out = batches
    fresh = probabilities(model, held_out.to(device))
    train = Train.model_validate({"num_ranks": 1, "num_shards": 1, "embedding_learning_rate": 0.02})
    trainer = Trainer(model.train(), train, LocalCollectives())
    losses = torch.stack([trainer.step(batch.to(device), 1.0) for batch in to_train])
    return {"fresh": fresh, "losses": losses.cpu(), "trained": probabilities(model, held_out.to(device))}


@torch.no_grad()
def probabilities(model: nn.Module, batch: Batch) -> Tensor:
    """Returns the probabilities (rows,) of a batch, on the CPU."""
    model.eval()
    return torch.sigmoid(model(batch.dense, batch.categorical)).cpu()


def difference(mine: dict[str, Tensor], expected: dict[str, Tensor], name: str) -> float:
    """Returns the largest difference of probabilities, and of losses relative to them.

    Raises:
        ValueError: a loss or a probability is not finite.
    """
    for kind, values in mine.items():
        if not bool(values.isfinite().all()):
            raise ValueError(f"{name}: {kind} has values that are not finite")
    kinds = ["fresh"] if name in DRAWS_IN_TRAINING else ["fresh", "trained"]
    largest = max(float((mine[kind] - expected[kind]).abs().max()) for kind in kinds)
    if name in DRAWS_IN_TRAINING:
        return largest
    losses = ((mine["losses"] - expected["losses"]).abs() / expected["losses"].abs()).max()
    return max(largest, float(losses))


if __name__ == "__main__":
    sys.exit(main())
