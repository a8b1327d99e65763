"""Measures how score_lists scales with users and candidates: its cost and its memory, each size in its own
process tree.

The claim is that seconds a pair and peak memory stay within 15% from one size to the next. `ratios` holds
both. The first size is small and includes the fixed cost of a run, which later sizes make negligible. Items
are the same for all sizes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Measured, measure, settle
from benchmarks.report import GIB, machine, summary_line, table
from benchmarks.scoring_bench import CACHE
from benchmarks.scoring_contenders import ROOT, lists, open_session, request_of
from benchmarks.scoring_world import Data, make_data, make_items, make_model, make_spec

WITHIN = 0.15
LIMIT_S = 3600.0


@dataclass(frozen=True)
class Task:
    """One size: the task of its process."""

    users: int
    candidates: int
    items: int
    most_rows: int
    cores: int

    @property
    def name(self) -> str:
        return f"{self.users}x{self.candidates}"

    def data(self, users: int) -> Data:
        spec = make_spec(self.most_rows)
        items = make_items(CACHE, spec, self.items)
        folder = CACHE / str(self.most_rows)
        return make_data(folder, spec, items, users, self.candidates, joined=False)


class SizeFailed(Exception):
    """The process of one size failed or passed its time limit."""


def scaling(options: argparse.Namespace) -> int:
    """Runs the mode --scaling of benchmarks/scoring.py, which prints a table and the summary line."""
    of_machine = machine(options.cores, ("torch", "pyspark", "pyarrow"))
    users, candidates = options.users, options.candidates // 2
    # The users grow first, then the candidates.
    sizes = (
        (users, candidates),
        (2 * users, candidates),
        (4 * users, candidates),
        (4 * users, 2 * candidates),
    )
    facts: dict[str, dict[str, Any]] = {}
    for size in sizes:
        task = Task(*size, options.items, options.most_rows, options.cores)
        print(f"scoring: {task.name} …", file=sys.stderr, flush=True)
        facts[task.name] = run_size(task)
    ratios = growth(facts)
    keys = ("seconds", "cpu_s", "microseconds_a_pair", "peak_rss_gib", "peak_pss_gib")
    head = ["users x candidates", "pairs", "seconds", "CPU s", "µs a pair", "peak RSS GiB", "peak PSS GiB"]
    rows = [
        [name, f"{figures['pairs']:,}", *(f"{figures[key]:.2f}" for key in keys)]
        for name, figures in facts.items()
    ]
    print(table(head, rows))
    print()
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.3f}{'' if ratio - 1 <= WITHIN else f', beyond {WITHIN:.0%}'}")
    print(summary_line("scoring_scaling", of_machine, {"sizes": facts}, {}, ratios, within=WITHIN))
    return 0


def run_size(task: Task) -> dict[str, Any]:
    """Returns seconds and CPU seconds of the scoring after a warm-up, and peak memory of the process tree."""
    settle(task.data(task.users).users)
    with tempfile.TemporaryDirectory() as folder:
        task_file, report, log = (Path(folder) / name for name in ("task.json", "report.json", "log.txt"))
        task_file.write_text(json.dumps(asdict(task)), encoding="utf-8")
        command = [sys.executable, "-m", "benchmarks.scoring_scaling", str(task_file), str(report), folder]
        measured = measure(command, log=log, cores=task.cores, limit_s=LIMIT_S, cwd=ROOT)
        if measured.returncode or measured.timed_out or not report.exists():
            raise SizeFailed(f"{task.name}: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}")
        began, ended = json.loads(report.read_text(encoding="utf-8"))
    return facts_of(task.users * task.candidates, measured, began, ended)


def facts_of(pairs: int, measured: Measured, began: float, ended: float) -> dict[str, Any]:
    return {
        "pairs": pairs,
        "seconds": round(ended - began, 2),
        "cpu_s": round(measured.cpu_between(began, ended), 2),
        "microseconds_a_pair": round((ended - began) / pairs * 1e6, 3),
        "cpu_microseconds_a_pair": round(measured.cpu_between(began, ended) / pairs * 1e6, 3),
        "peak_rss_gib": round(measured.peak_rss_bytes / GIB, 3),
        "peak_pss_gib": round(measured.peak_pss_bytes / GIB, 3),
    }


def growth(facts: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Returns each size over the one before: seconds a pair, CPU seconds a pair, and peak memory."""
    ratios = {}
    names = list(facts)
    for before, name in itertools.pairwise(names):
        small, large = facts[before], facts[name]
        for key, quantity in (
            ("microseconds_a_pair", "seconds_a_pair"),
            ("cpu_microseconds_a_pair", "cpu_a_pair"),
            ("peak_pss_gib", "peak_pss"),
        ):
            ratios[f"{quantity} {name}/{before}"] = large[key] / small[key]
    return ratios


def main(task_file: str, report: str, folder: str) -> None:
    """Runs one size in this process: a warm-up on a few users, then all users, timed."""
    task = Task(**json.loads(Path(task_file).read_text(encoding="utf-8")))
    spec = make_spec(task.most_rows)
    request = request_of(make_model(CACHE, "dlrm", spec))
    assert request is not None
    spark = open_session(task.cores, folder)
    contender = lists(spark, spec, make_items(CACHE, spec, task.items), request)
    contender.run(task.data(8))
    began = time.monotonic()
    contender.run(task.data(task.users))
    ended = time.monotonic()
    spark.stop()
    Path(report).write_text(json.dumps([began, ended]), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
