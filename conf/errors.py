"""The errors a job may end with. Each carries the exit code that tells a scheduler whether a retry can help."""

import re

from conf.printable import printable_lines

EXIT_OK = 0
EXIT_CRASHED = 1  # Python's own, of an error that nobody expected
EXIT_CONFIG = 2
EXIT_DATA = 3
EXIT_INFRASTRUCTURE = 4


class NightrankError(Exception):
    """Base of our errors: says what is wrong and, on its own line, what to do about it. As text it is safe for a terminal.

    Args:
        problem: what is wrong, naming the file, column and value.
        remedy: what the reader of the message should do now.
    """

    exit_code = EXIT_INFRASTRUCTURE

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return printable_lines(f"{self.problem}\n  what to do: {self.remedy}")


class ConfigError(NightrankError):
    """Bad configuration or arguments: a retry without a change cannot help (exit code 2)."""

    exit_code = EXIT_CONFIG


class DataError(NightrankError):
    """Bad or missing data: a retry without new data cannot help (exit code 3)."""

    exit_code = EXIT_DATA


class InfrastructureError(NightrankError):
    """Something around us failed (disk, network, a lost rank): worth a retry (exit code 4)."""

    exit_code = EXIT_INFRASTRUCTURE


_RAISED = re.compile(
    r"^conf\.errors\.(ConfigError|DataError|InfrastructureError): (.*?)\n  what to do: (.*?)$",
    re.MULTILINE | re.DOTALL,
)


def raised_in(traceback: str) -> NightrankError | None:
    """Our error that ended another process, read from the traceback text which is all that Spark brings back of it."""
    match = _RAISED.search(traceback)
    if match is None:
        return None
    kinds = {kind.__name__: kind for kind in (ConfigError, DataError, InfrastructureError)}
    return kinds[match[1]](match[2], match[3])
