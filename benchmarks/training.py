"""Compares our training step with a plain DLRM, with a step without tables, and with steps on several ranks.

    .venv/bin/python benchmarks/training.py [--quick] [--batch ROWS] [--most-rows ROWS]
        [--precision fp32 bf16] [--no-ranks]

All ratios are ratios of samples per second, ours divided by those of the other contender:

* `plain_fp32`, `plain_bf16`: compared with benchmarks/peers/plain_dlrm.py with Adagrad, in the same
  precision. In bf16, our dense part is compiled, and the plain model runs under autocast. For
  `plain_sgd_fp32` and `plain_sgd_bf16`, the plain model uses SGD for its tables, which is less work than our
  optimizer.
* `dense_limit`, `dense_limit_bf16`: compared with our own step without embedding tables
  (benchmarks/dense_part.py). Except for noise, these ratios cannot exceed 1.
* `end_to_end`: a complete training run on one rank (Petastorm, loader, prefetch, step and Horovod), compared with
  the step of the same rank on batches in memory.
* `scaling_N`: N ranks compared with one rank, divided by N. Each rank has one thread. The global batch stays
  the same. `scaling_N_of_ceiling`: N ranks compared with N training runs without collectives on the same cores at
  the same time, each with its share of the batch. In the JSON line, `ours.ranks` has the share of a step's time
  that is spent on communication, and the bytes that a rank sends for each of its samples.

Contenders take turns in one process, with the same number of threads and the same batches
(benchmarks/steps.py). Ranks are Spark tasks.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # a file in this folder hides our package training

import torch
import yaml
from torch import Tensor

from benchmarks.criteo_shapes import NUM_DENSE, capped, make_batches, spec_of
from benchmarks.dense_part import without_tables
from benchmarks.peers.plain_dlrm import PlainDLRM, PlainStep
from benchmarks.report import machine, summary_line, table
from benchmarks.steps import Step, alternate
from conf.process import keep_freed_memory
from conf.types import ModelConfig, Train
from training.collectives import LocalCollectives
from training.data.batch import Batch
from training.loop.train_step import Trainer
from training.models import build_model

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path.home() / ".cache/nightrank/benchmarks/training"
TARGETS = {"plain_fp32": 1.05, "plain_bf16": 1.5, "end_to_end": 0.95, "scaling_2_of_ceiling": 0.95}
PRECISIONS = ("fp32", "bf16")
DEVICE = torch.device("cpu")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="small tables and batches, few steps")
    parser.add_argument("--batch", type=int, help="rows of the global batch (default 4096; quick: 512)")
    parser.add_argument("--most-rows", type=int, help="most rows of a table (default 200,000; quick: 5,000)")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--cores", type=int, default=2, help="threads of every contender (default 2)")
    parser.add_argument(
        "--no-ranks",
        action="store_true",
        help="do not measure training on ranks, which needs Horovod and Spark",
    )
    options = parser.parse_args(arguments)
    options.batch = options.batch or (512 if options.quick else 4096)
    options.most_rows = options.most_rows or (5_000 if options.quick else 200_000)
    options.steps, options.turns = (4, 3) if options.quick else (12, 7)
    of_machine = machine(options.cores, ("torch", "horovod", "petastorm", "pyspark"))
    torch.set_num_threads(options.cores)
    keep_freed_memory()  # as ranks do; the plain model benefits too
    model = dlrm()
    speeds = step_speeds(model, options)
    ranks = {} if options.no_ranks else rank_speeds(model, options)
    ratios = ratios_of(speeds, ranks)
    _print(speeds, ranks, ratios)
    ours = {name: figures for name, figures in speeds.items() if name.startswith("ours")}
    peers = {name: figures for name, figures in speeds.items() if name not in ours}
    more = {"batch": options.batch, "most_rows": options.most_rows, "targets": TARGETS}
    print(summary_line("training", of_machine, {"steps": ours, "ranks": ranks}, peers, ratios, **more))
    return 0


def dlrm() -> ModelConfig:
    """Returns the configuration of the published DLRM."""
    return ModelConfig.model_validate(yaml.safe_load((ROOT / "conf/models/dlrm_criteo.yaml").read_text()))


def train_settings(batch: int, precision: str, ranks: int = 1) -> Train:
    """Returns the training settings. With bf16, the layers after the lookups (dense part) are compiled."""
    reduced = {} if precision == "fp32" else {"precision": precision, "compile": True}
    return Train.model_validate({"num_ranks": ranks, "global_batch_size": batch, "device": "cpu", **reduced})


def step_speeds(model: ModelConfig, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Returns a dict that maps each contender to its samples per second.

    The precisions are measured one after the other, because the models of one precision need much memory.
    """
    cardinalities = capped(options.most_rows)
    batches = make_batches(4, options.batch, cardinalities)
    speeds: dict[str, dict[str, float]] = {}
    for precision in options.precision:
        print(f"training: {precision} …", file=sys.stderr, flush=True)
        contenders = _contenders(model, precision, options.batch, cardinalities)
        speeds |= alternate(
            contenders, batches, warm_up=3, steps=options.steps, turns=options.turns, device=DEVICE
        )
        del contenders
    return speeds


