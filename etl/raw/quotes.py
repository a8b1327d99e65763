"""Fields of CSV lines with double quotes, by the strict rule of RFC 4180, in both engines.

A field that holds a double quote begins and ends with one, and doubles each one in between. A line that breaks the rule is
no row (reason `quote`): it is what remains of a field with a line break inside, and its parts belong to different rows.
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
    """Regular expressions of Python and Java: (of a line that obeys the rule, of a field and the separator behind it).

    All repetitions are possessive: they never step back, so that no line is too long for Java's stack.
    """
    end = f"\\{separator}" if separator in string.punctuation else separator
    field = f'(?:"[^"]*+(?:""[^"]*+)*+"|[^"{end}]*+)'
    return f"(?:{field}{end})*+{field}", f"({field}){end}"


def split_line(line: str, separator: str) -> list[str] | None:
    """The fields of a line without their quotes; None if it breaks the rule."""
    if '"' not in line:
        return line.split(separator)
    whole, one = _patterns(separator)
    if not re.fullmatch(whole, line):
        return None
    fields = re.findall(one, line + separator)
    return [field[1:-1].replace('""', '"') if field.startswith('"') else field for field in fields]


def is_broken(line: Column, separator: str) -> Column:
    """Whether a line breaks the rule."""
    return F.contains(line, F.lit('"')) & ~line.rlike(rf"\A{_patterns(separator)[0]}\z")


def quoted_fields(line: Column, separator: str) -> Column:
    """The fields of a line that obeys the rule, without their quotes, as an array."""
    fields = F.regexp_extract_all(F.concat(line, F.lit(separator)), F.lit(_patterns(separator)[1]), F.lit(1))
    return F.transform(fields, _without_quotes)


def _without_quotes(field: Column) -> Column:
    inner = field.substr(F.lit(2), F.length(field) - 2)
    return F.when(field.startswith('"'), F.replace(inner, F.lit('""'), F.lit('"'))).otherwise(field)
