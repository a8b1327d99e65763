"""Measures how the time and memory of score_lists grow with the number of users and candidates.

A size is a number of users and a number of candidates per user. Each size is measured in new processes. The
ratios of a size are its seconds per pair, CPU seconds per pair and peak memory, each divided by the
same figure of the previous size. Each ratio should be within 15% of 1. All sizes have the same items. The fixed
time of a run is a larger share of the time at the first and smallest size than at the others.
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
    """A size (a number of users and of candidates), which is measured in a process of its own.

    Attributes:
        users: number of users.
        candidates: number of candidates of each user.
        items: number of items.
        most_rows: upper limit of the cardinality of each id column.
        cores: number of cores that the process may use.
    """

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
    """An error: the process that measures a size failed or reached its time limit."""


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
    """Runs the process of a task and returns its seconds, CPU seconds and peak memory.

    The seconds do not include the start of the session and a first pass over a few users.
    """
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
    """Returns the figures of each size divided by those of the previous size.

    The figures are the seconds per pair, the CPU seconds per pair and the peak memory.
    """
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
    """Measures a task in this process. Scores a few users to warm up, and then times the scoring of all."""
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
