"""Compares a run on the log of a web shop, as a user has it, with a plain script that computes the same.

    .venv/bin/python benchmarks/shop.py [--quick] [--sizes N …] [--repeats N] [--config FILE] [--only-rows]

Our contender is `jobs/nightly.py --retrain` with benchmarks/shop.yaml, started from the command line as a user does.
The peer is benchmarks/peers/plain_shop.py, a script with Polars, numpy and torch. Both read the same files
(benchmarks/shop_log.py): a CSV file for each day, and tables of users and items. Both make histories of 50 items and
up to four negatives beside each click, join the tables, train a DLRM of the same size for one epoch with equal batches,
and make a list of ten items for each user.

At the size 1, the log has 160,000 events in the sixteen days of a run, 5,000 users and 2,000 items. At other sizes,
events and users are multiplied by the size. Each contender starts in an empty folder and makes these runs:

* night: the first run on the log, for the last date but one. It trains from random weights on fourteen days.
* next: the run of the last date. It continues from the model of the first run, and trains on one new day. The script
  also makes rows of only the three days that it needs.
* rows: `jobs/build_features.py` for the last date but one in an empty lake, compared with the script's option
  --only-rows, which makes the same rows in memory and writes nothing.

All figures are those of whole process trees (benchmarks/harness.py), from the start of the first process to the end of
the last one. At the size 5, only the night runs, for its memory. With --repeats, contenders take turns, and figures are
medians. The benchmark fails if the contenders have made different numbers of clicks, rows or lists, or models of
different quality.

Ratios of seconds, CPU seconds and memory are the script's figure divided by ours. So 2 means that our run takes half as
much, and 0.5 that it takes twice as much. The ratio `20x_over_5x_memory` compares our code with itself: it is our peak
memory of the night at the size 5 divided by that at the size 20. It is printed if both sizes are measured.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # benchmarks has files named like packages

import pyarrow.parquet as pq

from benchmarks.agreement import Disagreement
from benchmarks.harness import Measured
from benchmarks.report import GIB, machine, summary_line, table
from benchmarks.run_contenders import RunFailed, measured_run
from benchmarks.shop_log import BROKEN_LINES, DAYS, ShopLog, make_log
from setup.console import cache_folder
from storage.job_summary import JobSummary
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths

CACHE = cache_folder() / "benchmarks/shop"
CONFIG = "benchmarks/shop.yaml"
SIZES, QUICK_SIZES, MEMORY_SIZE = (1.0, 5.0, 20.0), (1.0,), 5.0
REPEATS = 3  # at the size 1
NIGHT, NEXT, ROWS = "night", "next", "rows"
MEMORY_GROWTH = "20x_over_5x_memory"
# The smallest ratio of each kind: a target of 1 / 3 lets our run take three times the seconds of the script.
TARGETS = {
    "1x_night": 1 / 3.0,
    "1x_next": 1 / 2.0,
    "20x_night": 1 / 1.5,
    "20x_next": 1 / 2.0,
    "20x_rows": 1 / 4.0,
    MEMORY_GROWTH: 1 / 1.3,
}
# The contenders draw different negatives and initial weights, and our histories go back only 14 days.
ROWS_TOLERANCE, AUC_TOLERANCE = 0.02, 0.03
# For a log below size 1: training has so few steps that the AUC depends on the initial weights.
SMALL_AUC_TOLERANCE = 0.15
K = 10
_LIMIT_S_PER_SIZE = 1800.0
_PEER_MODULE = "benchmarks.peers.plain_shop"


@dataclass(frozen=True)
class Run:
    """One run of a contender.

    Attributes:
        measured: the resources of its process tree.
        parts: maps each part of the run to its seconds.
        clicks: number of clicks of the window; None for a run that reads only a part of it.
        rows: number of feature rows of the window, with negatives; None in the same case.
        auc: AUC of the model on the last day; None for `rows`.
        users, entries: number of users with a list, and of entries of all lists; None for `rows`.
    """

    measured: Measured
    parts: Mapping[str, float]
    clicks: int | None = None
    rows: int | None = None
    auc: float | None = None
    users: int | None = None
    entries: int | None = None


class Contender(Protocol):
    """A contender: its name, and one method that runs it. A run of the kind `night` or `rows` starts anew."""

    name: str

    def run(self, kind: str) -> Run: ...


class Ours:
    """The jobs `nightly` and `build_features`.

    Args:
        log: the log.
        folder: folder of the lakes.
        size: the size of the log.
        config: path of the configuration.
        cores: number of cores to which the processes are pinned.
    """

    name = "ours"

    def __init__(self, log: ShopLog, folder: Path, size: float, config: str, cores: int) -> None:
        self._log, self._folder, self._size, self._config, self._cores = log, folder, size, config, cores

    def run(self, kind: str) -> Run:
        """See `Contender`."""
        lake = self._folder / ("rows" if kind == ROWS else "lake")
        if kind != NEXT:
            shutil.rmtree(lake, ignore_errors=True)
        lake.mkdir(parents=True, exist_ok=True)
        run_date = self._log.dates[-1] if kind == NEXT else self._log.dates[-2]
        job = "build_features" if kind == ROWS else "nightly"
        command = [sys.executable, f"jobs/{job}.py", "--config", self._config, "--run-date", run_date]
        command += ["--set", f"data={self._log.folder}", "--set", f"lake={lake}"]
        if kind != ROWS:
            start = "warm" if kind == NEXT else "auto"
            command += ["--retrain", "--set", f"train.retrain.start={start}"]
        output = self._folder / f"{job}.log"
        measured = measured_run(
            self.name, command, output, self._log.files, self._cores, _limit_s(self._size)
        )
        summary = _summary(output, job)
        parts = {part: seconds for part, seconds in summary.seconds.items() if part != "total"}
        built = summary if kind == ROWS else _summary(lake / f"logs/dt={run_date}/build_features.log", job)
        clicks = (built.rows_in or 0) - sum((built.dropped or {}).values())
        counted = {"clicks": clicks, "rows": built.rows_out} if kind != NEXT else {}
        if kind == ROWS:
            return Run(measured, parts, **counted)
        trained = _summary(lake / f"logs/dt={run_date}/train_model.log", job)
        partition = LakePaths(str(lake)).recommendations.partition(run_date)
        files = data_files(partition, read_manifest(partition))
        users = [
            user for file in files for user in pq.read_table(file, columns=["user_id"])["user_id"].to_pylist()
        ]
        auc = trained.facts["test"]["auc"]
        return Run(measured, parts, **counted, auc=auc, users=len(set(users)), entries=len(users))


class PlainShop:
    """The script benchmarks/peers/plain_shop.py. The arguments are those of `Ours`, without the configuration."""

    name = "plain_shop"

    def __init__(self, log: ShopLog, folder: Path, size: float, cores: int) -> None:
        self._log, self._folder, self._size, self._cores = log, folder, size, cores

    def run(self, kind: str) -> Run:
        """See `Contender`."""
        if kind == NIGHT:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        run_date = self._log.dates[-1] if kind == NEXT else self._log.dates[-2]
        command = [sys.executable, "-m", _PEER_MODULE, "--log", str(self._log.folder), "--run-date", run_date]
        command += ["--out", str(self._folder), "--threads", str(self._cores)]
        command += {NIGHT: [], NEXT: ["--next"], ROWS: ["--only-rows"]}[kind]
        output = self._folder / "output.log"
        measured = measured_run(
            self.name, command, output, self._log.files, self._cores, _limit_s(self._size)
        )
        facts = json.loads(output.read_text().splitlines()[-1])
        counted = {"clicks": facts["clicks"], "rows": facts["rows"]} if kind != NEXT else {}
        lists = {name: facts.get(name) for name in ("auc", "users", "entries")}
        return Run(measured, facts["laps"], **counted, **lists)


def _limit_s(size: float) -> float:
    return _LIMIT_S_PER_SIZE * max(1.0, size)


def _summary(log: Path, job: str) -> JobSummary:
    summary = JobSummary.in_log(log)
    if summary is None:
        raise RunFailed(f"{job} wrote no job summary to {log}")
    return summary


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="the size 1, each run once")
    parser.add_argument("--sizes", type=float, nargs="+", help="sizes to measure (default 1 5 20)")
    parser.add_argument("--repeats", type=int, help=f"turns (default {REPEATS} at the size 1, else 1)")
    parser.add_argument("--config", default=CONFIG, help="our configuration (default %(default)s)")
    parser.add_argument("--only-rows", action="store_true", help="measure only the runs of the kind `rows`")
    parser.add_argument("--cores", type=int, default=2, help="cores each contender is pinned to (default 2)")
    options = parser.parse_args(arguments)
    if options.repeats is not None and options.repeats < 1:
        parser.error(f"--repeats {options.repeats} is less than 1")
    if any(size <= 0 for size in options.sizes or ()):
        parser.error(f"--sizes {options.sizes}: a size must be above 0")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    of_machine = machine(options.cores, ("pyspark", "torch", "pyarrow", "polars"))
    ours: dict[str, Any] = {}
    peer: dict[str, Any] = {}
    ratios: dict[str, float | None] = {}
    for size in options.sizes or (QUICK_SIZES if options.quick else SIZES):
        repeats = options.repeats or (REPEATS if size == 1 and not options.quick else 1)
        kinds = kinds_of(size, options.only_rows)
        measured = _measure_size(size, kinds, repeats, options.config, options.cores)
        name = f"{size:g}x"
        ours[name], peer[name] = (
            {kind: facts(of_kind) for kind, of_kind in of_contender.items()}
            for of_contender in (measured[Ours.name], measured[PlainShop.name])
        )
        ratios |= ratios_of(name, measured)
        _print_size(name, measured)
    ratios |= memory_growth(ours)
    for line in verdicts(ratios):
        print(line)
    peers = {PlainShop.name: peer}
    print(summary_line("shop", of_machine, ours, peers, ratios, targets=TARGETS, quick=options.quick))
    return 0


def kinds_of(size: float, only_rows: bool) -> tuple[str, ...]:
    """Returns the kinds of runs at a size."""
    if only_rows:
        return (ROWS,)
    return (NIGHT,) if size == MEMORY_SIZE else (NIGHT, NEXT, ROWS)


def _measure_size(
    size: float, kinds: Sequence[str], repeats: int, config: str, cores: int
) -> dict[str, dict[str, list[Run]]]:
    """Returns the runs of each contender, by its name and by the kind of run.

    Raises:
        RunFailed: a contender failed.
        Disagreement: see `require_same_work`.
    """
    say(f"log of size {size:g} …")
    CACHE.mkdir(parents=True, exist_ok=True)
    log = make_log(CACHE, size)
    work = CACHE / f"work-{size:g}x"
    contenders: list[Contender] = [
        Ours(log, work / Ours.name, size, config, cores),
        PlainShop(log, work / PlainShop.name, size, cores),
    ]
    runs: dict[str, dict[str, list[Run]]] = {one.name: {kind: [] for kind in kinds} for one in contenders}
    try:
        for turn in range(repeats):
            for contender in contenders if turn % 2 == 0 else contenders[::-1]:
                for kind in kinds:
                    run = contender.run(kind)
                    runs[contender.name][kind].append(run)
                    seen = run.measured
                    say(
                        f"{contender.name}, {kind}: {seen.wall_s:.1f} s, CPU {seen.cpu_s:.1f} s, "
                        f"{seen.peak_pss_bytes / GIB:.2f} GiB"
                    )
            for kind in kinds:
                require_same_work(kind, runs[Ours.name][kind][-1], runs[PlainShop.name][kind][-1], size)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return runs


def require_same_work(kind: str, ours: Run, script: Run, size: float) -> None:
    """Raises Disagreement if the numbers of clicks, rows, users or list entries differ, or the AUC.

    The script keeps some of the broken lines, so clicks may differ by their number, and each of them may be the only
    click of a user. The other tolerances are constants of this file.
    """
    broken = BROKEN_LINES * DAYS
    for what, tolerance in (
        ("clicks", float(broken)),
        ("rows", ROWS_TOLERANCE * (script.rows or 0)),
        ("users", float(broken)),
        ("entries", float(broken * K)),
    ):
        mine, theirs = getattr(ours, what), getattr(script, what)
        if mine is not None and abs(mine - theirs) > tolerance:
            raise Disagreement(
                f"{kind}: {what}: ours has {mine:,}, the script has {theirs:,}; they may differ by {tolerance:,.0f}"
            )
    tolerance = AUC_TOLERANCE if size >= 1 else SMALL_AUC_TOLERANCE
    if ours.auc is not None and script.auc is not None and not abs(ours.auc - script.auc) <= tolerance:
        raise Disagreement(
            f"{kind}: the AUC is {ours.auc:.4f} in ours and {script.auc:.4f} in the script; they may differ by "
            f"{tolerance}"
        )


def _median(runs: Sequence[Run], value: Callable[[Run], float]) -> float:
    return statistics.median(value(run) for run in runs)


def _parts(runs: Sequence[Run]) -> dict[str, float]:
    """Returns the median seconds of each part of a run."""
    return {part: statistics.median(run.parts.get(part, 0.0) for run in runs) for part in runs[0].parts}


def _wall(run: Run) -> float:
    return run.measured.wall_s


def _cpu(run: Run) -> float:
    return run.measured.cpu_s


def _memory(run: Run) -> float:
    return run.measured.peak_pss_bytes


def facts(runs: Sequence[Run]) -> dict[str, Any]:
    """Returns the medians of the runs of one kind, and the counts of the first of them."""
    first = runs[0]
    return {
        "seconds": round(_median(runs, _wall), 2),
        "cpu_s": round(_median(runs, _cpu), 2),
        "peak_pss_gib": round(_median(runs, _memory) / GIB, 2),
        "clicks": first.clicks,
        "rows": first.rows,
        "auc": None if first.auc is None else round(first.auc, 4),
        "users": first.users,
        "parts": {part: round(seconds, 2) for part, seconds in _parts(runs).items()},
        "walls": [round(_wall(run), 2) for run in runs],
    }


def ratios_of(name: str, runs: Mapping[str, Mapping[str, Sequence[Run]]]) -> dict[str, float]:
    """Returns the script's seconds, CPU seconds and peak memory, divided by ours, for each kind of run."""
    ratios = {}
    for kind, mine in runs[Ours.name].items():
        script = runs[PlainShop.name][kind]
        ratios[f"{name}_{kind}"] = _median(script, _wall) / _median(mine, _wall)
        ratios[f"{name}_{kind}_cpu"] = _median(script, _cpu) / _median(mine, _cpu)
        ratios[f"{name}_{kind}_memory"] = _median(script, _memory) / _median(mine, _memory)
    return ratios


