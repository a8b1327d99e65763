"""Compares a retraining run of the demo with a plain script that computes the same.

    .venv/bin/python benchmarks/run.py [--quick] [--scales N …] [--pairs N]

Our contender is `jobs/nightly.py --retrain` with benchmarks/run.yaml. The peer is benchmarks/peers/plain_run.py,
a script with pyarrow and torch. Both read the same log, train the same models, and make lists for all users.

At the scale 1, the log is that of the demo: 60,000 rows a day, 4,000 users and 800 items. At the scales 10 and
100, rows per day and users are multiplied by the scale. So each user has as many rows as before, and the number
of scored pairs grows with the scale. The number of items stays the same. If there is too little free disk for a
scale, the scale is left out.

Each contender makes two runs, one after the other:

* fresh: the first run on the log, for 2026-01-09. It trains from random weights on six days.
* warm: the run of the next day, as in production. It extends the vocabularies, and trains from the weights of
  the first run on one new day.

Contenders take turns. In a pair, each contender starts in an empty folder and makes both runs. So every warm run
continues from the same state, and no state is copied. The order of the contenders changes from pair to pair.
The first pair does not count: it fills the file cache and stores compiled code. Figures are medians over the
other pairs: seven at the scales 1 and 10, and one at the scale 100. Seconds and CPU seconds are those of whole
process trees (benchmarks/harness.py), from the start of the first process to the end of the last one.

The results of each pair are compared (benchmarks/run_agreement.py). If rows, users, AUC or lists differ, the
benchmark fails. Ratios say how many times as fast as the script nightly is, by wall time or by CPU time. Targets
limit the inverse: how many times the script's seconds nightly takes.

The script keeps all rows in memory. If a run of the script fails at a large scale, for example because the system
kills it when memory runs out, this is reported, and only nightly is measured at that scale.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # benchmarks has files named like packages

import pyarrow as pa

from benchmarks.agreement import Disagreement
from benchmarks.report import GIB, machine, summary_line
from benchmarks.run_agreement import clicks_of, require_same_work
from benchmarks.run_contenders import (
    CACHE,
    DISK_BYTES_PER_SCALE,
    FRESH_DATE,
    LAST_DAY,
    WARM_DATE,
    Contender,
    Nightly,
    PlainScript,
    Run,
    RunFailed,
    make_log,
)
from benchmarks.run_output import Runs, Scale, median_cpu, median_peak, median_wall, parts_of, print_scale

SCALES, PAIRS, LARGEST_SCALE_PAIRS = (1, 10, 100), 7, 1
KINDS = {"fresh": (FRESH_DATE, WARM_DATE), "warm": (WARM_DATE, LAST_DAY)}  # run date, day after it
# The largest number of times that our wall or CPU seconds may be those of the script.
TARGETS = {
    "1x_warm_wall": {"milestone": 3.0, "target": 2.0},
    "10x_warm_cpu": {"target": 1.3},
    "100x_warm_wall": {"target": 1.0},
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="scale 1, one pair, no pair that does not count")
    parser.add_argument(
        "--scales", type=int, nargs="+", choices=SCALES, help="scales to measure (default all)"
    )
    parser.add_argument(
        "--pairs", type=int, help=f"pairs per scale (default {PAIRS}; {LARGEST_SCALE_PAIRS} at the scale 100)"
    )
    parser.add_argument("--cores", type=int, default=2, help="cores each contender is pinned to (default 2)")
    options = parser.parse_args(arguments)
    if options.pairs is not None and options.pairs < 1:
        parser.error(f"--pairs {options.pairs} is less than 1")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    of_machine = machine(options.cores, ("pyspark", "torch", "pyarrow"))
    results: dict[str, dict[str, Any]] = {Nightly.name: {}, PlainScript.name: {}}
    ratios: dict[str, float | None] = {}
    figures, skipped = {}, {}
    for scale in options.scales or ((1,) if options.quick else SCALES):
        missing = missing_disk(scale)
        if missing:
            skipped[f"{scale}x"] = missing
            ratios |= dict.fromkeys(f"{scale}x_{kind}_{what}" for kind in KINDS for what in ("wall", "cpu"))
            say(f"scale {scale} is left out: {missing}")
            continue
        pairs = options.pairs or (1 if options.quick else LARGEST_SCALE_PAIRS if scale == 100 else PAIRS)
        measured = measure_scale(scale, pairs, options.cores, warm_up=not options.quick)
        figures[f"{scale}x"] = measured.agreement
        for name, of_name in facts(measured.runs).items():
            results[name][f"{scale}x"] = of_name
        if measured.failed:
            results[PlainScript.name][f"{scale}x"] = {"failed": measured.failed}
        ratios |= ratios_of(scale, measured.runs)
        print_scale(scale, measured)
    for line in verdicts(ratios):
        print(line)
    peers = {PlainScript.name: {**results[PlainScript.name], "skipped": skipped}}
    print(
        summary_line(
            "run", of_machine, results[Nightly.name], peers, ratios,
            targets=TARGETS, agreement=figures, quick=options.quick,
        )
    )  # fmt: skip
    return 0


def missing_disk(scale: int) -> str | None:
    """Returns why there is too little free disk for a scale; None if there is enough."""
    CACHE.mkdir(parents=True, exist_ok=True)
    free, needed = shutil.disk_usage(CACHE).free, scale * DISK_BYTES_PER_SCALE
    if (CACHE / f"{scale}x/log").exists():
        needed //= 2  # the log exists
    if free >= needed:
        return None
    return (
        f"{needed / GIB:.1f} GiB of free disk are needed in {CACHE}, but only {free / GIB:.1f} GiB are free"
    )


def measure_scale(scale: int, pairs: int, cores: int, *, warm_up: bool) -> Scale:
    """Measures both contenders at a scale, or only nightly if the script fails.

    Raises:
        RunFailed: nightly failed, or the script failed at the smallest scale.
    """
    say(f"log of scale {scale} …")
    log = make_log(scale)
    work = CACHE / f"{scale}x/work"
    contenders: list[Contender] = [
        kind(log, work / kind.name, scale, cores) for kind in (Nightly, PlainScript)
    ]
    clicks = {kind: clicks_of(log / "raw", day_after, cores) for kind, (_, day_after) in KINDS.items()}
    runs: dict[str, dict[str, list[Run]]] = {kind: {one.name: [] for one in contenders} for kind in KINDS}
    agreement = []
    failed: str | None = None
    try:
        for pair in range(pairs + warm_up):
            counts = pair >= warm_up
            ordered = contenders if pair % 2 == 0 else contenders[::-1]
            pair_runs, error = measure_pair(
                [one for one in ordered if not failed or one.name == Nightly.name],
                "" if counts else " (does not count)",
            )
            if error is not None and scale == 1:
                raise error
            failed = failed or (str(error) if error else None)
            for kind, of_pair in pair_runs.items():
                if not failed:
                    agreement.append({"run": kind, **compared(of_pair, clicks[kind])})
                if counts:
                    for name, run in of_pair.items():
                        runs[kind][name].append(run)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if failed:
        runs = {kind: {Nightly.name: of_kind[Nightly.name]} for kind, of_kind in runs.items()}
    return Scale(runs, agreement, failed)


def measure_pair(
    contenders: Sequence[Contender], note: str
) -> tuple[dict[str, dict[str, Run]], RunFailed | None]:
    """Returns the runs of a pair, by kind and contender, and the error of the script if it failed.

    `note` is added to the line that says what was measured.

    Raises:
        RunFailed: nightly failed.
    """
    runs: dict[str, dict[str, Run]] = {kind: {} for kind in KINDS}
    failed: RunFailed | None = None
    for contender in contenders:
        try:
            for kind, run in runs_of(contender, note):
                runs[kind][contender.name] = run
        except RunFailed as error:
            if contender.name == Nightly.name:
                raise
            failed = error
            say(f"{contender.name} failed: {error}")
        finally:
            contender.end()
    return runs, failed


def compared(runs: Mapping[str, Run], clicks: pa.Table) -> dict[str, float]:
    """Returns AUC and hit rate of the two contenders' runs. Raises Disagreement if their results differ."""
    figures = require_same_work(runs[Nightly.name], runs[PlainScript.name], clicks)
    return {name: round(value, 4) for name, value in figures.items()}


