"""The notation of times in raw files: patterns of strptime, and names of time zones."""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated
from zoneinfo import ZoneInfo

from pydantic import AfterValidator

ISO = "iso"
UTC = "UTC"

# The directives of a pattern, with the part of the time that each one reads. `etl.raw.time_text` parses times
# with them.
_PART_OF = {
    "%Y": "year",
    "%y": "year",
    "%m": "month",
    "%b": "month",
    "%B": "month",
    "%d": "day",
    "%H": "hour",
    "%I": "hour",
    "%M": "minute",
    "%S": "second",
    "%f": "fraction",
    "%p": "half of the day",
    "%z": "offset",
    "%a": "weekday",
    "%A": "weekday",
}
_OF_DATES = ("year", "month", "day", "weekday")
_OF_TIMES_OF_DAY = ("hour", "minute", "second", "fraction", "half of the day")
_TOKEN = re.compile(r"%.|[^%]|%$", re.DOTALL)


def tokens_of(pattern: str) -> tuple[str, ...]:
    """Returns the directives and the other characters of a pattern, from left to right.

    `%%` stays unchanged.
    """
    return tuple(_TOKEN.findall(pattern))


def time_format(pattern: str) -> str:
    """Checks a pattern: `iso`, or directives of strptime that determine year, month and day."""
    parts = _parts_of(pattern)
    missing = [part for part in ("year", "month", "day") if part not in parts]
    if missing and pattern != ISO:
        raise ValueError(
            f"the format has no {' and no '.join(missing)}: write `iso`, or a pattern with year, month and "
            'day, such as "%d/%m/%Y %H:%M:%S"'
        )
    return pattern


def column_format(pattern: str) -> str:
    """Checks that a pattern is valid for `time_format`, or determines a time of day, such as `%H:%M`."""
    parts = _parts_of(pattern)
    if not parts or not set(parts) <= set(_OF_TIMES_OF_DAY):
        return time_format(pattern)
    if "hour" not in parts:
        raise ValueError('the format has no hour: write `iso`, or a pattern with an hour, such as "%H:%M:%S"')
    return pattern


def only_time_of_day(pattern: str) -> bool:
    """Returns whether a pattern of a column (`column_format`) reads no part of a date, and no offset."""
    return set(_parts_of(pattern)) <= set(_OF_TIMES_OF_DAY)


def _parts_of(pattern: str) -> list[str]:
    """Returns the parts of the time that a pattern reads. Empty for `iso`."""
    tokens = () if pattern == ISO else tokens_of(pattern)
    directives = [token for token in tokens if token.startswith("%") and token != "%%"]
    unknown = sorted({token for token in directives if token not in _PART_OF})
    if unknown:
        raise ValueError(
            f"the directives {unknown} are not known; a format may have {sorted(_PART_OF)} and %%"
        )
    if "%" in directives or not pattern.isascii() or not pattern.isprintable():
        raise ValueError("a format must have only printable ASCII characters; write a percent sign as %%")
    parts = [_PART_OF[token] for token in directives]
    repeated = sorted({part for part in parts if parts.count(part) > 1})
    if repeated:
        raise ValueError(
            f"the format contains the {' and the '.join(repeated)} more than once: write each part once"
        )
    if ("%I" in directives) != ("%p" in directives):
        raise ValueError(
            "%I (hours from 1 to 12) and %p (AM or PM) must be used together; write %H for hours from 0 to 23"
        )
    return parts


def only_date(pattern: str) -> bool:
    """Returns whether a pattern reads only a date."""
    return all(
        _PART_OF[token] in _OF_DATES
        for token in tokens_of("" if pattern == ISO else pattern)
        if token in _PART_OF
    )


@cache
def zone_of(name: str) -> ZoneInfo:
    """Returns the time zone with an IANA name. `time_zone` must have accepted the name."""
    return ZoneInfo(name)


def time_zone(name: str) -> str:
    """Checks that a name is the name of a time zone in the IANA database, such as Europe/Berlin."""
    try:
        zone_of(name)
    except (OSError, ValueError, KeyError):
        is_zone = False
    else:  # other names exist only in some installations, such as zones with leap seconds
        is_zone = not name.startswith(("right/", "posix/")) and name not in ("localtime", "posixrules")
    if not is_zone:
        raise ValueError(
            f"{name!r} is not the name of a time zone, such as UTC, Europe/Berlin or America/New_York "
            "(https://en.wikipedia.org/wiki/List_of_tz_database_time_zones)"
        )
    return name


TimeFormat = Annotated[str, AfterValidator(time_format)]
ColumnFormat = Annotated[str, AfterValidator(column_format)]
TimeZone = Annotated[str, AfterValidator(time_zone)]
