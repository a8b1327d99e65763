"""Splits CSV lines with double quotes by the strict rule of RFC 4180, in Python and as Spark expressions.

A field that contains a double quote must begin and end with a double quote, and each double quote inside the
field must be doubled. A line that violates this rule is rejected with the reason `quote`. The usual cause is
a field with a line break, which divides a row into two lines.
"""

from __future__ import annotations

import re
import string
from functools import lru_cache

REASON = "quote"


@lru_cache(maxsize=16)
def _patterns(separator: str) -> tuple[str, str]:
    """Returns two regular expressions: for a valid line, and for a field with the separator after it.

    Both expressions work in Python and Java. All repetitions are possessive, because backtracking on a long
    line could overflow Java's stack.
    """
    end = f"\\{separator}" if separator in string.punctuation else separator
    field = f'(?:"[^"]*+(?:""[^"]*+)*+"|[^"{end}]*+)'
    return f"(?:{field}{end})*+{field}", f"({field}){end}"


def split_line(line: str, separator: str) -> list[str] | None:
    """Returns the fields of a line without their quotes; None if the line violates the rule for quotes."""
    if '"' not in line:
        return line.split(separator)
    line_pattern, field_pattern = _patterns(separator)
    if not re.fullmatch(line_pattern, line):
        return None
    fields = re.findall(field_pattern, line + separator)
    return [field[1:-1].replace('""', '"') if field.startswith('"') else field for field in fields]
