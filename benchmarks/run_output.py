"""The tables that benchmarks/run.py prints for a scale, and the medians in them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.report import GIB, table
from benchmarks.run_contenders import Nightly, Run

Runs = Mapping[str, Mapping[str, Sequence[Run]]]  # kind of run -> contender -> one run per pair


@dataclass(frozen=True)
class Scale:
    """What was measured at one scale.

    Attributes:
        runs: maps the kind of run and the contender to one run per pair. A contender that failed has no runs.
        agreement: AUC and hit rate of both contenders, by pair and kind of run.
        failed: why the script failed; None if it did not.
    """

    runs: Runs
    agreement: Sequence[Mapping[str, Any]]
    failed: str | None = None


def median_wall(runs: Sequence[Run]) -> float:
    return statistics.median(run.measured.wall_s for run in runs)


def median_cpu(runs: Sequence[Run]) -> float:
    return statistics.median(run.measured.cpu_s for run in runs)


def median_peak(runs: Sequence[Run]) -> float:
    return statistics.median(run.measured.peak_rss_bytes for run in runs)


def parts_of(runs: Sequence[Run]) -> dict[str, float]:
    """Returns the median seconds of each part of a run, and those outside of all parts (start-up and end)."""
    parts = {part: statistics.median(run.parts[part] for run in runs) for part in runs[0].parts}
    outside = statistics.median(run.measured.wall_s - sum(run.parts.values()) for run in runs)
    return {**parts, "start-up and end": outside}


def print_scale(scale: int, measured: Scale) -> None:
    """Prints the table of a scale, and the tables of where the time goes."""
    runs, lines = measured.runs, []
    for kind, of_kind in runs.items():
        mine = of_kind[Nightly.name]
        for name, of_name in of_kind.items():
            wall, cpu = median_wall(of_name), median_cpu(of_name)
            times = (
                ["", ""]
                if name == Nightly.name
                else [f"{median_wall(mine) / wall:.2f}", f"{median_cpu(mine) / cpu:.2f}"]
            )
            lines.append(
                [f"{kind}: {name}", f"{wall:.1f}", f"{cpu:.1f}", f"{median_peak(of_name) / GIB:.1f}", *times]
            )
    print(
        f"{scale}x: {runs['warm'][Nightly.name][0].kept:,} good rows in the window of a run; medians of {len(mine)}\n"
    )
    head = ["run", "seconds", "CPU s", "peak RSS GiB", "nightly takes, × seconds", "nightly takes, × CPU s"]
    print(table(head, lines), end="\n\n")
    if measured.failed:
        print(f"plain_run does not finish at the scale {scale}: {measured.failed}", end="\n\n")
    for name in runs["fresh"]:
        by_kind = {kind: parts_of(of_kind[name]) for kind, of_kind in runs.items()}
        names = dict.fromkeys(part for kind in by_kind for part in by_kind[kind])
        body = [[part, *(_cell(by_kind[kind].get(part)) for kind in by_kind)] for part in names]
        print(table([f"{name}: part", *(f"{kind}, s" for kind in by_kind)], body), end="\n\n")


def _cell(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f}"
