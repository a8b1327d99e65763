"""Our lists of benchmarks/lists.py: runs nightly on a log, or reads the lists of a finished run.

The champion of the run also scores the items that the sampled protocols draw.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.list_logs import Log, write_choices
from benchmarks.list_measures import Lists
from benchmarks.list_parts import PRODUCT, Parts, Peer, code_digest, task_digest
from benchmarks.list_samples import SAMPLES, best_of_scores
from benchmarks.list_task import Task, published_lists, require_published
from conf.load import load_config
from conf.types import Config
from scoring.model.champion import serving_model_and_dataset
from scoring.model.context_features import encoded_context
from scoring.model.predictor import load_predictor
from scoring.ranking.pair_scorer import PairScorer
from scoring.ranking.pairs import read_items, side_of
from storage.feature_spec import USER_KEY
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths
from storage.run_context import RunContext

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path.home() / ".cache/nightrank/benchmarks/lists"

_USERS_AT_ONCE = 1024

T = TypeVar("T")


def run_ours(log: Log, task: Task, settings: Sequence[str], seeds: int, k: int, parts: Parts) -> Peer:
    """Returns our lists of each seed, and the mean seconds of a run of nightly."""
    decides = {
        "task": task_digest(task),
        "code": code_digest(PRODUCT),
        "config": log.config.read_text(),
        "settings": [*settings],
    }
    runs = []
    for seed in range(seeds):
        of_seed = [*settings, f"train.seed={seed}"]

        def run(of_seed: Sequence[str] = of_seed) -> Peer:
            started = time.monotonic()
            lists, samples = our_lists(log, task, of_seed, k)
            facts = {"night_seconds": round(time.monotonic() - started, 1)}
            return Peer([lists], facts=facts, samples={name: [one] for name, one in samples.items()})

        runs.append(parts.part(f"{log.name}-ours-{seed}", {**decides, "seed": seed}, run))
    seconds = sum(one.facts["night_seconds"] for one in runs) / seeds
    samples = {name: [one.samples[name][0] for one in runs] for name in SAMPLES}
    return Peer([one.lists[0] for one in runs], facts={"night_seconds": round(seconds, 1)}, samples=samples)


def our_lists(log: Log, task: Task, settings: Sequence[str], k: int) -> tuple[Lists, dict[str, Lists]]:
    """Runs the whole chain of the product in a new lake, and returns what `measured_lists` returns."""
    return run_nightly(log, settings, lambda lake, log: measured_lists(lake, log, task, settings, k))


def run_nightly(log: Log, settings: Sequence[str], measure: Callable[[LakePaths, Log], T]) -> T:
    """Runs the whole chain of the product in a new lake, and returns what `measure` returns for this lake.

    Args:
        log: the log.
        settings: overrides of its configuration; the last one says which run it is.
        measure: called with the lake and with the log that was read. The lake is deleted afterwards.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        lake = LakePaths(f"{folder}/lake")
        raw = log if log.overrides else replace(write_choices(log, Path(folder) / "raw"), config=log.config)
        command = [sys.executable, str(ROOT / "jobs/nightly.py"), "--config", str(raw.config), "--retrain"]
        command += ["--run-date", raw.run_date]
        for override in (*raw.overrides, f"lake={lake.root}", *settings):
            command += ["--set", override]
        print(f"lists: nightly on {log.name}, {settings[-1]} …", file=sys.stderr, flush=True)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
        return measure(lake, raw)


def lists_of_lakes(lakes: Sequence[str], log: Log, task: Task, settings: Sequence[str], k: int) -> Peer:
    """Returns the lists of finished runs of nightly, one per lake; the arguments are those of `measured_lists`."""
    runs = [measured_lists(LakePaths(lake), log, task, settings, k) for lake in lakes]
    samples = {name: [of_run[name] for _, of_run in runs] for name in SAMPLES}
    return Peer([lists for lists, _ in runs], samples=samples)


def measured_lists(
    lake: LakePaths, log: Log, task: Task, settings: Sequence[str], k: int
) -> tuple[Lists, dict[str, Lists]]:
    """Returns the lists that the product published, and its best samples of each protocol, (U, k) each.

    Exits if the product published other measures of its lists.

    Args:
        lake: the lake of a finished run of nightly.
        log: the log, with the configuration of the run.
        task: the task.
        settings: overrides of the configuration.
        k: items per list.
    """
    lists = published_lists(lake, task, log.run_date, k)
    require_published(lake, task, log.run_date, lists)
    config = load_config(str(log.config), [*log.overrides, *settings, f"lake={lake.root}"])
    return lists, our_samples(config, log.run_date, task.users, task.items, task.samples, k)


def our_samples(
    config: Config,
    run_date: str,
    user_keys: pd.Index,
    item_keys: pd.Index,
    samples: Mapping[str, Lists],
    k: int,
) -> dict[str, Lists]:
    """Returns the k samples of each user that the champion of a run date scores best, by protocol, (U, k) each.

    The pair scorer of score_daily computes the scores from the published users and items. A user who is not among
    them has an empty list, and an item that is not a candidate is in no list, as in the product's lists.

    Args:
        config: the configuration of the run.
        run_date: the date of the run.
        user_keys, item_keys: (U,) and (I,) the keys that the samples are numbered by.
        samples: maps the name of a protocol to items (U, C) in ascending order; -1 for no item.
        k: items per list.
    """
    context = RunContext("lists", config, run_date)
    model, dataset = serving_model_and_dataset(context)
    lake, version = context.lake, dataset.workflow_version
    published = lake.candidate_items(version).partition(run_date)
    predictor = load_predictor(model.request(config.score), None, torch.get_num_threads())
    of_context = encoded_context(context, model)
    items = read_items(data_files(published, read_manifest(published)), predictor, of_context)
    index_of_item = pd.Index(items.keys.to_pylist()).get_indexer(item_keys)  # -1 if not a candidate
    partition = lake.users(version).partition(run_date)
    names = [USER_KEY, *(feature.name for feature in predictor.spec.scoped("user"))]
    files = data_files(partition, read_manifest(partition))
    users = pa.concat_tables(pq.read_table(file, columns=names, partitioning=None) for file in files)
    row_of_user = pd.Index(users.column(USER_KEY).to_pylist()).get_indexer(user_keys)
    scorer = PairScorer(predictor, items.side.to(predictor.device))
    lists = {protocol: np.full((len(user_keys), k), -1, np.int64) for protocol in samples}
    known = np.flatnonzero(row_of_user >= 0)
    for first in range(0, len(known), _USERS_AT_ONCE):
        block = known[first : first + _USERS_AT_ONCE]
        side = side_of(users.take(pa.array(row_of_user[block])), predictor.spec, predictor.multi_hot, "user")
        parts = scorer.user_parts(side.to(predictor.device))
        which = torch.arange(len(block), device=predictor.device)
        for protocol, drawn in samples.items():
            index = np.where(drawn[block] < 0, -1, index_of_item[drawn[block].clip(0)])
            asked = torch.from_numpy(index.clip(0)).to(predictor.device)
            scores = scorer.list_logits(parts, which, asked).cpu().numpy()
            lists[protocol][block] = best_of_scores(scores, np.where(index < 0, -1, drawn[block]), k)
    return lists
