"""Helpers for messages: they escape control characters, format counts, and name the program of a job.

A terminal executes control characters. An id with control characters could clear the screen, change the text
above, or set the title of the window. With bidirectional overrides, the id could show its characters in a
different order.
"""

from __future__ import annotations

import json
import logging
import os
import re
from typing import Any

# Characters that are escaped: C0 controls, DEL, C1 controls, the Arabic letter mark, directional marks, line
# and paragraph separators, bidirectional embeddings, overrides and isolates, and lone surrogates, which
# cannot be encoded.
_UNSAFE = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_ANY = re.compile(f"[{_UNSAFE}]")
_ANY_BUT_NEWLINE = re.compile(f"(?!\n)[{_UNSAFE}]")


def is_printable(text: str) -> bool:
    """Returns whether `printable` would return the text unchanged."""
    return _ANY.search(text) is None


def printable(value: object) -> str:
    r"""Returns a value as text for a terminal. Control characters become escapes such as \x1b or \u202e."""
    return _ANY.sub(_escaped, str(value))


def printable_lines(text: str) -> str:
    """Returns a text as `printable` does, but keeps line feeds and replaces tabs with four spaces."""
    return _ANY_BUT_NEWLINE.sub(_escaped, text.replace("\t", "    "))


def shortened(text: str, most: int = 100) -> str:
    """Returns a text of at most about `most` characters: the middle of a longer text is left out."""
    if len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]}… ({len(text):,} characters) …{text[-most // 6 :]}"


def json_line(value: Any) -> str:
    """Returns a value as JSON on one line of printable ASCII; raises ValueError for NaN and infinity."""
    return json.dumps(value, allow_nan=False).replace(
        "\x7f", "\\u007f"
    )  # the only control character that json.dumps does not escape


def _escaped(match: re.Match[str]) -> str:
    return repr(match[0])[1:-1]  # repr escapes all of these characters, in Python's notation


class PrintableFormatter(logging.Formatter):
    """A formatter of log records that escapes control characters in messages and tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as printable text."""
        return printable_lines(super().format(record))


# Counted nouns for messages and pages: `1 row`, `2 rows`.


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Returns a whole number with thousands separators, and the noun in singular or plural.

    Args:
        count: the number.
        noun: the noun in singular, such as `row`.
        plural: the plural; None if it adds an s.
    """
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


# The program name in a job's usage and errors: the job's script, or the command of `nightrank` that started
# it.

_VARIABLE = "NIGHTRANK_PROGRAM"


def started_by(command: str) -> None:
    """Sets the name that a job shows in its usage and errors: the command of `nightrank` that starts it.

    The command calls this function before its process is replaced by the job (exec).
    """
    os.environ[_VARIABLE] = command


def program_name(script: str) -> str:
    """Returns the name of this job's program. Processes that the job starts do not inherit the name."""
    return os.environ.pop(_VARIABLE, script)
