"""Measures how the time and memory of build_features grow with the number of rows in its log.

    .venv/bin/python benchmarks/etl_scaling.py [--quick] [--rows N N N] [--repeats N] [--set a.b=c …]

The job runs on logs of three sizes. Its time is linear if a row takes as much time in a large log as in a
small one. For each size except the smallest, `ratios` contains two ratios: the seconds per row and the CPU
seconds per row, each divided by the same figure of the next smaller size. Each ratio should be within 15% of
1.

Some work of a run does not depend on the number of rows, such as planning, manifests and the start of Python
workers. This work makes a row of a small log more expensive. Therefore `marginal` is printed too. Let t1, t2
and t3 be the seconds, and n1, n2 and n3 the numbers of rows, of the smallest, middle and largest log. Then
`marginal` is ((t3 - t2) / (n3 - n2)) / ((t2 - t1) / (n2 - n1)).

The memory is that of all processes of the job: the JVM, which contains driver and executor, and its Python
workers. The memory should not grow with the number of rows, although the vocabularies of a larger log contain
more values. This script runs no peers; benchmarks/etl.py does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a file in this folder hides our package etl

from benchmarks.agreement import Disagreement
from benchmarks.criteo_log import make_log
from benchmarks.etl_runs import CACHE, DAYS, ContenderFailed, Run, job, log_by_day, run_contender
from benchmarks.report import machine, summary_line, table

ROWS, QUICK_ROWS = (4_000_000, 8_000_000, 16_000_000), (250_000, 500_000, 1_000_000)
WITHIN = 0.15
LIMIT_S = 7200.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} rows")
    parser.add_argument(
        "--rows", type=int, nargs="+", help=f"numbers of rows, in ascending order (default {ROWS})"
    )
    parser.add_argument(
        "--repeats", type=int, default=1, help="runs at each size (default 1); the run of median time is used"
    )
    parser.add_argument("--cores", type=int, default=2, help="cores the job is pinned to (default 2)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        help="change a configuration key, as --set of build_features does",
    )
    options = parser.parse_args(arguments)
    sizes = options.rows or (QUICK_ROWS if options.quick else ROWS)
    of_machine = machine(options.cores, ("pyspark", "pyarrow"))
    runs = {rows: _run(rows, options) for rows in sizes}
    facts = {str(rows): _facts(rows, run) for rows, run in runs.items()}
    ratios = growth(facts)
    _print(facts, ratios)
    more = {"within": WITHIN, "overrides": options.overrides, "repeats": options.repeats}
    print(summary_line("etl_scaling", of_machine, {"sizes": facts}, {}, ratios, **more))
    return 0


def _run(rows: int, options: argparse.Namespace) -> Run:
    log = log_by_day(make_log(CACHE, rows, DAYS))
    contender = job(log, options.overrides)
    runs = []
    for turn in range(options.repeats):
        print(f"etl_scaling: {rows:,} rows ({turn + 1} of {options.repeats}) …", file=sys.stderr, flush=True)
        runs.append(run_contender(contender, log, options.cores, LIMIT_S, compared=False))
    return sorted(runs, key=lambda run: run.seconds)[(len(runs) - 1) // 2]


def _facts(rows: int, run: Run) -> dict[str, Any]:
    return {
        **run.facts(rows),
        "microseconds_a_row": round(run.seconds / rows * 1e6, 3),
        "cpu_microseconds_a_row": round(run.cpu_s / rows * 1e6, 3),
    }


def growth(facts: dict[str, dict[str, Any]]) -> dict[str, float | None]:
    """Returns the figures of each size divided by those of the next smaller size.

    The figures are the seconds per row, the CPU seconds per row, and the peak memory. The module's docstring
    defines the key `marginal`.
    """
    sizes = sorted(facts, key=int)
    ratios: dict[str, float | None] = {}
    marginal: list[float] = []
    for small, large in pairwise(sizes):
        mine, before = facts[large], facts[small]
        ratios[f"seconds_a_row {large}/{small}"] = mine["microseconds_a_row"] / before["microseconds_a_row"]
        ratios[f"cpu_a_row {large}/{small}"] = (
            mine["cpu_microseconds_a_row"] / before["cpu_microseconds_a_row"]
        )
        ratios[f"peak_pss {large}/{small}"] = mine["peak_pss_gib"] / before["peak_pss_gib"]
        marginal.append((mine["seconds"] - before["seconds"]) / (int(large) - int(small)))
    if len(marginal) >= 2:
        ratios["marginal"] = marginal[-1] / marginal[-2] if marginal[-2] > 0 else None
    return ratios


def _print(facts: dict[str, dict[str, Any]], ratios: dict[str, float | None]) -> None:
    head = ["rows", "seconds", "CPU s", "µs a row", "CPU µs a row", "peak RSS GiB", "peak PSS GiB"]
    keys = (
        "seconds",
        "cpu_s",
        "microseconds_a_row",
        "cpu_microseconds_a_row",
        "peak_rss_gib",
        "peak_pss_gib",
    )
    print(
        table(
            head, [[f"{int(rows):,}", *(f"{fact[key]:.2f}" for key in keys)] for rows, fact in facts.items()]
        )
    )
    print()
    for name, ratio in ratios.items():
        if ratio is not None:
            print(f"{name}: {ratio:.3f}{'' if abs(ratio - 1) <= WITHIN else f', beyond {WITHIN:.0%}'}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Disagreement, ContenderFailed) as error:
        print(f"etl_scaling: {error}", file=sys.stderr)
        sys.exit(1)
