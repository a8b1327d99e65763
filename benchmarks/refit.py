"""Measures how much a refit improves the lists of the next day: a champion against its refit (train.refit).

    .venv/bin/python benchmarks/refit.py [--quick] [--seeds N] [--set a.b=c …]

The log is that of conf/datasets/generated.yaml. Its last day is not in the dataset of the run date, so neither
of the two models was trained on it. Nightrank's jobs run in one Spark session. For each seed, they train a
model on the train split, promote it, and refit it on the train, validation and test splits. Both models then
make the lists of the run date, which are compared with the clicks of the next day, and score the rows of the
next day. The log is the same for all seeds.

Ratios are figures of the refit divided by those of its champion: HR@k and NDCG@k of the lists, and the share
(AUC - 0.5) / (best AUC - 0.5) on the rows of the next day.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import metrics
from benchmarks.report import machine, summary_line, table
from conf.load import load_config
from jobs.stages.build_candidates import run as build_candidates
from jobs.stages.build_features import run as build_features
from jobs.stages.evaluate_model import run as evaluate_model
from jobs.stages.generate_clicks import run as generate_clicks
from jobs.stages.measure_recommendations import run as measure_recommendations
from jobs.stages.refit_model import run as refit_model
from jobs.stages.score_daily import run as score_daily
from jobs.stages.score_rows import run as score_rows
from jobs.stages.train_model import run as train_model
from spark.properties import read_properties
from spark.session import build_session
from storage.job_summary import JobSummary
from storage.manifest import data_files, is_published, read_manifest
from storage.paths import Lake, Partition
from storage.run_context import RunContext

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "conf/datasets/generated.yaml"
CACHE = Path.home() / ".cache/nightrank/benchmarks/refit"
FIRST, RUN_DATE, NEXT_DAY = "2026-01-01", "2026-01-08", "2026-01-09"
QUICK_ROWS = 15_000
MODELS = ("champion", "refit")
FIGURES = ("hit_rate", "ndcg", "auc_share", "auc", "log_loss")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} rows per day instead of 60,000")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each model (default 1)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        help="change a configuration key, as --set of a job does",
    )
    options = parser.parse_args(arguments)
    lake = Lake(str(CACHE / ("quick" if options.quick else "full")))
    settings = [f"lake={lake.root}", "generate.days=9", "train.baselines=[]", "gate.lists_users=null"]
    settings += [f"generate.rows_per_day={QUICK_ROWS}"] if options.quick else []
    jobs = Jobs([*settings, *options.overrides])
    try:
        prepare(jobs, lake)
        seeds = [measure_seed(jobs, lake, seed) for seed in range(options.seeds)]
    finally:
        jobs.stop()
    means = {
        model: {name: statistics.mean(of[model][name] for of in seeds) for name in FIGURES}
        for model in MODELS
    }
    print(table(["model", "HR@k", "NDCG@k", "share of best AUC", "AUC", "log loss"], _rows(means)))
    ratios = {name: means["refit"][name] / means["champion"][name] for name in FIGURES[:3]}
    more = {"quick": options.quick, "seeds": seeds, "overrides": options.overrides}
    peers = {"champion": means["champion"]}
    print(summary_line("refit", machine(2, ("torch", "pyspark")), means["refit"], peers, ratios, **more))
    return 0


class Jobs:
    """Runs jobs on the generated log in one Spark session.

    Args:
        settings: the `--set` values of every job.
    """

    def __init__(self, settings: Sequence[str]) -> None:
        self._settings = settings
        self._spark: SparkSession | None = None

    def run(
        self, body: Callable[[RunContext], JobSummary], run_date: str = RUN_DATE, *settings: str
    ) -> JobSummary:
        """Runs one job with further settings."""
        if self._spark is None:
            self._spark = build_session("refit", read_properties(ROOT / "conf/spark/local.conf"))
        name = body.__module__.rpartition(".")[2]
        print(f"refit: {name} {run_date} {' '.join(settings)} …", file=sys.stderr, flush=True)
        config = load_config(str(CONFIG), [*self._settings, *settings])
        return body(RunContext(name, config, run_date, _spark=self._spark))

    def stop(self) -> None:
        """Stops the session."""
        if self._spark is not None:
            self._spark.stop()


def prepare(jobs: Jobs, lake: Lake) -> None:
    """Generates the log and builds the features of the run date, if they do not exist. Deletes old models."""
    shutil.rmtree(f"{lake.root}/models", ignore_errors=True)
    if not is_published(lake.datasets.partition(RUN_DATE)):
        jobs.run(generate_clicks, FIRST)
        jobs.run(build_features, RUN_DATE, "workflow.mode=retrain")


def measure_seed(jobs: Jobs, lake: Lake, seed: int) -> dict[str, dict[str, float]]:
    """Trains a champion and its refit with one seed. Returns the figures of both.

    A champion of another seed does not matter: the gate of a date compares with champions of earlier dates.
    """
    jobs.run(train_model, RUN_DATE, f"train.seed={seed}")
    evaluated = jobs.run(evaluate_model, RUN_DATE, f"train.seed={seed}")
    if not evaluated.facts["promoted"]:
        raise SystemExit(f"the gate did not promote the model of seed {seed}: {evaluated.facts['reason']}")
    jobs.run(refit_model, RUN_DATE, f"train.seed={seed}", "train.refit=true")
    if seed == 0:
        jobs.run(build_candidates, RUN_DATE)
        jobs.run(build_features, NEXT_DAY, "workflow.mode=apply")
    figures = {}
    for model in MODELS:
        setting = f"train.refit={str(model == 'refit').lower()}"
        jobs.run(score_daily, RUN_DATE, setting)
        lists = jobs.run(measure_recommendations, RUN_DATE, setting).facts
        made_by = read_manifest(lake.recommendations.partition(RUN_DATE)).facts
        jobs.run(score_rows, NEXT_DAY, setting)
        scores = read_manifest(lake.scores.partition(NEXT_DAY)).facts
        if scores["model_version"] != made_by["model_version"] or ("refit_of" in made_by) != (
            model == "refit"
        ):
            raise SystemExit(f"lists and rows of the {model} were not made by the {model}")
        figures[model] = {
            "hit_rate": lists["hit_rate"],
            "ndcg": lists["ndcg"],
            **row_figures(lake, scores["workflow_version"]),
        }
        print(f"refit: seed {seed}, {model}: {figures[model]}", file=sys.stderr, flush=True)
    return figures


def row_figures(lake: Lake, workflow_version: str) -> dict[str, float]:
    """Returns AUC, share of the best AUC, and log loss of the published probabilities of the next day."""
    rows = _columns(lake.features(workflow_version).partition(NEXT_DAY), ["row_id", "label"])
    scores = _columns(lake.scores.partition(NEXT_DAY), ["row_id", "probability"])
    order, places = np.argsort(rows["row_id"]), np.argsort(scores["row_id"])
    if not np.array_equal(rows["row_id"][order], scores["row_id"][places]):
        raise SystemExit("the scored rows are not the rows of the next day")
    labels, probabilities = rows["label"][order], scores["probability"][places]
    auc = metrics.auc(labels, probabilities)
    best = float(read_manifest(lake.raw.partition(NEXT_DAY)).facts["best_auc"])
    return {
        "auc": float(auc),
        "auc_share": float((auc - 0.5) / (best - 0.5)),
        "log_loss": float(metrics.log_loss(labels, probabilities)),
    }


def _columns(partition: Partition, names: list[str]) -> dict[str, np.ndarray]:
    """Returns columns of a published partition as arrays, (N,)."""
    files = data_files(partition, read_manifest(partition))
    rows = pa.concat_tables(pq.read_table(path, columns=names, partitioning=None) for path in files)
    return {name: rows.column(name).to_numpy() for name in names}


def _rows(means: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    return [[model, *(f"{of[name]:.4f}" for name in FIGURES)] for model, of in means.items()]


if __name__ == "__main__":
    sys.exit(main())
