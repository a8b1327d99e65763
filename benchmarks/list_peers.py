"""Peers of benchmarks/lists.py: tunes them on the validation items and makes their lists for the test."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.list_environments import run_environments, where_known, with_popular
from benchmarks.list_measures import Lists, gains, top
from benchmarks.list_parts import PEERS, Parts, Peer, code_digest, task_digest
from benchmarks.list_samples import best_samples
from benchmarks.list_task import Task, popular_lists, popular_samples
from benchmarks.peers.ease import ease_weights
from benchmarks.peers.item_knn import item_knn_weights

PENALTIES = (10.0, 30.0, 100.0, 200.0, 300.0, 500.0, 1000.0, 2000.0)
NEIGHBOURS = tuple(itertools.product((5, 10, 20, 50), (0.0, 10.0)))
# EASE inverts a matrix of (items, items) doubles: 20,000 items take 3.2 GB per copy.
EASE_ITEMS = 20_000


def run_peers(task: Task, k: int, seeds: int, log: str, parts: Parts, *, quick: bool) -> dict[str, Peer]:
    """Returns all peers by name. With `quick`, only one setting of each is tried.

    Args:
        task: the choices and the held-out items.
        k: items per list.
        seeds: number of seeds of a peer with random numbers.
        log: name of the log.
        parts: keeps the lists of each peer, so that an interrupted run can continue.
        quick: whether only one setting of each peer is tried.
    """
    decides = {"task": task_digest(task), "code": code_digest(PEERS), "k": k, "quick": quick}
    samples = {protocol: [lists] for protocol, lists in popular_samples(task, k).items()}
    peers = {"most_popular": Peer([popular_lists(task, k)], samples=samples)}
    for name, compute in (("item_knn", _item_knn), ("ease", _ease)):
        peers[name] = parts.part(f"{log}-{name}", decides, functools.partial(compute, task, k, quick=quick))
    return peers | run_environments(task, k, seeds, log, parts, quick=quick)


def _item_knn(task: Task, k: int, *, quick: bool) -> Peer:
    settings = NEIGHBOURS[:1] if quick else NEIGHBOURS
    return _tuned(settings, lambda setting: item_knn_weights(task.train, *setting), task, k)


def _ease(task: Task, k: int, *, quick: bool) -> Peer:
    if len(task.items) > EASE_ITEMS:
        return Peer(facts={"reason": f"EASE needs too much memory for more than {EASE_ITEMS} items"})
    penalties = PENALTIES[2:3] if quick else PENALTIES
    return _tuned(penalties, lambda penalty: ease_weights(task.train, penalty), task, k)


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
    popular, scores = popular_samples(task, k), _scores(task.history, best_weights)
    samples = {
        protocol: [where_known(best_samples(scores, drawn, k), task.history, popular[protocol])]
        for protocol, drawn in task.samples.items()
    }
    return Peer([lists], [train_lists], facts, samples)


def _lists_of(history: Any, weights: Any, excluded: Any, k: int) -> Lists:
    return top(_scores(history, weights), excluded, k)


def _scores(history: Any, weights: Any) -> Callable[[slice], Any]:
    """Returns a function that computes the scores (u, I) of a range of users."""

    def scores_of(users: slice) -> Any:
        scores = history[users] @ weights
        return scores if isinstance(scores, np.ndarray) else scores.toarray()

    return scores_of
