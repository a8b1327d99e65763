"""The errors that end a job. The exit code of an error shows whether a retry can help."""

import re
import signal
from contextlib import suppress

from conf.messages import printable_lines, shortened

EXIT_OK = 0
EXIT_CRASHED = 1  # Python's exit code after an uncaught exception
EXIT_CONFIG = 2
EXIT_DATA = 3
EXIT_INFRASTRUCTURE = 4
_MOST_SHOWN = 4000  # maximum number of characters of the problem, and of the remedy, in an error's text


class NightrankError(Exception):
    """Base of all errors of this project. Its text states the problem and, on a second line, the remedy.

    Control characters in the text are escaped, so it is safe to print it on a terminal. If the problem or the
    remedy contains a very long name or value, the middle of the text is left out.

    Args:
        problem: describes the error, with the file, the column and the value.
        remedy: says what the reader of the message should do.
    """

    exit_code = EXIT_INFRASTRUCTURE

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        problem, remedy = shortened(self.problem, _MOST_SHOWN), shortened(self.remedy, _MOST_SHOWN)
        return printable_lines(f"{problem}\n  what to do: {remedy}")


class ConfigError(NightrankError):
    """Bad configuration or arguments: a retry without a change cannot help (exit code 2)."""

    exit_code = EXIT_CONFIG


class DataError(NightrankError):
    """Bad or missing data: a retry without new data cannot help (exit code 3)."""

    exit_code = EXIT_DATA


class InfrastructureError(NightrankError):
    """The environment failed (disk, network, a lost rank): a retry may help (exit code 4)."""

    exit_code = EXIT_INFRASTRUCTURE


def meaning_of(exit_code: int) -> str:
    """Returns a few words that explain the exit code of a failed job."""
    known = {
        EXIT_CONFIG: "configuration",
        EXIT_DATA: "data",
        EXIT_INFRASTRUCTURE: "infrastructure: worth a retry",
    }
    if exit_code in known:
        return known[exit_code]
    if exit_code > 128:
        with suppress(ValueError):
            return f"killed by {signal.Signals(exit_code - 128).name}: worth a retry"
    return "crashed: worth a retry"


_RAISED = re.compile(
    r"^conf\.errors\.(ConfigError|DataError|InfrastructureError): (.*?)\n  what to do: (.*?)$",
    re.MULTILINE | re.DOTALL,
)


def raised_in(traceback: str) -> NightrankError | None:
    """Returns the NightrankError that ended another process, parsed from the traceback of that process.

    Returns None if the traceback contains no NightrankError. This parsing is needed because Spark returns
    only the text of a worker's traceback, not the exception.
    """
    match = _RAISED.search(traceback)
    if match is None:
        return None
    kinds = {kind.__name__: kind for kind in (ConfigError, DataError, InfrastructureError)}
    return kinds[match[1]](match[2], match[3])
