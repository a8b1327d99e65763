"""The job summary: the JSON object that a job writes to standard output as its last line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conf.printable import json_line

_TAIL_BYTES = 256 * 1024  # more than the Java stack trace that may stand behind the summary
_KEYS = ("job", "run_date", "rows_in", "rows_out", "dropped", "seconds", "output")


@dataclass(frozen=True)
class JobSummary:
    """What one run of one job reports.

    Attributes:
        output: path of the table, model or file that the job published.
        rows_in, rows_out: rows read and published.
        dropped: reason → rows left out.
        facts: further JSON values, particular to the job; they stand beside the other keys in the line.
        job, run_date: filled in by the runner.
        seconds: phase → seconds, `total` for the whole run; filled in by the runner.
    """

    output: str
    rows_in: int = 0
    rows_out: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    job: str = ""
    run_date: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """The keys and values of the line, in its order."""
        return {
            "job": self.job,
            "run_date": self.run_date,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "dropped": dict(self.dropped),
            "seconds": dict(self.seconds),
            "output": self.output,
            **self.facts,
        }

    def line(self) -> str:
        """The line itself, without line break.

        Raises:
            ValueError: a value is not JSON, such as NaN.
        """
        json.dumps(self.values(), allow_nan=False)
        return json_line(self.values())

    @classmethod
    def parse(cls, line: str) -> JobSummary | None:
        """The summary in a line of a job's output; None if the line is something else."""
        if not line.startswith("{"):
            return None
        with suppress(json.JSONDecodeError):
            values = json.loads(line)
            if isinstance(values, dict) and {"job", "seconds"} <= values.keys():
                facts = {key: value for key, value in values.items() if key not in _KEYS}
                known = {key: values[key] for key in _KEYS if key in values}
                return cls(**{"output": "", **known}, facts=facts)
        return None

    @classmethod
    def last_of(cls, lines: Iterable[str]) -> JobSummary | None:
        """The last summary among lines of output; None if there is none."""
        summaries = (cls.parse(line) for line in reversed([*lines]))
        return next((summary for summary in summaries if summary is not None), None)


def log_tail(log: Path) -> list[str]:
    """The last lines of a log file."""
    with log.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        return file.read().decode("utf-8", errors="replace").splitlines()


def summary_in(log: Path) -> dict[str, Any]:
    """The keys and values of the last summary in a job's log; empty if there is none."""
    summary = JobSummary.last_of(log_tail(log))
    return {} if summary is None else summary.values()
