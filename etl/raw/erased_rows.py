"""Leaves out the rows of erased users when a raw log is read.

The job erase_user does not change raw logs. It adds users to the list of storage/erased_users.py, with the
last day whose rows are left out. A row of an erased user gets the reason ERASED instead of any other reason.
Such rows are counted, but they are not used. They are not quarantined either, because the quarantine stores
the text of rejected lines. So a rejected line also gets the reason ERASED if one of its fields is the id of
an erased user. If the log is not stored by day, every run reads the whole log again, and leaves out the rows
of these users.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from conf.lazy_imports import F
from conf.names import has_date
from conf.types import Config, RawTable
from storage.erased_users import ErasedUsers, read_erased
from storage.paths import LakePaths

if TYPE_CHECKING:  # Tasks import this module in Python workers, which do not need pyspark.
    from pyspark.sql import Column

ERASED = "erased_user"
_AROUND = '"\r'
# The separators of the values in a JSON object: quotes, and the punctuation between values without quotes.
_QUOTED, _UNQUOTED = re.compile('"'), re.compile(r"[\s,:{}\[\]]+")


def erased_of_day(config: Config, dt: str) -> ErasedUsers | None:
    """Returns the erased users whose rows in a day's log are left out; None if there are none."""
    if config.keys is None:
        return None
    erased = read_erased(LakePaths(config.lake))
    return erased.of_day(dt if config.split.by == "day" else None) if erased else None


def erased_of_table(config: Config, table: RawTable, dt: str) -> ErasedUsers | None:
    """Returns the erased users whose rows in a table of user attributes are left out; None if there are none.

    If the table is not stored by day, it may still contain users who were erased on an earlier day.
    """
    erased = read_erased(LakePaths(config.lake))
    return erased.of_day(dt if has_date(table.path) else None) if erased else None


def has_erased_field(line: str, separator: str, erased: ErasedUsers) -> bool:
    """Returns whether a field of a line, without quotes around it, is the id of an erased user.

    If a line begins like a JSON object but is not valid, its names and values are treated as fields too.
    Valid JSON objects are not searched, because the reader finds the user in them.
    """
    if any(erased.has(text.strip(_AROUND)) for text in line.split(separator)):
        return True
    if not line.lstrip().startswith("{"):
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return any(erased.has(text) for text in json_texts(line))
    return False


def json_texts(line: str) -> set[str]:
    """Returns the names and values in the text of a JSON object, as texts. The object need not be valid."""
    try:
        return set(_texts_in(json.loads(line)))
    except (ValueError, RecursionError):
        return {text for part in _QUOTED.split(line) for text in (part, *_UNQUOTED.split(part))}


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts_in(inner)
    else:
        yield value if isinstance(value, str) else json.dumps(value)


def is_erased(user: Column, erased: ErasedUsers) -> Column:
    """Returns the condition that an id (string) belongs to an erased user; false for null."""
    digest = F.sha2(F.concat(F.lit(erased.salt), user), 256)
    return F.coalesce(digest.isin(*sorted(erased.digests)), F.lit(False))
