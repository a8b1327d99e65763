"""Peers of benchmarks/lists.py: tunes them on the validation items and makes their lists for the test."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import save_npz

from benchmarks.list_measures import Lists, gains, top
from benchmarks.list_task import Task, popular_lists
from benchmarks.peers.ease import ease_weights
from benchmarks.peers.item_knn import item_knn_weights
from setup.console import SetupError
from setup.locked_environment import is_installed, locked_environment

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements/benchmark-lists.txt"
PENALTIES = (10.0, 30.0, 100.0, 200.0, 300.0, 500.0, 1000.0, 2000.0)
NEIGHBOURS = tuple(itertools.product((5, 10, 20, 50), (0.0, 10.0)))
# EASE inverts a matrix of (items, items) doubles: 20,000 items take 3.2 GB per copy.
EASE_ITEMS = 20_000


@dataclass(frozen=True)
class Peer:
    """The lists of a peer.

    Attributes:
        lists: (U, k) for each seed; one for a peer without random numbers. Empty if the peer did not run.
        train_lists: the same, computed from histories without the validation item; empty if it uses no history.
        facts: the setting and its NDCG on the validation items, or the reason why the peer did not run.
    """

    lists: list[Lists] = field(default_factory=list)
    train_lists: list[Lists] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


def run_peers(task: Task, k: int, seeds: int, *, quick: bool) -> dict[str, Peer]:
    """Returns all peers by name. With `quick`, only one setting of each is tried."""
    knn = _tuned(
        NEIGHBOURS[:1] if quick else NEIGHBOURS,
        lambda setting: item_knn_weights(task.train, *setting),
        task,
        k,
    )
    if len(task.items) > EASE_ITEMS:
        ease = Peer(facts={"reason": f"EASE needs too much memory for more than {EASE_ITEMS} items"})
    else:
        penalties = PENALTIES[2:3] if quick else PENALTIES
        ease = _tuned(penalties, lambda penalty: ease_weights(task.train, penalty), task, k)
    popular = Peer([popular_lists(task, k)])
    peers = {"most_popular": popular, "item_knn": knn, "ease": ease}
    return peers | _implicit(task, k, seeds, quick=quick)


def _tuned(grid: Sequence[Any], weights_of: Callable[[Any], Any], task: Task, k: int) -> Peer:
    """Returns the test lists of a model with item weights, with the best setting on the validation items."""
    best, best_ndcg, best_weights = grid[0], -1.0, None
    for setting in grid:
        weights = weights_of(setting)
        found = _lists_of(task.train, weights, task.rated, k)
        ndcg = float(gains(found, task.validation)[:, 1].mean())
        print(f"lists: {setting}: validation {ndcg:.4f}", file=sys.stderr, flush=True)
        if ndcg > best_ndcg:
            best, best_ndcg, best_weights = setting, ndcg, weights
    lists, train_lists = (
        with_popular(_lists_of(history, best_weights, task.excluded, k), history, task)
        for history in (task.history, task.train)
    )
    facts = {"setting": best, "settings_tried": len(grid), "validation_ndcg": best_ndcg}
    return Peer([lists], [train_lists], facts)


def _lists_of(history: Any, weights: Any, excluded: Any, k: int) -> Lists:
    def scores_of(users: slice) -> Any:
        scores = history[users] @ weights
        return scores if isinstance(scores, np.ndarray) else scores.toarray()

    return top(scores_of, excluded, k)


def with_popular(lists: Lists, history: Any, task: Task) -> Lists:
    """Returns the lists, with the most popular items for users about whom a peer knows no choice.

    Args:
        lists: (U, k).
        history: (U, I), the choices from which the peer computed them.
        task: the task.
    """
    unknown = np.diff(history.indptr) == 0
    return np.where(unknown[:, None], popular_lists(task, lists.shape[1]), lists)


def _implicit(task: Task, k: int, seeds: int, *, quick: bool) -> dict[str, Peer]:
    """Returns ALS and BPR of the library implicit, or the reason why they did not run."""
    try:
        if quick and not is_installed("benchmark-lists", LOCK):
            raise SetupError("implicit is not installed; a run without --quick installs it")
        python = locked_environment("benchmark-lists", LOCK, "import implicit") / "bin/python"
    except SetupError as error:
        print(f"lists: {error}", file=sys.stderr)
        return {name: Peer(facts={"reason": str(error)}) for name in ("als", "bpr")}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for matrix in ("train", "history", "rated", "excluded"):
            save_npz(folder / f"{matrix}.npz", getattr(task, matrix))
        np.save(folder / "validation.npy", task.validation)
        command = [str(python), str(ROOT / "benchmarks/peers/implicit_models.py"), str(folder)]
        command += ["--seeds", str(seeds), "--k", str(k), *(["--quick"] if quick else [])]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ""}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        facts = json.loads(done.stdout.splitlines()[-1])
        with np.load(folder / "lists.npz") as stored:
            found = {name: stored[name] for name in stored}

    def lists_of(name: str, history: Any) -> list[Lists]:
        return [with_popular(found[f"{name}_{seed}"], history, task) for seed in range(seeds)]

    return {
        "als": Peer(lists_of("als", task.history), lists_of("als_train", task.train), facts["als"]),
        "bpr": Peer(lists_of("bpr", task.train), facts=facts["bpr"]),
    }
