"""Compares build_features with NVIDIA's Spark recipe, NVTabular, Polars and DuckDB on a generated log.

    .venv/bin/python benchmarks/etl.py [--quick] [--layout NAME] [--rows N] [--repeats N] [--only NAME …]
        [--set a.b=c …]

The log has the columns of Criteo's click log (benchmarks/criteo_log.py). Every contender (our job and the
peers) runs in a process of its own, pinned to the same cores. Its input is in the operating system's file
cache. In the layout `days`, it does the following work:

* It reads four files of tab-separated text, one for each day: a label, 13 integers and 26 categorical columns
  of strings.
* It fits a vocabulary for each categorical column on the first two days. A value gets an id if it occurs at
  least 15 times. Ids start at 3 and are assigned by descending count. Null has the id 1, and all other values
  have the id 2.
* It encodes all four days. Categorical columns become int32 ids. A null integer becomes 0, a negative one
  becomes 0, and log(1 + x) is stored as float32.
* It writes Parquet with zstd, one folder or file for each day.

The other layouts have the same rows: days of Parquet files (`parquet`) or of JSON lines (`jsonl`), and gzip files
without dates as conf/datasets/criteo.yaml reads them (`criteo`; benchmarks/etl_layouts.py describes each). In the
layout `criteo`, the splits take the place of the days. Peers in Spark and NVTabular read only the layout `days`.

Our job (`ours`) is the command `python jobs/build_features.py`, which starts no JVM; `ours_in_spark` is the same
job started by spark-submit. It does additional work, which is timed too (benchmarks/ours.py describes it). The
file of each peer in benchmarks/peers says what the peer leaves out. Before a ratio is printed, the table of each peer is compared with ours
(benchmarks/agreement.py): all ids and dense values must be equal. Only NVTabular may order values of equal
counts in another way. If tables differ, the benchmark fails and prints no figures.

The whole command is timed, from its start to its end: a user waits for all of it. The start-up of the peers is
also printed in a column of its own. It consists of the interpreter and imports, and in peers that use Spark also
of opening the session and running a first job. With --repeats, contenders take turns, and the run of median time
is used. `ratios` says how many times as fast as the peer `ours` is.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # this file has the same name as our package etl

from benchmarks import nvtabular_env
from benchmarks.agreement import Disagreement, Summary, compare
from benchmarks.criteo_log import make_log
from benchmarks.etl_layouts import LAYOUTS, log_in_layout
from benchmarks.etl_runs import CACHE, DAYS, Contender, ContenderFailed, Log, Run, job, run_contender
from benchmarks.report import GIB, machine, summary_line, table

ROWS, QUICK_ROWS = 4_000_000, 1_000_000
QUICK_LIMIT_S, LIMIT_S = 170.0, 3600.0
TARGETS = {
    "polars": 1.0,
    "polars_streaming": 1.0,
    "duckdb": 1.0,
    "ours_in_spark": 1.0,
    "nvidia_recipe": 6.0,
    "nvtabular": 4.0,
}
SMALL_TARGETS = {**TARGETS, "polars": 0.8}  # at most a million rows
OTHER_LAYOUTS_TARGETS = {**TARGETS, "polars": 0.95}  # of the layouts other than `days`
PEERS = tuple(TARGETS)
DAYS_ONLY = ("nvidia_recipe", "nvtabular")
PACKAGES = ("pyspark", "pyarrow", "polars", "duckdb")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} rows, within 3 minutes")
    parser.add_argument("--layout", choices=LAYOUTS, default="days", help="layout of the log (default days)")
    parser.add_argument("--rows", type=int, help=f"rows of the log (default {ROWS:,})")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each contender (default 1)")
    parser.add_argument("--cores", type=int, default=2, help="cores each contender is pinned to (default 2)")
    parser.add_argument("--only", nargs="*", choices=PEERS, help="peers to run (default: all)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        help="change a configuration key, as --set of build_features does",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    deadline = time.monotonic() + (QUICK_LIMIT_S if options.quick else 10 * LIMIT_S)
    rows = options.rows or (QUICK_ROWS if options.quick else ROWS)
    of_machine = machine(options.cores, PACKAGES)
    say(f"log of {rows:,} rows …")
    log = log_in_layout(options.layout, make_log(CACHE, rows, DAYS))
    mine = job(log, options.overrides)
    peers: dict[str, dict[str, Any]] = {}
    contenders = [mine]
    for name in PEERS:
        contender = _peer(name, options, log)
        if isinstance(contender, str):
            peers[name] = {"seconds": None, "reason": contender}
        else:
            contenders.append(contender)
    runs = _take_turns(contenders, log, options, deadline, peers)
    my_run = _median(runs[mine.name])
    ratios: dict[str, float | None] = dict.fromkeys(PEERS)
    for contender in contenders[1:]:
        if contender.name not in peers:
            run = _median(runs[contender.name])
            peers[contender.name] = run.facts(rows)
            ratios[contender.name] = run.seconds / my_run.seconds
    peers = {name: peers[name] for name in PEERS}
    targets = targets_of(options.layout, rows)
    input_bytes = sum(os.path.getsize(file) for file in log.files or (day.file for day in log.days))
    _print(
        f"{rows:,} rows, {input_bytes / GIB:.2f} GiB in the layout {options.layout}",
        rows,
        my_run,
        peers,
        ratios,
        targets,
    )
    print(
        summary_line(
            "etl", of_machine, my_run.facts(rows), peers, ratios,
            layout=options.layout, rows=rows, targets=targets, overrides=options.overrides, repeats=options.repeats,
        )
    )  # fmt: skip
    return 0


def _take_turns(
    contenders: Sequence[Contender],
    log: Log,
    options: argparse.Namespace,
    deadline: float,
    failed: dict[str, dict[str, Any]],
) -> dict[str, list[Run]]:
    """Runs each contender `options.repeats` times, one after the other, and compares their tables.

    Returns the runs of each contender by its name. The first contender is ours. Another contender that fails
    does not run again, and its reason is added to `failed`.
    """
    mine = contenders[0]
    runs: dict[str, list[Run]] = {contender.name: [] for contender in contenders}
    expected: Summary | None = None
    for turn in range(options.repeats):
        for contender in contenders:
            if contender.name in failed:
                continue
            say(f"{contender.name} ({turn + 1} of {options.repeats}) …")
            limit_s = min(LIMIT_S, max(1.0, deadline - time.monotonic()))
            try:
                run = run_contender(contender, log, options.cores, limit_s)
            except ContenderFailed as error:
                if contender is mine:
                    raise
                failed[contender.name] = {"seconds": None, "reason": str(error)}
                if error.limit_s is not None:
                    ours_s = _median(runs[mine.name]).seconds
                    failed[contender.name]["ratio_at_least"] = round(error.limit_s / ours_s, 2)
                continue
            say(f"{contender.name}: {run.seconds:.1f} s")
            if run.summary is not None:
                expected = expected or run.summary
                compare(expected, run.summary, contender.name, contender.ties)
            runs[contender.name].append(run)
    return runs


def targets_of(layout: str, rows: int) -> dict[str, float]:
    """Returns the target of each peer for a log of this layout and size."""
    if rows <= QUICK_ROWS:
        return SMALL_TARGETS
    return TARGETS if layout == "days" else OTHER_LAYOUTS_TARGETS


def _peer(name: str, options: argparse.Namespace, log: Log) -> Contender | str:
    """Returns the peer `name` as a contender, or the reason why the peer cannot run."""
    if options.only is not None and name not in options.only:
        return "left out by --only"
    if options.only is None and name == "polars_streaming":
        return "it is for logs larger than the memory (--only polars_streaming)"
    if name == "polars_streaming":
        return Contender(name, "benchmarks.peers.polars_recipe", {"streaming": True})
    if options.layout != "days" and name in DAYS_ONLY:
        return f"it is not written for the layout {options.layout}"
    if name == "ours_in_spark":
        return job(log, options.overrides, submitted=True)
    if name == "nvtabular":
        python = nvtabular_env.interpreter(install=not options.quick)
        return python if isinstance(python, nvtabular_env.Missing) else Contender(
            name, "benchmarks.peers.nvtabular_recipe", python=str(python), ties=False
        )  # fmt: skip
    if name == "nvidia_recipe":
        memory = max(2, int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB / 2.5))
        return Contender(name, "benchmarks.peers.nvidia_recipe", {"memory": f"{memory}g"})
    return Contender(name, f"benchmarks.peers.{name}_recipe")


def _median(runs: Sequence[Run]) -> Run:
    """Returns the run of median time."""
    return sorted(runs, key=lambda run: run.seconds)[(len(runs) - 1) // 2]


def _print(
    log: str,
    rows: int,
    mine: Run,
    peers: dict[str, dict[str, Any]],
    ratios: dict[str, float | None],
    targets: dict[str, float],
) -> None:
    head = [
        "contender",
        "seconds",
        "CPU s",
        "start-up s",
        "peak RSS GiB",
        "peak PSS GiB",
        "rows/s",
        "ours is",
    ]
    contenders = {"ours": mine.facts(rows), **peers}
    lines = []
    for name, facts in contenders.items():
        ratio = ratios.get(name)
        if facts["seconds"] is None:
            lines.append([name, *["–"] * 7])
            continue
        lines.append(
            [
                name,
                *(
                    "–" if facts[key] is None else f"{facts[key]:.1f}"
                    for key in ("seconds", "cpu_s", "start_up_s", "peak_rss_gib", "peak_pss_gib")
                ),
                f"{facts['rows_per_s']:,}",
                "" if ratio is None else f"{ratio:.2f} × faster",
            ]
        )
    print(f"{log}; every cell of every contender agrees\n")
    print(table(head, lines), end="\n\n")
    for name, facts in peers.items():
        print(verdict(name, ratios[name], facts, targets[name]))
    print("seconds of ours: " + ", ".join(f"{part} {seconds:.1f}" for part, seconds in mine.parts.items()))


def verdict(name: str, ratio: float | None, facts: dict[str, Any], target: float) -> str:
    """Returns a sentence that compares our time with a peer's, and says whether the target is met."""
    if ratio is None:
        at_least = facts.get("ratio_at_least")
        bound = f"; ours is at least {at_least} times faster" if at_least else ""
        return f"{name}: not measured ({str(facts['reason']).splitlines()[0]}){bound}"
    met = "met" if ratio >= target else "MISSED"
    if ratio >= 1:
        return f"{name}: ours is {ratio:.2f} times faster (target {target:g}: {met})"
    return (
        f"{name} wins: it takes {ratio:.2f} of our time, "
        f"ours is {1 / ratio:.2f} times slower (target {target:g}: {met})"
    )


def say(text: str) -> None:
    print(f"etl: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Disagreement, ContenderFailed) as error:
        print(f"etl: {error}", file=sys.stderr)
        sys.exit(1)
