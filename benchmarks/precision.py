"""Measures how bf16 and fp16 change scoring and training on the generated log, compared with float32.

    .venv/bin/python benchmarks/precision.py [--quick] [--seeds N]

The log and the DLRM are those of benchmarks/quality.py. The DLRM is trained in float32 with several seeds.
First, the weights of the first seed score the test day in float32, bf16 and fp16. The script prints the
change of the AUC and the mean change of a probability. Both changes must be less than 2e-4, the limit that
NVIDIA gives for its own recommenders. Second, the DLRM is trained in each precision with the first seed. Its
test AUC may differ from the AUC of the float32 run with this seed by at most two standard deviations
of the AUC over all seeds.
Each ratio is the limit divided by the change. A ratio of at least 1 means that the target is met.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.quality import CONFIG, RUN_DATE, prepare
from benchmarks.report import machine, summary_line, table
from conf.load import load_config
from metrics import auc
from storage.dataset import read_dataset
from storage.paths import LakePaths
from training.checkpoints import load_model
from training.data.loader import Loader
from training.data.sharding import plan_shards, row_groups
from training.device import Precision, mixed_precision
from training.loop.run import train_in_process
from training.loop.training_plan import TrainPlan, make_plan

CPU = torch.device("cpu")
HALVES: tuple[Precision, ...] = ("bf16", "fp16")
PRECISIONS: tuple[Precision, ...] = ("fp32", *HALVES)
BAR = 2e-4
BATCH_ROWS = 8_192


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="15,000 rows per day instead of 60,000")
    parser.add_argument("--seeds", type=int, default=5, help="training runs in float32 (default 5)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    lake = prepare(options.quick)
    plans = [plan_of(lake, seed, "fp32") for seed in range(options.seeds)]
    aucs = [trained_auc(plan) for plan in plans]
    deviation = statistics.stdev(aucs)
    scored = {precision: scores(plans[0], precision) for precision in PRECISIONS}
    labels, full = scored["fp32"]
    changes: dict[str, dict[str, float]] = {}
    for half in HALVES:
        probabilities = scored[half][1]
        changes[half] = {
            "auc_change": abs(auc(labels, probabilities) - auc(labels, full)),
            "probability_change": float((probabilities - full).abs().mean()),
            "largest_change": float((probabilities - full).abs().max()),
            "trained_auc_change": abs(trained_auc(plan_of(lake, 0, half)) - aucs[0]),
        }
    columns = ("auc_change", "probability_change", "largest_change", "trained_auc_change")
    rows = [[name, *(f"{figures[column]:.2e}" for column in columns)] for name, figures in changes.items()]
    print(table(["precision", "AUC", "probability, mean", "probability, most", "AUC if trained in it"], rows))
    print(
        f"\nfloat32: AUC {aucs[0]:.4f}; the standard deviation over {len(aucs)} seeds is {deviation:.2e}; "
        f"the limits are {BAR:g}, and two standard deviations for training"
    )
    bars = {"auc_change": BAR, "probability_change": BAR, "trained_auc_change": 2 * deviation}
    ratios = {
        f"{column}_{half}": bar / max(changes[half][column], 1e-12)
        for column, bar in bars.items()
        for half in HALVES
    }
    for name, ratio in ratios.items():
        print(f"{name}: {'met' if ratio >= 1 else 'MISSED'}")
    ours = {**changes, "auc": aucs[0], "seed_deviation": deviation}
    print(
        summary_line(
            "precision", machine(1, ("torch",)), ours, {}, ratios, quick=options.quick, rows=len(full)
        )
    )
    return 0


def plan_of(lake: LakePaths, seed: int, precision: str) -> TrainPlan:
    settings = [
        f"lake={lake.root}",
        "model=../models/dlrm_small.yaml",
        "train.num_ranks=1",
        "train.baselines=[]",
        f"train.seed={seed}",
        f"train.precision={precision}",
    ]
    return make_plan(load_config(str(CONFIG), settings), lake, read_dataset(lake, RUN_DATE))


def trained_auc(plan: TrainPlan) -> float:
    """Trains the model of the plan and returns its test AUC, measured in float32 as train_model does."""
    outcome: dict[str, Any] = train_in_process(plan)
    area = float(outcome["metrics"]["test"]["auc"])
    print(
        f"precision: {plan.train.precision}, seed {plan.train.seed}: {area:.5f}", file=sys.stderr, flush=True
    )
    return area


@torch.no_grad()
def scores(plan: TrainPlan, precision: Precision) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores the test split with a model in a precision.

    Returns:
        The labels and the probabilities, in the order of the rows of the split's files.
    """
    loaded = load_model(plan.model_path, CPU)
    files = plan.splits["test"]
    shards = plan_shards([group.rows for group in row_groups(files)], 1, BATCH_ROWS)
    loader = Loader(files, shards, [0], plan.spec, None, loaded.multi_hot)
    labels, probabilities = [], []
    for batch in loader.batches():
        real = batch.weights > 0
        with mixed_precision(precision, CPU):
            logits = loaded.model(batch.dense, batch.categorical)
        labels.append(batch.labels[real])
        probabilities.append(torch.sigmoid(logits.float())[real])
    return torch.cat(labels), torch.cat(probabilities)


if __name__ == "__main__":
    sys.exit(main())
