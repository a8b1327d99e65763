"""Compares how many rows per second our loader, Petastorm's loaders and memory-mapped files deliver.

    .venv/bin/python benchmarks/loader.py [--quick] [--rows N] [--rounds N] [--only NAME …]

Every contender reads complete epochs of the same table (benchmarks/loader_data.py): 13 dense features, 26
columns of ids and a label. The table exists as four Parquet files, like those of build_features, and as
binary files with the same rows. Each contender runs in a process of its own, pinned to the same cores.
Contenders take turns for several rounds. The fastest epoch of each contender is used, because other work on
the machine can only make an epoch slower. A batch consists of the three tensors that a model needs: labels,
dense features and ids. The first epoch of each process is not timed. In this epoch, the benchmark checks that
every row is delivered once (benchmarks/loader_contender.py).

The peers are:

* petastorm_batched: Petastorm's BatchedDataLoader with a shuffling queue as large as our buffer pool.
* petastorm_best: the fastest settings of BatchedDataLoader. They shuffle less: rows are shuffled only within
  a row group, without a queue.
* petastorm_columns: the settings of petastorm_best, but a batch has one tensor per column.
* per_row: Petastorm's DataLoader, which reads single rows, with a queue as large as our buffer pool. This peer
  reads a table with a tenth of the rows.
* memmap_row_shuffle: the rows of a batch are copied from binary files, in the order of a random permutation
  of all rows.
* memmap_batch_shuffle: complete batches are copied from binary files in random order. The rows within a batch
  are not shuffled.
* memcpy: the bytes of the binary files are copied in order. No loader can be faster than this copy.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a file in this folder hides our package etl

from benchmarks.etl_runs import CACHE, ROOT, ContenderFailed
from benchmarks.harness import measure, settle
from benchmarks.loader_contender import LoaderTask
from benchmarks.loader_data import FILES, make_table
from benchmarks.report import machine, summary_line, table

ROWS, QUICK_ROWS = 4_000_000, 1_000_000
LIMIT_S = 1800.0
TARGETS = {
    "petastorm_batched": 4.0,
    "petastorm_best": 2.3,
    "per_row": 40.0,
    "memmap_row_shuffle": 0.95,
}


@dataclass(frozen=True)
class Contender:
    """A contender of the benchmark.

    Attributes:
        module: the module that yields batches (see benchmarks.loader_contender).
        settings: further settings, which only this contender has.
        part: the table of this contender has a fraction 1 / `part` of the rows.
    """

    module: str
    settings: dict[str, Any] = field(default_factory=dict)
    part: int = 1


def _petastorm(pool: str, *, queue: bool, rows: bool, stack: bool = True) -> dict[str, Any]:
    return {"pool": pool, "queue": queue, "shuffle_rows": rows, "stack": stack}


OURS = Contender("benchmarks.loader_ours")
_BATCHED, _MAP = "benchmarks.peers.petastorm_batched", "benchmarks.peers.memory_map"
PEERS: dict[str, tuple[Contender, ...]] = {
    "petastorm_batched": (
        Contender(_BATCHED, _petastorm("dummy", queue=True, rows=False)),
        Contender(_BATCHED, _petastorm("thread", queue=True, rows=False)),
    ),
    "petastorm_best": (
        Contender(_BATCHED, _petastorm("dummy", queue=False, rows=True)),
        Contender(_BATCHED, _petastorm("thread", queue=False, rows=True)),
    ),
    "petastorm_columns": (
        Contender(_BATCHED, _petastorm("dummy", queue=False, rows=True, stack=False)),
        Contender(_BATCHED, _petastorm("thread", queue=False, rows=True, stack=False)),
    ),
    "per_row": (
        Contender("benchmarks.peers.petastorm_rows", _petastorm("dummy", queue=True, rows=False), part=10),
    ),
    "memmap_row_shuffle": (Contender(_MAP, {"by": "row"}),),
    "memmap_batch_shuffle": (Contender(_MAP, {"by": "batch"}),),
    "memcpy": (Contender(_MAP, {"by": "copy"}),),
}


@dataclass
class Figures:
    """The measured epochs of one contender.

    Attributes:
        epochs: one pair (seconds, CPU seconds) per million rows for each timed epoch.
        peak_rss_bytes: peak memory of the contender's processes.
        failure: the reason why the contender failed; None if it did not fail.
    """

    epochs: list[tuple[float, float]] = field(default_factory=list)
    peak_rss_bytes: int = 0
    failure: str | None = None

    @property
    def best(self) -> tuple[float, float]:
        return min(self.epochs)

    def facts(self) -> dict[str, Any]:
        if not self.epochs:
            return {"seconds": None, "reason": self.failure}
        seconds, cpu_s = self.best
        middle = sorted(self.epochs)[(len(self.epochs) - 1) // 2]
        return {
            "rows_per_s": round(1e6 / seconds),
            "rows_per_s_median": round(1e6 / middle[0]),
            "cpu_ns_a_row": round(cpu_s * 1e3),
            "peak_rss_gib": round(self.peak_rss_bytes / 2**30, 2),
            "epochs": len(self.epochs),
        }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} rows, one round")
    parser.add_argument("--rows", type=int, help=f"rows of the table (default {ROWS:,})")
    parser.add_argument("--rounds", type=int, help="turns of each contender (default 3)")
    parser.add_argument("--epochs", type=int, default=2, help="timed epochs a turn (default 2)")
    parser.add_argument("--batch", type=int, default=4096, help="rows of a batch (default 4096)")
    parser.add_argument(
        "--buffer", type=int, default=131_072, help="rows shuffled at a time (default 131,072)"
    )
    parser.add_argument("--cores", type=int, default=2, help="cores each contender is pinned to (default 2)")
    parser.add_argument("--only", nargs="*", choices=PEERS, help="peers to run (default: all)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    rows = (options.rows or (QUICK_ROWS if options.quick else ROWS)) // FILES * FILES
    of_machine = machine(options.cores, ("petastorm", "pyarrow", "torch", "numpy"))
    names = [name for name in PEERS if options.only is None or name in options.only]
    runs = {"ours": (OURS,), **{name: PEERS[name] for name in names}}
    figures = {name: [Figures() for _ in contenders] for name, contenders in runs.items()}
    for turn in range(options.rounds or (1 if options.quick else 3)):
        for name, contenders in runs.items():
            say(f"{name}, round {turn + 1} …")
            for contender, contender_figures in zip(contenders, figures[name], strict=True):
                _run(contender, rows, options, contender_figures)
    best_figures = {
        name: min(
            contender_figures, key=lambda candidate: candidate.best if candidate.epochs else (float("inf"),)
        )
        for name, contender_figures in figures.items()
    }
    mine = best_figures.pop("ours")
    if not mine.epochs:
        raise ContenderFailed(f"ours: {mine.failure}")
    ratios: dict[str, float | None] = {
        name: best_figures[name].best[0] / mine.best[0]
        if name in best_figures and best_figures[name].epochs
        else None
        for name in PEERS
    }
    peers = {
        name: best_figures[name].facts()
        if name in best_figures
        else {"seconds": None, "reason": "left out by --only"}
        for name in PEERS
    }
    _print(rows, options, mine.facts(), peers, ratios)
    print(
        summary_line(
            "loader", of_machine, mine.facts(), peers, ratios,
            rows=rows, local_batch_size=options.batch, buffer_rows=options.buffer, targets=TARGETS,
        )
    )  # fmt: skip
    return 0


def _run(contender: Contender, rows: int, options: argparse.Namespace, into: Figures) -> None:
    """Runs a contender once in its process, and adds its epochs to `into`.

    If the contender fails, the reason is stored in `into`.
    """
    feature_table = make_table(CACHE, rows // contender.part // FILES * FILES)
    settle(feature_table.paths)
    with tempfile.TemporaryDirectory(prefix="nightrank-loader-") as name:
        folder = Path(name)
        LoaderTask(
            contender.module,
            feature_table,
            options.batch,
            options.buffer,
            options.epochs,
            options.cores,
            str(folder / "report.json"),
            contender.settings,
        ).save(folder / "task.json")
        command = [sys.executable, "-m", "benchmarks.loader_contender", str(folder / "task.json")]
        measured = measure(command, log=folder / "log", cores=options.cores, limit_s=LIMIT_S, cwd=ROOT)
        report = folder / "report.json"
        if measured.returncode or not report.exists():
            tail = (folder / "log").read_text(errors="replace").splitlines()[-3:]
            into.failure = f"with {contender.settings}, exit code {measured.returncode}: {' '.join(tail)}"
            say(into.failure)
            return
        millions = feature_table.rows / 1e6
        into.epochs += [
            (seconds / millions, cpu / millions) for seconds, cpu in json.loads(report.read_text())
        ]
        into.peak_rss_bytes = max(into.peak_rss_bytes, measured.peak_rss_bytes)


def _print(
    rows: int,
    options: argparse.Namespace,
    mine: dict[str, Any],
    peers: dict[str, dict[str, Any]],
    ratios: dict[str, float | None],
) -> None:
    keys = ("rows_per_s", "rows_per_s_median", "cpu_ns_a_row", "peak_rss_gib")
    lines = []
    for name, facts in {"ours": mine, **peers}.items():
        ratio = ratios.get(name)
        cells = [f"{facts[key]:,}" if key in facts else "–" for key in keys]
        lines.append([name, *cells, "" if ratio is None else f"{ratio:.2f} ×"])
    print(f"{rows:,} rows in batches of {options.batch:,}, {options.buffer:,} shuffled at a time\n")
    print(
        table(["contender", "rows/s", "median", "CPU ns a row", "peak RSS GiB", "ours is"], lines), end="\n\n"
    )
    for name, target in TARGETS.items():
        print(verdict(name, ratios[name], target, peers[name]))


def verdict(name: str, ratio: float | None, target: float, facts: dict[str, Any]) -> str:
    """Returns a sentence that compares our speed with a peer's, and says whether the target is met."""
    if ratio is None:
        return f"{name}: not measured ({facts['reason']})"
    met = "met" if ratio >= target else "MISSED"
    if ratio >= 1:
        return f"{name}: ours is {ratio:.2f} times faster (target {target:g}: {met})"
    return (
        f"{name} wins: ours is {1 / ratio:.2f} times slower, "
        f"{ratio:.2f} of its speed (target {target:g}: {met})"
    )


def say(text: str) -> None:
    print(f"loader: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ContenderFailed as error:
        print(f"loader: {error}", file=sys.stderr)
        sys.exit(1)
