"""Compares a nightly run on MovieLens 100k with a plain script that computes the same.

    .venv/bin/python benchmarks/movielens_night.py [--quick] [--repeats N] DATA

DATA is a folder with the files `ml-100k.inter`, `.user` and `.item` in RecBole's format.

Our contender is `jobs/nightly.py --retrain` with conf/datasets/movielens.yaml, without its blend: build_features, the
training of SASRec, the gate, the lists, and their measures. The peer is benchmarks/peers/plain_movielens.py, a script
with pandas, NumPy and torch. Both read the same files, divide them by leave-last-out, train a SASRec of the same size
with the same batches for the same number of epochs, and make a list of ten films for each user. Each run starts in an
empty folder. With --quick, both train for one epoch.

Figures are those of whole process trees (benchmarks/harness.py), from the start of the first process to the end of the
last one. Contenders take turns, and figures are medians. Ratios are the script's seconds, CPU seconds and memory
divided by ours. The benchmark fails if the contenders have measured different numbers of users, or, in a full run, if
their HR@10 differ by more than 0.06.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # benchmarks has files named like packages

from benchmarks.agreement import Disagreement
from benchmarks.harness import Measured
from benchmarks.report import GIB, machine, summary_line, table
from benchmarks.run_contenders import RunFailed, measured_run
from setup.console import cache_folder
from storage.job_summary import JobSummary
from storage.manifest import read_manifest
from storage.paths import LakePaths

CACHE = cache_folder() / "benchmarks/movielens_night"
CONFIG, RUN_DATE = "conf/datasets/movielens.yaml", "1998-04-23"
# The script ranks all films by SASRec alone.
WITHOUT_BLEND = ("score.blend=none", "candidates.sources=[{source: all_items}]")
FILES = ("ml-100k.inter", "ml-100k.user", "ml-100k.item")
OURS, SCRIPT = "ours", "plain_movielens"
EPOCHS, QUICK_EPOCHS, REPEATS = 8, 1, 3
# The smallest ratio: our run may take three times the seconds of the script.
TARGETS = {"night": 1 / 3.0}
HIT_RATE_TOLERANCE = 0.06
_LIMIT_S = 3600.0


@dataclass(frozen=True)
class Run:
    """One run of a contender.

    Attributes:
        measured: the resources of its process tree.
        parts: maps each part of the run to its seconds.
        users: number of users whose list was measured.
        hit_rate, ndcg: HR@10 and NDCG@10 of these lists.
    """

    measured: Measured
    parts: dict[str, float]
    users: int
    hit_rate: float
    ndcg: float


def run_ours(data: Path, folder: Path, epochs: int, cores: int) -> Run:
    """Runs nightly in an empty lake.

    Raises:
        RunFailed: it failed.
    """
    lake, output = folder / "lake", folder / "nightly.log"
    command = [sys.executable, "jobs/nightly.py", "--config", CONFIG, "--run-date", RUN_DATE, "--retrain"]
    for override in (f"data={data}", f"lake={lake}", f"train.epochs={epochs}", *WITHOUT_BLEND):
        command += ["--set", override]
    measured = measured_run(OURS, command, output, _files(data), cores, _LIMIT_S)
    summary = JobSummary.in_log(output)
    if summary is None:
        raise RunFailed(f"nightly wrote no job summary to {output}")
    facts = read_manifest(LakePaths(str(lake)).measures.partition(RUN_DATE)).facts
    parts = {part: seconds for part, seconds in summary.seconds.items() if part != "total"}
    return Run(measured, parts, facts["users"], facts["hit_rate"], facts["ndcg"])


def run_script(data: Path, folder: Path, epochs: int, cores: int) -> Run:
    """Runs the script.

    Raises:
        RunFailed: it failed.
    """
    output = folder / "output.log"
    command = [sys.executable, "-m", "benchmarks.peers.plain_movielens", "--data", str(data)]
    command += ["--out", str(folder), "--epochs", str(epochs), "--threads", str(cores)]
    measured = measured_run(SCRIPT, command, output, _files(data), cores, _LIMIT_S)
    facts = json.loads(output.read_text().splitlines()[-1])
    return Run(measured, facts["laps"], facts["users"], facts["hit_rate"], facts["ndcg"])


def _files(data: Path) -> list[str]:
    return [str(data / name) for name in FILES]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder of the files ml-100k.*")
    parser.add_argument("--quick", action="store_true", help="one epoch, each contender once")
    parser.add_argument("--repeats", type=int, help=f"turns (default {REPEATS}, with --quick 1)")
    parser.add_argument("--cores", type=int, default=2, help="cores each contender is pinned to (default 2)")
    options = parser.parse_args(arguments)
    if options.repeats is not None and options.repeats < 1:
        parser.error(f"--repeats {options.repeats} is less than 1")
    missing = [name for name in FILES if not (options.data / name).exists()]
    if missing:
        parser.error(f"{options.data} lacks {', '.join(missing)}: name the folder of MovieLens 100k's files")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    of_machine = machine(options.cores, ("torch", "pyarrow", "pandas"))
    epochs = QUICK_EPOCHS if options.quick else EPOCHS
    runs: dict[str, list[Run]] = {OURS: [], SCRIPT: []}
    for turn in range(options.repeats or (1 if options.quick else REPEATS)):
        contenders = [(OURS, run_ours), (SCRIPT, run_script)]
        for name, run_contender in contenders if turn % 2 == 0 else contenders[::-1]:
            folder = CACHE / f"work-{name}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            try:
                run = run_contender(options.data.resolve(), folder, epochs, options.cores)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            runs[name].append(run)
            say(
                f"{name}: {run.measured.wall_s:.1f} s, CPU {run.measured.cpu_s:.1f} s, HR@10 {run.hit_rate:.4f}"
            )
        require_same_work(runs[OURS][-1], runs[SCRIPT][-1], full=not options.quick)
    ratios = ratios_of(runs[OURS], runs[SCRIPT])
    figures = {name: facts(of_contender) for name, of_contender in runs.items()}
    _print(figures)
    print(verdict(ratios["night"]))
    print(
        summary_line(
            "movielens_night", of_machine, figures[OURS], {SCRIPT: figures[SCRIPT]}, ratios,
            targets=TARGETS, epochs=epochs, quick=options.quick,
        )
    )  # fmt: skip
    return 0


def require_same_work(ours: Run, script: Run, *, full: bool) -> None:
    """Raises Disagreement if the numbers of measured users differ, or in a full run HR@10."""
    if ours.users != script.users:
        raise Disagreement(f"ours measured {ours.users:,} users, the script {script.users:,}")
    if full and not abs(ours.hit_rate - script.hit_rate) <= HIT_RATE_TOLERANCE:
        raise Disagreement(
            f"HR@10 is {ours.hit_rate:.4f} in ours and {script.hit_rate:.4f} in the script; they may differ by "
            f"{HIT_RATE_TOLERANCE}"
        )


def _median(runs: Sequence[Run], value: Callable[[Run], float]) -> float:
    return statistics.median(value(run) for run in runs)


def ratios_of(ours: Sequence[Run], script: Sequence[Run]) -> dict[str, float]:
    """Returns the script's seconds, CPU seconds and peak memory, divided by ours."""
    values: dict[str, Callable[[Run], float]] = {
        "night": lambda run: run.measured.wall_s,
        "night_cpu": lambda run: run.measured.cpu_s,
        "night_memory": lambda run: run.measured.peak_pss_bytes,
    }
    return {name: _median(script, value) / _median(ours, value) for name, value in values.items()}


