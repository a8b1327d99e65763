"""Parts of benchmarks/lists.py that are kept in a folder, so that an interrupted run continues where it ended.

A part is the result of one contender, or of one seed of ours. A file of the folder has the result, and its name has a digest of
everything that decides the result: the task, the options and the code. A part of other options or other code is therefore
computed again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.list_measures import Lists
from benchmarks.list_samples import SAMPLES
from benchmarks.list_task import Task

ROOT = Path(__file__).resolve().parent.parent
# Patterns of the files that decide the lists of the peers, and ours.
PEERS = ("benchmarks/list_*.py", "benchmarks/peers/*.py", "requirements/benchmark-*.txt")
_FOLDERS = (
    "conf",
    "storage",
    "metrics",
    "spark",
    "device",
    "etl",
    "training",
    "scoring",
    "reporting",
    "jobs",
)
PRODUCT = ("benchmarks/list_*.py", "requirements/runtime.txt", *(f"{folder}/**/*" for folder in _FOLDERS))
_NOT_CODE = (".pyc", ".md")


@dataclass(frozen=True)
class Peer:
    """The lists of a contender.

    Attributes:
        lists: (U, k) for each seed; one for a contender without random numbers. Empty if the contender did not run.
        train_lists: the same, computed from histories without the validation item; empty if it uses no history.
        facts: the setting and its NDCG on the validation items, or the reason why the contender did not run.
        samples: maps the name of each sampled protocol (list_samples.py) to the lists (U, k) of each seed.
    """

    lists: list[Lists] = field(default_factory=list)
    train_lists: list[Lists] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    samples: dict[str, list[Lists]] = field(default_factory=dict)


@dataclass
class Parts:
    """The parts of a run.

    Attributes:
        folder: where finished parts are kept; None keeps nothing.
        read: the parts that were read from the folder instead of computed, by file name.
    """

    folder: Path | None = None
    read: list[str] = field(default_factory=list)

    def part(self, name: str, decides: Mapping[str, Any], compute: Callable[[], Peer]) -> Peer:
        """Returns the result of a part from the folder, or computes it and stores it there.

        A peer that could not run is not stored.

        Args:
            name: the name of the part, which begins the name of its file.
            decides: everything that decides the result, as JSON values.
            compute: computes the result.
        """
        if self.folder is None:
            return compute()
        digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
        file = self.folder / f"{name}-{digest[:16]}.npz"
        if file.exists():
            self.read.append(file.name)
            print(f"lists: {name} is taken from {file}", file=sys.stderr, flush=True)
            return _read(file)
        peer = compute()
        if peer.lists:
            _write(file, peer)
        return peer


def _write(file: Path, peer: Peer) -> None:
    arrays = {f"lists_{seed:03}": one for seed, one in enumerate(peer.lists)}
    arrays |= {f"train_{seed:03}": one for seed, one in enumerate(peer.train_lists)}
    for protocol, of_seeds in peer.samples.items():
        arrays |= {f"samples_{protocol}_{seed:03}": one for seed, one in enumerate(of_seeds)}
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(f".{os.getpid()}.tmp")
    with new.open("wb") as stream:
        np.savez(stream, facts=np.array(json.dumps(peer.facts)), **arrays)
    new.replace(file)  # a run that is killed leaves no half of a part


def _read(file: Path) -> Peer:
    with np.load(file) as stored:
        arrays = {name: stored[name] for name in sorted(stored)}
    facts = json.loads(str(arrays.pop("facts")))

    def of(kind: str) -> list[Lists]:
        return [array for name, array in arrays.items() if name.startswith(kind)]

    samples = {protocol: of(f"samples_{protocol}_") for protocol in SAMPLES}
    return Peer(of("lists_"), of("train_"), facts, {name: lists for name, lists in samples.items() if lists})


def code_digest(patterns: Iterable[str]) -> str:
    """Returns a digest of the files of the checkout that match the patterns."""
    digest = hashlib.sha256()
    files = {path for pattern in patterns for path in ROOT.glob(pattern)}
    for path in sorted(path for path in files if path.is_file() and path.suffix not in _NOT_CODE):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def task_digest(task: Task) -> str:
    """Returns a digest of the choices and of the held-out and excluded items of a task."""
    digest = hashlib.sha256()
    for keys in (task.users, task.items):
        digest.update("\0".join(keys).encode())
    for matrix in (task.train, task.history, task.rated, task.excluded):
        digest.update(matrix.indptr.tobytes() + matrix.indices.tobytes())
    for array in (task.validation, task.test, task.sequence, task.starts):
        digest.update(array.tobytes())
    return digest.hexdigest()
