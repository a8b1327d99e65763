"""Peers of benchmarks/lists.py that are libraries, each group in an environment of its own below the cache folder.

A group is one script of benchmarks/peers. It reads the task's matrices from a folder, tunes its models on the validation items,
and writes the lists of the test into the folder.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, save_npz

from benchmarks.list_measures import Lists
from benchmarks.list_task import Task, popular_lists
from setup.console import SetupError
from setup.locked_environment import is_installed, locked_environment

ROOT = Path(__file__).resolve().parent.parent


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


@dataclass(frozen=True)
class Group:
    """Peers of one environment.

    Attributes:
        environment: name of the environment, and of its lock file in requirements/.
        check: Python statement that must succeed in the environment.
        script: script of benchmarks/peers that runs the models.
        models: the names of the models, with whether each computes scores from a history.
        uses_torch: whether the script needs the torch of our environment.
        threads: number of threads of the script's matrix products.
    """

    environment: str
    check: str
    script: str
    models: dict[str, bool]
    uses_torch: bool = False
    threads: int = 1

    @property
    def lock(self) -> Path:
        """Returns the lock file of the environment."""
        return ROOT / f"requirements/{self.environment}.txt"

    def arguments(self) -> list[str]:
        """Returns further arguments of the script. The folder of our torch is one that `import torch` would use."""
        if not self.uses_torch:
            return []
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.origin is None:
            raise SetupError("torch is not installed in this environment; run make setup")
        return ["--torch", str(Path(spec.origin).resolve().parents[1])]


GROUPS = (
    Group("benchmark-lists", "import implicit", "implicit_models.py", {"als": True, "bpr": False}),
    Group(
        "benchmark-neural",
        "import lightning_utilities, texttable",
        "neural_models.py",
        {"mult_vae": True, "slim": True, "sasrec_replay": True, "bert4rec_replay": True},
        uses_torch=True,
        threads=len(os.sched_getaffinity(0)),
    ),
)


def run_environments(task: Task, k: int, seeds: int, *, quick: bool) -> dict[str, Peer]:
    """Returns the peers of all groups by name. With `quick`, one setting of each is tried, and nothing is installed."""
    peers: dict[str, Peer] = {}
    for group in GROUPS:
        try:
            if quick and not is_installed(group.environment, group.lock):
                raise SetupError(f"{group.lock.name} is not installed; a run without --quick installs it")
            python = locked_environment(group.environment, group.lock, group.check) / "bin/python"
            peers |= _run(group, python, task, k, seeds, quick=quick)
        except SetupError as error:
            print(f"lists: {error}", file=sys.stderr)
            peers |= {name: Peer(facts={"reason": str(error)}) for name in group.models}
    return peers


def _run(group: Group, python: Path, task: Task, k: int, seeds: int, *, quick: bool) -> dict[str, Peer]:
    """Runs the script of a group and returns its peers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_task(task, folder)
        command = [str(python), str(ROOT / "benchmarks/peers" / group.script), str(folder)]
        command += ["--seeds", str(seeds), "--k", str(k), *(["--quick"] if quick else [])]
        command += group.arguments()
        threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), str(group.threads))
        environment = {**os.environ, **threads, "PYTHONPATH": ""}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        facts = json.loads(done.stdout.splitlines()[-1])
        with np.load(folder / "lists.npz") as stored:
            found = {name: stored[name] for name in stored}

    def lists_of(name: str, history: csr_matrix) -> list[Lists]:
        return [with_popular(found[f"{name}_{seed}"], history, task) for seed in range(seeds)]

    def peer(name: str, uses_history: bool) -> Peer:
        if "reason" in facts[name]:  # the script did not run this model
            return Peer(facts=facts[name])
        if not uses_history:
            return Peer(lists_of(name, task.train), facts=facts[name])
        return Peer(lists_of(name, task.history), lists_of(f"{name}_train", task.train), facts[name])

    return {name: peer(name, uses_history) for name, uses_history in group.models.items()}


def write_task(task: Task, folder: Path) -> None:
    """Writes what the scripts of benchmarks/peers read."""
    for matrix in ("train", "history", "rated", "excluded"):
        save_npz(folder / f"{matrix}.npz", getattr(task, matrix))
    for array in ("validation", "sequence", "starts"):
        np.save(folder / f"{array}.npy", getattr(task, array))


def with_popular(lists: Lists, history: Any, task: Task) -> Lists:
    """Returns the lists, with the most popular items for users about whom a peer knows no choice.

    Args:
        lists: (U, k).
        history: (U, I), the choices from which the peer computed them.
        task: the task.
    """
    unknown = np.diff(history.indptr) == 0
    return np.where(unknown[:, None], popular_lists(task, lists.shape[1]), lists)