def memory_growth(ours: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, float]:
    """Returns our peak memory of the night at the size 5 divided by that at the size 20, if both were measured.

    Args:
        ours: the facts of our runs, by size and by kind of run.
    """
    small, large = (ours.get(size, {}).get(NIGHT, {}).get("peak_pss_gib") for size in ("5x", "20x"))
    return {} if small is None or large is None else {MEMORY_GROWTH: small / large}


def verdicts(ratios: Mapping[str, float | None]) -> list[str]:
    """Returns a sentence for each target whose ratio was measured, which says whether it is met."""
    lines = []
    for name, least in TARGETS.items():
        ratio = ratios.get(name)
        if ratio is not None:
            met = "met" if ratio >= least else "MISSED"
            what = "the memory of the size 5" if name == MEMORY_GROWTH else "the seconds of the script"
            lines.append(
                f"{name}: {ratio:.3f} (target {least:.3f}: {met}); "
                f"ours takes {1 / ratio:.2f} times {what} (at most {1 / least:.2g})"
            )
    return lines


def _print_size(name: str, runs: Mapping[str, Mapping[str, Sequence[Run]]]) -> None:
    lines = []
    for kind in runs[Ours.name]:
        for contender, of_contender in runs.items():
            of_kind = of_contender[kind]
            first = of_kind[0]
            lines.append(
                [
                    f"{kind}: {contender}",
                    f"{_median(of_kind, _wall):.1f}",
                    f"{_median(of_kind, _cpu):.1f}",
                    f"{_median(of_kind, _memory) / GIB:.2f}",
                    "" if first.rows is None else f"{first.rows:,}",
                    "" if first.auc is None else f"{first.auc:.4f}",
                ]
            )
    print(f"size {name}\n")
    print(table(["run", "seconds", "CPU s", "peak PSS GiB", "rows", "AUC"], lines), end="\n\n")
    for contender, of_contender in runs.items():
        for kind, of_kind in of_contender.items():
            parts = ", ".join(f"{part} {seconds:.1f}" for part, seconds in _parts(of_kind).items())
            print(f"{contender}, {kind}: {parts}")
    print()


def say(text: str) -> None:
    print(f"shop: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Disagreement, RunFailed) as error:
        print(f"shop: {error}", file=sys.stderr)
        sys.exit(1)
