"""The job summary: the JSON object that a job writes to standard output as its last line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from conf.messages import json_line

_TAIL_BYTES = 256 * 1024  # longer than any Java stack trace that can follow the summary
_KEYS = ("job", "run_date", "rows_in", "rows_out", "dropped", "seconds", "output")


@dataclass(frozen=True)
class JobSummary:
    """The summary of one run of one job, written as one line of JSON without the keys whose value is None.

    Attributes:
        output: path of the table, model or file that the job published.
        rows_in, rows_out: number of rows read, and number of rows published.
        dropped: maps each reason for leaving out rows to the number of rows.
        facts: further JSON values of this job. In the line, their keys stand at the same level as the other
            keys.
        job, run_date: the name of the job and its run date. The code that runs the job sets them.
        seconds: maps each phase to its duration in seconds, and `total` to the duration of the whole run. The
            code that runs the job sets them.
    """

    output: str | None
    rows_in: int | None = 0
    rows_out: int | None = 0
    dropped: Mapping[str, int] | None = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    job: str = ""
    run_date: str | None = ""
    seconds: Mapping[str, float] = field(default_factory=dict)

    def completed(
        self, job: str, run_date: str | None, phases: Mapping[str, float], seconds: float
    ) -> JobSummary:
        """Returns a copy of the summary with the name of the job, its run date and its seconds.

        Args:
            phases: maps each phase of the run to its duration in seconds.
            seconds: the duration of the whole run in seconds.
        """
        return replace(self, job=job, run_date=run_date, seconds={**phases, "total": round(seconds, 2)})

    def values(self) -> dict[str, Any]:
        """Returns the keys and values of the JSON line, in the order of the line."""
        values = ((key, getattr(self, key)) for key in _KEYS)
        reported = {key: dict(value) if isinstance(value, Mapping) else value for key, value in values}
        return {**{key: value for key, value in reported.items() if value is not None}, **self.facts}

    def line(self) -> str:
        """Returns the summary as one line of JSON, without line break.

        Raises:
            ValueError: a value is not JSON, such as NaN.
        """
        json.dumps(self.values(), allow_nan=False)
        return json_line(self.values())

    @classmethod
    def parse(cls, line: str) -> JobSummary | None:
        """Parses a line of a job's output. Returns None if the line is not a summary."""
        if not line.startswith("{"):
            return None
        with suppress(json.JSONDecodeError):
            values = json.loads(line)
            if isinstance(values, dict) and {"job", "seconds"} <= values.keys():
                facts = {key: value for key, value in values.items() if key not in _KEYS}
                known: dict[str, Any] = {key: values.get(key) for key in _KEYS}
                return cls(**known, facts=facts)
        return None

    @classmethod
    def last_of(cls, lines: Iterable[str]) -> JobSummary | None:
        """Returns the last summary among lines of output; None if there is none."""
        summaries = (cls.parse(line) for line in reversed([*lines]))
        return next((summary for summary in summaries if summary is not None), None)

    @classmethod
    def in_log(cls, log: Path) -> JobSummary | None:
        """Returns the last summary in a job's log file; None if there is none."""
        return cls.last_of(log_tail(log))


def log_tail(log: Path) -> list[str]:
    """Returns the last lines of a log file."""
    with log.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        return file.read().decode("utf-8", errors="replace").splitlines()
