"""The interface of a contender of the ETL benchmarks: a module that takes a Task, times its parts and writes
a report.

    python -m benchmarks.<module> task.json

This module imports only the standard library, because peers may run in another Python environment.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LABEL = "label"
DENSE = tuple(f"I{i}" for i in range(1, 14))
CATEGORICAL = tuple(f"C{i}" for i in range(1, 27))
COLUMNS = (LABEL, *DENSE, *CATEGORICAL)

# Ids that all contenders assign: null, unknown or rare, and the first vocabulary entry.
NULL_ID, OOV_ID, FIRST_ID = 1, 2, 3

# The part whose time is compared. Everything before it counts as start-up.
WORK, START_UP = "work", "start_up"


@dataclass(frozen=True)
class Day:
    """One raw day: its date, its file, and whether the vocabularies are fitted on it."""

    dt: str
    file: str
    train: bool


@dataclass(frozen=True)
class Task:
    """The task of a contender.

    Attributes:
        days: oldest first.
        out: folder for Parquet, `scratch` for anything else; both exist and are empty.
        report: path of the contender's report.
        min_count: the frequency threshold: values that occur this often in the train days get an id.
        threads: number of cores that the contender may use.
        settings: settings of this contender alone.
    """

    days: tuple[Day, ...]
    out: str
    scratch: str
    report: str
    min_count: int
    threads: int
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def train_files(self) -> list[str]:
        return [day.file for day in self.days if day.train]

    @property
    def files(self) -> list[str]:
        return [day.file for day in self.days]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Task:
        values = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**values, "days": tuple(Day(**day) for day in values["days"])})


@dataclass
class Timing:
    """The named parts of a run. Each has its seconds and its start and end on CLOCK_MONOTONIC, which all
    processes share.
    """

    spans: dict[str, tuple[float, float]] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Times a block. A part that runs twice lasts from its first start to its last end."""
        start = time.monotonic()
        try:
            yield
        finally:
            first = self.spans.get(name, (start, start))[0]
            self.spans[name] = (first, time.monotonic())


@dataclass(frozen=True)
class Outcome:
    """The files and facts that a contender reports.

    Attributes:
        files: date → the Parquet files of that day.
        normalised: column → (mean, standard deviation) of the normalisation. Empty if only log1p was applied.
        facts: further values to print.
    """

    files: Mapping[str, Sequence[str]]
    normalised: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


def run(body: Callable[[Task, Timing], Outcome]) -> None:
    """Runs a contender: reads the task named on the command line, calls `body` and writes the report.

    `body` times its work (`WORK`) and, if it has a start-up beyond imports, that too (`START_UP`).
    """
    task = Task.load(Path(sys.argv[1]))
    timing = Timing()
    outcome = body(task, timing)
    report = {"spans": timing.spans, **asdict(outcome)}
    Path(task.report).write_text(json.dumps(report), encoding="utf-8")


def parquet_files(folder: Path) -> list[str]:
    """Returns the Parquet files in a folder and its subfolders, sorted by name."""
    return sorted(str(path) for path in folder.rglob("*.parquet"))
