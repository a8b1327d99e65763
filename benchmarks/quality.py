"""Measures how close the AUC of each model on the generated log is to the best possible AUC.

    .venv/bin/python benchmarks/quality.py [--quick] [--seeds N] [--models NAME …] [--set a.b=c …]

The log is that of conf/datasets/generated.yaml. Its generator knows the click probability of each row, and
therefore the best AUC that a model can reach on a day. The share of a model is (its AUC - 0.5) / (best AUC -
0.5). The script prints the share on the test day and on the validation day.

Nightrank's jobs generate and encode the log once, in the cache folder. Each model is then trained on one rank
in this process, with the settings in PRESETS. These settings were chosen by the results on the validation
day. The targets apply to the share on the test day: at least 0.9 for models that combine features with each
other, and below 0.8 for logistic regression, which cannot do this. The script runs no peers.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.report import machine, summary_line, table
from conf.load import load_config
from storage.dataset import Dataset, read_dataset
from storage.manifest import is_published, read_manifest
from storage.paths import LakePaths
from training.loop.run import train_in_process
from training.loop.training_plan import make_plan

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "conf/datasets/generated.yaml"
CACHE = Path.home() / ".cache/nightrank/benchmarks/quality"
FIRST, RUN_DATE = "2026-01-01", "2026-01-08"
QUICK_ROWS = 15_000
TARGET, BASELINE_LIMIT = 0.9, 0.8


@dataclass(frozen=True)
class Preset:
    """The settings with which a model is trained.

    Attributes:
        model: the value of --set that selects the file of the model.
        train: the values of --set for the training.
        at_least: True if the target is a lower bound of the share, False if it is an upper bound.
    """

    model: str
    train: tuple[str, ...] = ()
    at_least: bool = True


PRESETS: Mapping[str, Preset] = {
    "dlrm": Preset("model=../models/dlrm_small.yaml"),
    "dcn_v2": Preset("model=../models/dcn_v2_small.yaml", ("train.global_batch_size=1024", "train.epochs=2")),
    "wide_and_deep": Preset(
        "model=../models/wide_and_deep_generated.yaml", ("train.global_batch_size=1024",)
    ),
    "deepfm": Preset(
        "model=../models/deepfm_small.yaml",
        (
            "train.global_batch_size=1024",
            "train.epochs=3",
            "train.embedding_learning_rate=0.03",
            "train.l2=0.0002",
        ),
    ),
    "logistic_regression": Preset("model={architecture: logistic_regression}", at_least=False),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} rows per day instead of 60,000")
    parser.add_argument("--seeds", type=int, default=1, help="training runs of each model (default 1)")
    parser.add_argument(
        "--models", nargs="+", default=list(PRESETS), choices=list(PRESETS), help="default: all"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        help="change a configuration key, as --set of train_model does",
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    lake = prepare(options.quick)
    results = {name: measure(lake, name, options.seeds, options.overrides) for name in options.models}
    print(table(["model", "test share", "validation share", "test AUC", "seconds", "target"], _rows(results)))
    ratios = {name: result["test_share"] for name, result in results.items()}
    more = {"quick": options.quick, "seeds": options.seeds, "overrides": options.overrides}
    print(summary_line("quality", machine(1, ("torch",)), results, {}, ratios, **more))
    return 0


def prepare(quick: bool) -> LakePaths:
    """Returns the lake (the folder of all tables) with the log and its features.

    If log or features do not exist, Nightrank's jobs make them.
    """
    lake = LakePaths(str(CACHE / ("quick" if quick else "full")))
    if is_published(lake.datasets.partition(RUN_DATE)):
        return lake
    settings = [f"lake={lake.root}", "generate.days=8"]
    settings += [f"generate.rows_per_day={QUICK_ROWS}"] if quick else []
    for job, run_date in (("generate_clicks", FIRST), ("build_features", RUN_DATE)):
        print(f"quality: {job} …", file=sys.stderr, flush=True)
        command = [
            sys.executable,
            str(ROOT / f"jobs/{job}.py"),
            "--config",
            str(CONFIG),
            "--run-date",
            run_date,
        ]
        for setting in settings:
            command += ["--set", setting]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    return lake


def measure(lake: LakePaths, name: str, seeds: int, overrides: Sequence[str]) -> dict[str, Any]:
    """Trains a model with several seeds and measures its AUC.

    Returns:
        The means of the figures over the seeds, and the share on the test day for each seed.
    """
    preset, dataset = PRESETS[name], read_dataset(lake, RUN_DATE)
    best = {split: best_auc(lake, dataset, split) for split in ("validation", "test")}
    runs = []
    for seed in range(seeds):
        settings = [
            f"lake={lake.root}",
            preset.model,
            *preset.train,
            "train.num_ranks=1",
            "train.baselines=[]",
        ]
        config = load_config(str(CONFIG), [*settings, f"train.seed={seed}", *overrides])
        runs.append(train_in_process(make_plan(config, lake, dataset)))
        print(
            f"quality: {name}, seed {seed}: {runs[-1]['metrics']['test']['auc']:.4f}",
            file=sys.stderr,
            flush=True,
        )
    shares = {
        split: [(run["metrics"][split]["auc"] - 0.5) / (best[split] - 0.5) for run in runs] for split in best
    }
    return {
        "test_share": statistics.mean(shares["test"]),
        "validation_share": statistics.mean(shares["validation"]),
        "test_auc": statistics.mean(run["metrics"]["test"]["auc"] for run in runs),
        "best_auc": best["test"],
        "test_shares": [round(share, 4) for share in shares["test"]],
        "seconds": statistics.mean(run["seconds"] for run in runs),
    }


def best_auc(lake: LakePaths, dataset: Dataset, split: str) -> float:
    """Returns the best AUC that a model can reach on a split (`validation` or `test`), which is one day."""
    (member,) = dataset.splits[split]
    return float(read_manifest(lake.raw.partition(member.dt)).facts["best_auc"])


def target_of(name: str, share: float) -> str:
    """Returns the target of a model as text, and whether this share meets it."""
    if PRESETS[name].at_least:
        return f"at least {TARGET}: {'met' if share >= TARGET else 'MISSED'}"
    return f"below {BASELINE_LIMIT}: {'met' if share < BASELINE_LIMIT else 'MISSED'}"


def _rows(results: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    return [
        [
            name,
            f"{result['test_share']:.3f}",
            f"{result['validation_share']:.3f}",
            f"{result['test_auc']:.4f}",
            f"{result['seconds']:.0f}",
            target_of(name, result["test_share"]),
        ]
        for name, result in results.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
