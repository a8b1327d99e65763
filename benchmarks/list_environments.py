"""Peers of benchmarks/lists.py that are libraries, in environments of their own below the cache folder.

A script of benchmarks/peers runs the models of an environment. It reads the task's matrices from a folder, tunes a model on the
validation items, and writes the lists of the test into the folder.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, save_npz

from benchmarks.list_measures import Lists
from benchmarks.list_parts import PEERS, Parts, Peer, code_digest, task_digest
from benchmarks.list_samples import SAMPLES
from benchmarks.list_task import Task, popular_lists, popular_samples
from setup.console import SetupError
from setup.locked_environment import is_installed, locked_environment

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class LibraryModel:
    """A model of a library.

    Attributes:
        name: its name among the contenders and for the script.
        environment: name of its environment, and of the environment's lock file in requirements/.
        check: Python statement that must succeed in the environment.
        script: script of benchmarks/peers that runs the model.
        uses_history: whether the model computes scores from a history.
        uses_torch: whether the script needs the torch of our environment.
        threads: number of threads of the script's matrix products.
    """

    name: str
    environment: str
    check: str
    script: str
    uses_history: bool = True
    uses_torch: bool = False
    threads: int = 1

    @property
    def lock(self) -> Path:
        """Returns the lock file of the environment."""
        return ROOT / f"requirements/{self.environment}.txt"

    def arguments(self) -> list[str]:
        """Returns further arguments of the script: the model, and the folder of the torch that we import."""
        if not self.uses_torch:
            return ["--models", self.name]
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.origin is None:
            raise SetupError("torch is not installed in this environment; run make setup")
        return ["--models", self.name, "--torch", str(Path(spec.origin).resolve().parents[1])]


def _implicit(name: str, *, uses_history: bool) -> LibraryModel:
    return LibraryModel(name, "benchmark-lists", "import implicit", "implicit_models.py", uses_history)


def _neural(name: str) -> LibraryModel:
    threads = len(os.sched_getaffinity(0))
    check = "import lightning_utilities, texttable"
    return LibraryModel(name, "benchmark-neural", check, "neural_models.py", uses_torch=True, threads=threads)


MODELS = (
    _implicit("als", uses_history=True),
    _implicit("bpr", uses_history=False),
    *map(_neural, ("mult_vae", "slim", "sasrec_replay", "bert4rec_replay")),
)


def run_environments(
    task: Task, k: int, seeds: int, log: str, parts: Parts, *, quick: bool
) -> dict[str, Peer]:
    """Returns the models of libraries by name. With `quick`, one setting of each is tried, and nothing is installed."""
    decides = {"task": task_digest(task), "code": code_digest(PEERS), "k": k, "seeds": seeds, "quick": quick}
    peers: dict[str, Peer] = {}
    for model in MODELS:

        def run(model: LibraryModel = model) -> Peer:
            if quick and not is_installed(model.environment, model.lock):
                raise SetupError(f"{model.lock.name} is not installed; a run without --quick installs it")
            python = locked_environment(model.environment, model.lock, model.check) / "bin/python"
            return _run(model, python, task, k, seeds, quick=quick)

        try:
            peers[model.name] = parts.part(f"{log}-{model.name}", decides, run)
        except SetupError as error:
            print(f"lists: {error}", file=sys.stderr)
            peers[model.name] = Peer(facts={"reason": str(error)})
    return peers


def _run(model: LibraryModel, python: Path, task: Task, k: int, seeds: int, *, quick: bool) -> Peer:
    """Runs the script of a model and returns its lists."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_task(task, folder)
        command = [str(python), str(ROOT / "benchmarks/peers" / model.script), str(folder)]
        command += ["--seeds", str(seeds), "--k", str(k), *(["--quick"] if quick else [])]
        command += model.arguments()
        threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), str(model.threads))
        environment = {**os.environ, **threads, "PYTHONPATH": ""}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        facts = json.loads(done.stdout.splitlines()[-1])[model.name]
        with np.load(folder / "lists.npz") as stored:
            found = {name: stored[name] for name in stored}
    if "reason" in facts:  # the script did not run the model
        return Peer(facts=facts)

    def lists_of(name: str, history: csr_matrix) -> list[Lists]:
        return [with_popular(found[f"{name}_{seed}"], history, task) for seed in range(seeds)]

    history = task.history if model.uses_history else task.train
    popular = popular_samples(task, k)
    samples = {
        protocol: [
            where_known(found[f"{model.name}_{protocol}_{seed}"], history, popular[protocol])
            for seed in range(seeds)
        ]
        for protocol in SAMPLES
    }
    train_lists = lists_of(f"{model.name}_train", task.train) if model.uses_history else []
    return Peer(lists_of(model.name, history), train_lists, facts, samples)


def write_task(task: Task, folder: Path) -> None:
    """Writes what the scripts of benchmarks/peers read."""
    for matrix in ("train", "history", "rated", "excluded"):
        save_npz(folder / f"{matrix}.npz", getattr(task, matrix))
    for array in ("validation", "sequence", "starts"):
        np.save(folder / f"{array}.npy", getattr(task, array))
    np.savez(folder / "samples.npz", **task.samples)


def with_popular(lists: Lists, history: Any, task: Task) -> Lists:
    """Returns the lists, with the most popular items for users about whom a peer knows no choice.

    Args:
        lists: (U, k).
        history: (U, I), the choices from which the peer computed them.
        task: the task.
    """
    return where_known(lists, history, popular_lists(task, lists.shape[1]))


def where_known(lists: Lists, history: Any, popular: Lists) -> Lists:
    """Returns the lists, with the rows of `popular` for users without a choice in `history`; shapes (U, k)."""
    unknown = np.diff(history.indptr) == 0
    return np.where(unknown[:, None], popular, lists)
