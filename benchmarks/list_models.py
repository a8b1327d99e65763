r"""Compares models of the product with each other, and blends of each with sources, on logs of choices.

    .venv/bin/python benchmarks/list_models.py --data FOLDER --model sasrec=model.architecture=sasrec \\
        --model hstu=model.architecture=hstu [--seeds N] [--keep FOLDER] [--set KEY=VALUE …]

Logs, splits and full ranking are those of benchmarks/lists.py. A MODEL has a name and overrides of the configuration,
separated by `;`. `--only shop` takes the events of the generated web shop (benchmarks/shop_log.py) as choices. For each
model and seed, nightly runs once. The script measures these lists:

* `NAME`: the k items that the champion scores best. NDCG@10 is measured on the test items, and on the validation items with
  histories that end before them.
* `NAME, published`: the lists of the run. They differ from `NAME` if the configuration has `score.blend: auto`, which
  learns from the validation items how to combine the champion with the sources of candidates. The second column has the
  contender that was chosen in each run.

Figures are means over seeds. Intervals are 95% bootstrap intervals of the difference to the first model, resampled by user.
The first model and its settings are the default if no other one is better on the validation items.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.list_logs import Log, find_beauty, find_movielens, read_choices, shop_choices
from benchmarks.list_measures import Lists, Matrix, gains, paired_interval, top
from benchmarks.list_ours import run_nightly
from benchmarks.list_parts import PRODUCT, Parts, Peer, code_digest, task_digest
from benchmarks.list_task import Task, make_task, published_lists
from benchmarks.report import machine, summary_line, table
from conf.load import load_config
from scoring.evaluation.features_before_test import rows_before_test
from scoring.model.champion import champion_and_dataset
from scoring.model.context_features import encoded_context
from scoring.model.predictor import load_predictor
from scoring.ranking.pair_scorer import PairScorer
from scoring.ranking.pairs import read_items, side_of
from setup.console import cache_folder
from storage.feature_spec import USER_KEY
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths
from storage.run_context import RunContext
from training.registry.blends import blend_of

K = 10
GENERIC_DATE = "2000-01-01"  # the run date of a log of choices that is one table


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--data", type=Path, help="folder of MovieLens 100k and Amazon Beauty")
    parser.add_argument("--only", action="append", default=[], help="movielens, beauty or shop")
    parser.add_argument(
        "--model", action="append", required=True, metavar="NAME=KEY=VALUE;…", help="a model to compare"
    )
    parser.add_argument(
        "--config",
        type=Path,
        help="configuration that reads the choices of each log, such as benchmarks/lists.yaml (default: that of lists.py)",
    )
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default %(default)s)")
    parser.add_argument(
        "--keep", type=Path, help="folder of finished runs, from which a stopped run continues"
    )
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="as --set of nightly")
    options = parser.parse_args(arguments)
    logs: list[Log] = []
    if options.data and (movielens := find_movielens(options.data)) is not None:
        logs.append(movielens)
    if options.data and (beauty := find_beauty(options.data)) is not None:
        logs.append(read_choices(beauty, 5))
    if "shop" in options.only:
        logs.append(shop_choices(cache_folder() / "benchmarks/shop"))
    logs = [log for log in logs if not options.only or log.name in options.only]
    if options.config:  # it reads the choices alone
        generic = {"config": options.config.resolve(), "run_date": GENERIC_DATE, "overrides": ()}
        logs = [replace(log, **generic) for log in logs]
    if not logs:
        parser.error(f"--data={options.data} has no log of {options.only or ['movielens', 'beauty']}")
    models = [text.partition("=")[::2] for text in options.model]
    figures = {}
    for log in logs:
        task, parts = make_task(log.rows), Parts(options.keep)
        runs = {
            name: run_model(log, task, [*options.overrides, *changes.split(";")], options.seeds, name, parts)
            for name, changes in models
        }
        figures[log.name] = compare(runs, task)
    of_machine = machine(torch.get_num_threads(), ("torch", "numpy"))
    first = models[0][0]
    of_first = {name: of.pop(first) for name, of in figures.items()}
    print(
        summary_line(
            "list_models", of_machine, of_first, figures, {}, models=options.model, seeds=options.seeds
        )
    )
    return 0


def run_model(
    log: Log, task: Task, changes: Sequence[str], seeds: int, name: str, parts: Parts
) -> list[Peer]:
    """Returns the lists of each seed: the champion's of the test, the published ones, the champion's of validation."""
    settings = [f"score.k={K}", *(change for change in changes if change)]
    decides = {
        "task": task_digest(task),
        "code": code_digest(PRODUCT),
        "config": log.config.read_text(),
        "settings": settings,
    }
    peers = []
    for seed in range(seeds):
        of_seed = [*settings, f"train.seed={seed}"]

        def run(of_seed: Sequence[str] = of_seed) -> Peer:
            started = time.monotonic()
            lists, facts = run_nightly(log, of_seed, lambda lake, log: lists_of_run(lake, log, task, of_seed))
            return Peer(lists, facts={**facts, "seconds": round(time.monotonic() - started, 1)})

        peers.append(parts.part(f"{log.name}-{name}-{seed}", {**decides, "seed": seed}, run))
    return peers


def lists_of_run(
    lake: LakePaths, log: Log, task: Task, settings: Sequence[str]
) -> tuple[list[Lists], dict[str, Any]]:
    """Returns three lists (U, K), as in `run_model`, and facts about a finished run of nightly."""
    config = load_config(str(log.config), [*log.overrides, *settings, f"lake={lake.root}"])
    context = RunContext("lists", config, log.run_date, in_process=True)
    model, dataset = champion_and_dataset(context)
    partition = lake.users(dataset.workflow_version).partition(log.run_date)
    files = data_files(partition, read_manifest(partition))
    of_test = pa.concat_tables(pq.read_table(file, partitioning=None) for file in files)
    of_validation = rows_before_test(context, dataset, model.spec, "user", before="validation")
    assert isinstance(of_validation, pa.Table)
    record = blend_of(lake, config.name, log.run_date)
    facts: dict[str, Any] = {"ranked_by": "model", "validation_ndcg": None}
    if record is not None:
        ndcg_of = {contender["name"]: contender["ndcg"] for contender in record.contenders}
        facts = {
            "ranked_by": record.chosen,
            "validation_ndcg": ndcg_of.get(record.chosen),
            "contenders": ndcg_of,
        }
    lists = [
        champions_lists(context, task, of_test, task.excluded),
        published_lists(lake, task, log.run_date, K),
        champions_lists(context, task, of_validation, task.rated),
    ]
    return lists, facts


def champions_lists(context: RunContext, task: Task, users: pa.Table, excluded: Any) -> Lists:
    """Returns the K items of each user that the champion scores best, (U, K), with -1 where there are fewer.

    Args:
        context: the context of the run.
        task: the task.
        users: rows with user_key and the features of users.
        excluded: (U, I), not 0 where the item must not be in the user's list.
    """
    model, dataset = champion_and_dataset(context)
    published = context.lake.candidate_items(dataset.workflow_version).partition(context.run_date)
    predictor = load_predictor(model.request(context.config.score), None, torch.get_num_threads())
    of_context = encoded_context(context, model)
    items = read_items(data_files(published, read_manifest(published)), predictor, of_context)
    item_of = pd.Index(items.keys.to_pylist()).get_indexer(task.items)  # -1 if not a candidate
    user_of = pd.Index(users.column(USER_KEY).to_pylist()).get_indexer(task.users)
    names = [USER_KEY, *(feature.name for feature in predictor.spec.scoped("user"))]
    users = users.select(names)
    scorer = PairScorer(predictor, items.side.to(predictor.device))

    def scores_of(block: slice) -> Matrix:
        known = np.flatnonzero(user_of[block] >= 0)
        scores = np.full((len(user_of[block]), len(item_of)), -np.inf)
        rows = users.take(pa.array(user_of[block][known]))
        side = side_of(rows, predictor.spec, predictor.multi_hot, "user").to(predictor.device)
        of_known = scorer.consecutive_logits(scorer.user_parts(side), slice(0, len(items.keys))).cpu().numpy()
        scores[known] = np.where(item_of < 0, -np.inf, of_known[:, item_of.clip(0)])
        return scores

    return top(scores_of, excluded, K)


def compare(runs: dict[str, list[Peer]], task: Task) -> dict[str, Any]:
    """Prints the table of a log, and returns its figures by model."""
    validation = np.where(task.warm, task.validation, -1)
    kinds = {"": 0, ", published": 1}
    means = {
        f"{name}{kind}": np.mean([gains(run.lists[place], task.warm_test) for run in of], axis=0)
        for name, of in runs.items()
        for kind, place in kinds.items()
    }
    first = means[next(iter(means))]
    figures: dict[str, Any] = {}
    rows = []
    for name, of in runs.items():
        of_champion = [float(gains(run.lists[2], validation)[:, 1].mean()) for run in of]
        of_published = [run.facts["validation_ndcg"] for run in of]
        seconds = [run.facts["seconds"] for run in of]
        for kind, place in kinds.items():
            mean = means[f"{name}{kind}"]
            hit_rate, ndcg, _ = mean.mean(0).tolist()
            seeds = [float(gains(run.lists[place], task.warm_test)[:, 1].mean()) for run in of]
            on_validation = [
                champion_figure if place == 0 or published_figure is None else published_figure
                for champion_figure, published_figure in zip(of_champion, of_published, strict=True)
            ]
            ranked_by = [run.facts["ranked_by"] for run in of] if place else []
            low, high = paired_interval(mean[:, 1], first[:, 1])
            figures[f"{name}{kind}"] = {
                "hit_rate": hit_rate,
                "ndcg": ndcg,
                "ndcg_by_seed": seeds,
                "validation_ndcg_by_seed": on_validation,
                "minus_first": [low, high],
                "ranked_by": ranked_by,
                "seconds": seconds,
            }
            error = float(mean[:, 0].std() / np.sqrt(len(mean)))
            rows.append(
                [
                    f"{name}{kind}",
                    " ".join(ranked_by),
                    f"{np.mean(on_validation):.4f}",
                    f"{hit_rate:.4f} ({error:.4f})",
                    f"{ndcg:.4f}",
                    " ".join(f"{one:.4f}" for one in seeds),
                    "" if mean is first else f"{low:+.4f} to {high:+.4f}",
                    f"{np.mean(seconds):.0f}",
                ]
            )
    head = [
        "lists",
        "ranked by",
        "validation NDCG@10",
        "HR@10",
        "NDCG@10",
        "by seed",
        "− first, 95%",
        "seconds",
    ]
    print(f"\n{len(first)} warm users, {len(task.items)} items\n{table(head, rows)}", flush=True)
    return figures


if __name__ == "__main__":
    sys.exit(main())
