"""Formats the output of every benchmark: a table and, on the last line, one JSON object."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

GIB = 2**30


def machine(cores: int, packages: Sequence[str] = ()) -> dict[str, Any]:
    """Returns a description of the machine and its software, without the host name.

    Args:
        cores: number of cores of each contender.
        packages: packages whose installed versions are included.
    """
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": _processor(),
        "cores_used": cores,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB, 1),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "load_at_start": round(os.getloadavg()[0], 2),
        "packages": {name: _version(name) for name in packages},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats a table with a left-aligned first column and right-aligned figures."""
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        aligned = [
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(aligned).rstrip()

    return "\n".join([line(head), line(["-" * width for width in widths]), *(line(row) for row in rows)])


def summary_line(
    benchmark: str,
    of_machine: Mapping[str, Any],
    ours: Mapping[str, Any],
    peers: Mapping[str, Any],
    ratios: Mapping[str, float | None],
    **more: Any,
) -> str:
    """Returns the last line of standard output: a JSON object with all figures of a benchmark.

    Args:
        benchmark: name of the benchmark.
        of_machine: the result of `machine`.
        ours: figures of our code.
        peers: figures of each peer, or the reason why it did not run.
        ratios: how many times as fast as each peer our code is, unless the benchmark defines its ratios in
            another way; None if a peer did not run.
        more: other entries of the JSON object.
    """
    return json.dumps(
        {
            "benchmark": benchmark,
            "machine": dict(of_machine),
            "ours": dict(ours),
            "peers": dict(peers),
            "ratios": {name: None if ratio is None else round(ratio, 3) for name, ratio in ratios.items()},
            **more,
        },
        allow_nan=False,
    )