def runs_of(contender: Contender, note: str) -> Iterator[tuple[str, Run]]:
    """Yields the fresh run and the warm run of a contender, which starts in an empty folder.

    `note` is added to the line that says what was measured.
    """
    contender.start()
    for kind, (run_date, _) in KINDS.items():
        run = contender.run(run_date, warm=kind == "warm")
        say(
            f"{contender.name}, {kind}: {run.measured.wall_s:.1f} s, CPU {run.measured.cpu_s:.1f} s, "
            f"{run.measured.peak_rss_bytes / GIB:.1f} GiB{note}"
        )
        yield kind, run


def ratios_of(scale: int, runs: Runs) -> dict[str, float | None]:
    """Returns how many times as fast as the script our run is, by wall and CPU seconds.

    A ratio is None if the script has no runs, because it failed.
    """
    return {
        f"{scale}x_{kind}_{what}": median(of_kind[PlainScript.name]) / median(of_kind[Nightly.name])
        if PlainScript.name in of_kind
        else None
        for kind, of_kind in runs.items()
        for what, median in (("wall", median_wall), ("cpu", median_cpu))
    }


def facts(runs: Runs) -> dict[str, dict[str, Any]]:
    """Returns the medians of each contender, by kind of run."""
    return {
        name: {
            kind: {
                "seconds": round(median_wall(of_kind[name]), 2),
                "cpu_s": round(median_cpu(of_kind[name]), 2),
                "peak_rss_gib": round(median_peak(of_kind[name]) / GIB, 2),
                "rows": of_kind[name][0].kept,
                "dropped": of_kind[name][0].dropped,
                "parts": {part: round(seconds, 2) for part, seconds in parts_of(of_kind[name]).items()},
                "walls": [round(run.measured.wall_s, 2) for run in of_kind[name]],
                "cpus": [round(run.measured.cpu_s, 2) for run in of_kind[name]],
            }
            for kind, of_kind in runs.items()
        }
        for name in runs["fresh"]
    }


def verdicts(ratios: Mapping[str, float | None]) -> list[str]:
    """Returns a sentence for each target, which says whether it is met."""
    lines = []
    for name, limits in TARGETS.items():
        if name not in ratios:
            continue
        ratio = ratios[name]
        if ratio is None:
            lines.append(f"{name}: no ratio, because a contender was not measured or did not finish")
            continue
        states = [
            f"{kind} at most {limit:g}: {'met' if 1 / ratio <= limit else 'MISSED'}"
            for kind, limit in limits.items()
        ]
        lines.append(
            f"{name}: nightly takes {1 / ratio:.2f} times as much as the script ({'; '.join(states)})"
        )
    return lines


def say(text: str) -> None:
    print(f"run: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Disagreement, RunFailed) as error:
        print(f"run: {error}", file=sys.stderr)
        sys.exit(1)