def verdict(ratio: float) -> str:
    """Returns a sentence that says whether the target is met."""
    met = "met" if ratio >= TARGETS["night"] else "MISSED"
    return (
        f"night: {ratio:.3f} (target {TARGETS['night']:.3f}: {met}); ours takes {1 / ratio:.2f} times the seconds "
        "of the script"
    )


def facts(runs: Sequence[Run]) -> dict[str, Any]:
    """Returns the medians of a contender's runs, and the measures and parts of the first of them."""
    first = runs[0]
    return {
        "seconds": round(_median(runs, lambda run: run.measured.wall_s), 2),
        "cpu_s": round(_median(runs, lambda run: run.measured.cpu_s), 2),
        "peak_pss_gib": round(_median(runs, lambda run: run.measured.peak_pss_bytes) / GIB, 2),
        "users": first.users,
        "hit_rate": round(first.hit_rate, 4),
        "ndcg": round(first.ndcg, 4),
        "parts": {part: round(seconds, 2) for part, seconds in first.parts.items()},
        "walls": [round(run.measured.wall_s, 2) for run in runs],
    }


def _print(figures: dict[str, dict[str, Any]]) -> None:
    keys = ("seconds", "cpu_s", "peak_pss_gib", "hit_rate", "ndcg")
    lines = [[name, *(str(of_contender[key]) for key in keys)] for name, of_contender in figures.items()]
    print(table(["run", "seconds", "CPU s", "peak PSS GiB", "HR@10", "NDCG@10"], lines), end="\n\n")
    for name, of_contender in figures.items():
        print(f"{name}: " + ", ".join(f"{part} {seconds}" for part, seconds in of_contender["parts"].items()))


def say(text: str) -> None:
    print(f"movielens_night: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Disagreement, RunFailed) as error:
        print(f"movielens_night: {error}", file=sys.stderr)
        sys.exit(1)