def _contenders(
    model: ModelConfig, precision: Literal["fp32", "bf16"], batch: int, cardinalities: Sequence[int]
) -> dict[str, Step]:
    train = train_settings(batch, precision)
    settings = model.settings
    shape = (NUM_DENSE, cardinalities, settings["embedding_dim"], settings["bottom_mlp"], settings["top_mlp"])
    rates = (train.learning_rate, train.embedding_learning_rate)
    ours = build_model(model, spec_of(cardinalities))
    limit = build_model(model, spec_of([4] * len(cardinalities)))
    fixed = without_tables(limit, batch, len(cardinalities), settings["embedding_dim"], DEVICE)
    dense_step = _step(Trainer(limit, train, LocalCollectives()))

    def dense_part(batch: Batch) -> Tensor:
        fixed.vectors.grad = None  # like a table after its update
        return dense_step(batch)

    contenders: dict[str, Step] = {
        f"ours_{precision}": _step(Trainer(ours, train, LocalCollectives())),
        f"plain_{precision}": PlainStep(PlainDLRM(*shape), DEVICE, precision, "adagrad", *rates),
        f"plain_sgd_{precision}": PlainStep(PlainDLRM(*shape), DEVICE, precision, "sgd", *rates),
        f"dense_part_{precision}": dense_part,
    }
    return contenders


def _step(trainer: Trainer) -> Step:
    trainer.model.train()
    return lambda batch: trainer.step(batch, 1.0)


def rank_speeds(model: ModelConfig, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Returns the figures of training runs on ranks, by the name of the run.

    The run `end_to_end` uses one rank with all cores. The run `ranks_N` uses N ranks with one thread each.
    """
    from benchmarks.training_files import write_files
    from benchmarks.training_ranks import Measurement, measure_on_ranks
    from spark.profile import read_properties
    from spark.session import build_session

    cardinalities = capped(options.most_rows)
    rows = options.batch * 64
    files = write_files(CACHE / f"{rows}-{options.most_rows}", rows, 4, cardinalities)
    settings = read_properties(ROOT / "conf/spark/local.conf")
    spark = build_session("benchmark", {**settings, "spark.master": f"local[{options.cores}]"})
    spark.sparkContext.setLogLevel("ERROR")
    counts = [count for count in (1, 2, 4, 8) if count <= options.cores]
    runs = {"end_to_end": (1, options.cores)}
    runs |= {f"ranks_{count}": (count, 1) for count in counts}
    runs |= {f"independent_{count}": (count, 1) for count in counts[1:]}
    speeds = {}
    try:
        for name, (ranks, threads) in runs.items():
            print(f"training: {name} …", file=sys.stderr, flush=True)
            train = train_settings(options.batch, "fp32", ranks)
            sizes = (threads, options.steps, options.turns)
            independent = name.startswith("independent")
            measurement = Measurement(model, train, cardinalities, files, *sizes, independent)
            speeds[name] = measure_on_ranks(spark, measurement)
    finally:
        spark.stop()
    return speeds


def ratios_of(
    speeds: Mapping[str, Mapping[str, float]], ranks: Mapping[str, Mapping[str, Any]]
) -> dict[str, float | None]:
    """Returns the ratios that the module's docstring describes. A ratio without both figures is None."""

    def ratio(ours: str, other: str) -> float | None:
        if ours not in speeds or other not in speeds:
            return None
        return speeds[ours]["samples_per_s"] / speeds[other]["samples_per_s"]

    ratios = {
        f"{plain}_{precision}": ratio(f"ours_{precision}", f"{plain}_{precision}")
        for plain in ("plain", "plain_sgd")
        for precision in PRECISIONS
    }
    ratios["dense_limit"] = ratio("ours_fp32", "dense_part_fp32")
    ratios["dense_limit_bf16"] = ratio("ours_bf16", "dense_part_bf16")
    ratios["bf16_over_plain_fp32"] = ratio("ours_bf16", "plain_fp32")
    one = ranks.get("end_to_end")
    ratios["end_to_end"] = one["end_to_end"] / one["step"] if one else None
    for name, figures in ranks.items():
        if name.startswith("ranks_") and name != "ranks_1":
            count = figures["ranks"]
            ratios[f"scaling_{count}"] = figures["step"] / ranks["ranks_1"]["step"] / count
            ratios[f"scaling_{count}_of_ceiling"] = figures["step"] / ranks[f"independent_{count}"]["step"]
    return ratios


def verdict(name: str, ratio: float | None) -> str:
    """Returns a line about one ratio and its target."""
    if ratio is None:
        return f"{name}: not measured"
    target = TARGETS.get(name)
    if target is None:
        return f"{name}: {ratio:.3f}"
    met = "met" if ratio >= target else "MISSED"
    wins = "" if ratio >= 1 or name == "end_to_end" else f" (the peer is {1 / ratio:.2f} times as fast)"
    return f"{name}: {ratio:.3f}{wins}, target {target}: {met}"


def _print(
    speeds: Mapping[str, Mapping[str, float]],
    ranks: Mapping[str, Mapping[str, Any]],
    ratios: Mapping[str, float | None],
) -> None:
    keys = ("samples_per_s", "lowest", "highest")
    rows = [[name, *(f"{figures[key]:,.0f}" for key in keys)] for name, figures in speeds.items()]
    print(table(["step", "samples/s", "lowest", "highest"], rows))
    if ranks:
        head = [
            "training",
            "threads each",
            "step",
            "end to end",
            "communication",
            "waits for the loader",
            "bytes reduced",
            "exchanged",
        ]
        print()
        print(
            table(
                head,
                [
                    [
                        name,
                        f"{figures['threads_a_rank']}",
                        f"{figures['step']:,.0f}",
                        f"{figures['end_to_end']:,.0f}",
                        f"{figures['communication_share']:.1%}",
                        f"{figures['loader_wait_share']:.1%}",
                        f"{figures['reduced_bytes']:,.0f}",
                        f"{figures['exchanged_bytes']:,.0f}",
                    ]
                    for name, figures in ranks.items()
                ],
            )
        )
    print()
    for name, ratio in ratios.items():
        print(verdict(name, ratio))


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
