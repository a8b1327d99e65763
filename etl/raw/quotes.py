"""Splits CSV lines with double quotes by the strict rule of RFC 4180, in Python and as Spark expressions.

A field that contains a double quote must begin and end with a double quote, and each double quote inside the
field must be doubled. A line that violates this rule is rejected with the reason `quote`. The usual cause is
a field with a line break, which divides a row into two lines.
"""

from __future__ import annotations

import re
import string
from functools import lru_cache

from pyspark.sql import Column
from pyspark.sql import functions as F

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


def is_broken(line: Column, separator: str) -> Column:
    """Returns a condition that is true if a line violates the rule for double quotes (RFC 4180)."""
    return F.contains(line, F.lit('"')) & ~line.rlike(rf"\A{_patterns(separator)[0]}\z")


def quoted_fields(line: Column, separator: str) -> Column:
    """Returns the fields of a line without their quotes, as an array of strings.

    The line must obey the rule for quotes: `is_broken` must be false.
    """
    fields = F.regexp_extract_all(F.concat(line, F.lit(separator)), F.lit(_patterns(separator)[1]), F.lit(1))
    return F.transform(fields, _without_quotes)


def _without_quotes(field: Column) -> Column:
    inner = field.substr(F.lit(2), F.length(field) - 2)
    return F.when(field.startswith('"'), F.replace(inner, F.lit('""'), F.lit('"'))).otherwise(field)
