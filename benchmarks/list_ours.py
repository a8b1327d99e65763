"""Our lists of benchmarks/lists.py: runs nightly on a log, or reads the lists of a finished run."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.list_logs import Log, write_choices
from benchmarks.list_measures import Lists
from benchmarks.list_parts import PRODUCT, Parts, Peer, code_digest, task_digest
from benchmarks.list_task import Task, published_lists, require_published
from storage.paths import Lake

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path.home() / ".cache/nightrank/benchmarks/lists"


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
            lists = our_lists(log, task, of_seed, k)
            return Peer([lists], facts={"night_seconds": round(time.monotonic() - started, 1)})

        runs.append(parts.part(f"{log.name}-ours-{seed}", {**decides, "seed": seed}, run))
    seconds = sum(one.facts["night_seconds"] for one in runs) / seeds
    return Peer([one.lists[0] for one in runs], facts={"night_seconds": round(seconds, 1)})


def our_lists(log: Log, task: Task, settings: Sequence[str], k: int) -> Lists:
    """Runs the whole chain of the product in a new lake, and returns the lists that it published."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        lake = Lake(f"{folder}/lake")
        raw = log if log.overrides else replace(write_choices(log, Path(folder) / "raw"), config=log.config)
        command = [sys.executable, str(ROOT / "jobs/nightly.py"), "--config", str(raw.config), "--retrain"]
        command += ["--run-date", raw.run_date]
        for override in (*raw.overrides, f"lake={lake.root}", *settings):
            command += ["--set", override]
        print(f"lists: nightly on {log.name}, {settings[-1]} …", file=sys.stderr, flush=True)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
        return measured_lists(lake, log, task, k)


def measured_lists(lake: Lake, log: Log, task: Task, k: int) -> Lists:
    """Returns the lists that the product published; exits if it published other measures of them."""
    lists = published_lists(lake, task, log.run_date, k)
    require_published(lake, task, log.run_date, lists)
    return lists
