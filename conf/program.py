"""The name of a job in its usage and errors: its script, or the command `nightrank` that started it."""

from __future__ import annotations

import os

_VARIABLE = "NIGHTRANK_PROGRAM"


def started_by(command: str) -> None:
    """Says which command starts the job that replaces this process."""
    os.environ[_VARIABLE] = command


def program_name(script: str) -> str:
    """Returns the name of this job's program. Processes that the job starts do not inherit the name."""
    return os.environ.pop(_VARIABLE, script)
