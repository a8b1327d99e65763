"""The interface of the contenders (our job and its peers) of the ETL benchmarks.

A contender is a module that reads a Task, times the parts of its work and writes a report. It is run with:

    python -m benchmarks.<module> task.json

This file imports only the standard library, because peers may run in another Python environment.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from itertools import accumulate
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
    """One day of the raw log.

    Attributes:
        dt: the date.
        file: path of the day's file.
        train: True if vocabularies are fitted on this day.
    """

    dt: str
    file: str
    train: bool


@dataclass(frozen=True)
class Task:
    """The task of a contender.

    Attributes:
        days: the days of the log, oldest first. If the log has no dates, these are its splits.
        out: folder for the Parquet files of the result; exists and is empty.
        scratch: folder for all other files; exists and is empty.
        report: path of the report that the contender must write.
        min_count: the frequency threshold: values that occur at least this often in the train days get an id.
        threads: number of cores that the contender may use.
        settings: further settings, which only this contender has.
        format: the format of all files: `tsv`, `parquet` or `jsonl`.
        log: the files of a log without dates, in the order of its rows; empty if each day has a file.
        shares: the shares of train and validation of such a log (see `split_ends`); empty for a log by day.
    """

    days: tuple[Day, ...]
    out: str
    scratch: str
    report: str
    min_count: int
    threads: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    format: str = "tsv"
    log: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()

    @property
    def train_files(self) -> list[str]:
        return [day.file for day in self.days if day.train]

    @property
    def files(self) -> list[str]:
        return list(self.log) or [day.file for day in self.days]

    def split_ends(self, rows: int) -> list[int]:
        """Returns, for each split of a log of n rows, the number of the row after its last row.

        A row is in the train split if its number, counted from 0, is at most (n - 1) times the share of train. The
        validation split ends in the same way at the sum of both shares.
        """
        sums = accumulate(Fraction(str(share)) for share in self.shares)  # exact decimals
        return [*(math.floor((rows - 1) * share) + 1 for share in sums), rows]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Task:
        values = json.loads(path.read_text(encoding="utf-8"))
        tuples = {name: tuple(values[name]) for name in ("log", "shares")}
        return cls(**{**values, **tuples, "days": tuple(Day(**day) for day in values["days"])})


@dataclass
class Timing:
    """A stopwatch for the parts of a contender's work, such as `work` or `start_up`.

    Attributes:
        spans: maps the name of each part to the times at which it started and ended, in seconds of
            CLOCK_MONOTONIC. All processes of a machine share this clock.
    """

    spans: dict[str, tuple[float, float]] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Times the block of code as the part `name`.

        Two blocks with one name count as one part, which includes the time between them.
        """
        start = time.monotonic()
        try:
            yield
        finally:
            first = self.spans.get(name, (start, start))[0]
            self.spans[name] = (first, time.monotonic())


@dataclass(frozen=True)
class Outcome:
    """What a contender reports about its result.

    Attributes:
        files: maps each date to the Parquet files of that day.
        normalised: maps each normalised column to the (mean, standard deviation) with which it was
            normalised. Empty if the contender applied only log1p.
        facts: other values to print.
    """

    files: Mapping[str, Sequence[str]]
    normalised: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


def run(body: Callable[[Task, Timing], Outcome]) -> None:
    """Runs a contender: reads the task file that the command line names, calls `body` and writes the report.

    `body` must time its work with `timing.part(WORK)`. If `body` needs a start-up, such as opening a Spark
    session, it must time the start-up with `timing.part(START_UP)`.
    """
    task = Task.load(Path(sys.argv[1]))
    timing = Timing()
    outcome = body(task, timing)
    report = {"spans": timing.spans, **asdict(outcome)}
    Path(task.report).write_text(json.dumps(report), encoding="utf-8")


def parquet_files(folder: Path) -> list[str]:
    """Returns the Parquet files in a folder and its subfolders, sorted by name."""
    return sorted(str(path) for path in folder.rglob("*.parquet"))
