"""Converts arrays of strings to times, dates and times of day, and local times to instants.

Times are µs since 1970-01-01 00:00 UTC, and dates are days since 1970-01-01. Times and dates are in the
proleptic Gregorian calendar, from year 1 to year 9999. Leap seconds are not supported: the second 60 is not
valid. The hour 24 is not valid either.

A string without an offset is a local time. Two rules decide which instant it is. If a local time occurs twice
because clocks are set back, the first of the two instants is used. If clocks skip a local time, it is moved
forward by the length of the gap. Python's zoneinfo applies the same rules with fold=0 (PEP 495).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from conf.time_notation import ISO, UTC, tokens_of, zone_of

US_OF_SECOND, US_OF_DAY = 1_000_000, 86_400_000_000
FIRST_DAY, LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31, in days since 1970-01-01
_EPOCH = datetime(1970, 1, 1)
_FIRST_US = FIRST_DAY * US_OF_DAY
_DATE_BYTES = 10  # Length of YYYY-MM-DD.
_MINUTE_BYTES = 16  # Length of YYYY-MM-DDTHH:MM.
_ROWS = 1 << 16  # Number of strings that are converted at once; it limits the memory of their characters.
# Largest number of bytes of a string. Longer strings become null: they are not times, or have many blanks.
_LONGEST = 64
_PADDING = 16  # Number of zeros after the characters of a string, so that a cursor may look ahead.
_MOST_DAYS = 1 << 17  # Number of pairs (time zone, day) whose offsets are kept in memory.
_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
)
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SHORT = 3  # Number of letters of an abbreviated month or weekday.
_FIRST_YEAR_OF_1900 = 69  # Years of two digits: 69 to 99 are 1969 to 1999, 00 to 68 are 2000 to 2068 (POSIX).
_NOON = 12

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def timestamps(text: pa.Array, pattern: str, time_zone: str) -> pa.Array:
    """Converts n strings to int64 µs since 1970-01-01 00:00 UTC.

    Args:
        text: strings. Null stays null.
        pattern: `iso`, or a pattern that conf.time_notation.time_format accepts.
        time_zone: the IANA name of the zone of times without an offset.

    Returns:
        n values; null for a string that does not match the pattern.
    """
    plain = _plain_iso(text, time_zone) if pattern == ISO else None
    if plain is not None:
        return plain
    read = _read_iso if pattern == ISO else _reader(pattern)

    def convert(cursor: _Cursor) -> Ints:
        read(cursor)
        local = cursor.local()
        is_local = ~cursor.has_offset
        zoned = local - cursor.offset
        if time_zone != UTC and is_local.any():
            zoned[is_local] = instants(np.where(cursor.ok, local, 0)[is_local], time_zone)
        return zoned

    return _converted(text, convert)


def _plain_iso(text: pa.Array, time_zone: str) -> pa.Array | None:
    """Converts strings with Arrow's faster parser.

    Returns None if Arrow's rules for one of the strings may differ from the rules of this module. Arrow also
    accepts hours without minutes, and the year 0. It rejects fractions of more than six digits. Because its
    rules for offsets differ too, this function accepts only strings without an offset, or with Z.
    """
    lengths = pc.binary_length(text)
    fits = pc.or_(pc.equal(lengths, _DATE_BYTES), pc.greater_equal(lengths, _MINUTE_BYTES))
    if pc.all(fits).as_py() is not True or text.null_count == len(text):
        return None
    in_utc = pc.ends_with(text, "Z")
    zoned = bool(pc.any(in_utc).as_py())
    if zoned and not pc.all(in_utc).as_py():
        return None
    try:
        values = text.cast(pa.timestamp("us", UTC if zoned else None)).cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    if not pc.all(pc.greater_equal(values, _FIRST_US)).as_py():
        return None
    if zoned or time_zone == UTC:
        return values
    local = values.fill_null(0).to_numpy(zero_copy_only=False)
    nulls = values.is_null().to_numpy(zero_copy_only=False)
    return pa.array(instants(local, time_zone), pa.int64(), mask=nulls)


def dates(text: pa.Array, pattern: str) -> pa.Array:
    """Converts n strings to int64 days since 1970-01-01. A string that does not match becomes null."""
    read = _read_iso_date if pattern == ISO else _reader(pattern)

    def convert(cursor: _Cursor) -> Ints:
        read(cursor)
        return cursor.days()

    return _converted(text, convert)


def times_of_day(text: pa.Array, pattern: str) -> pa.Array:
    """Converts n strings to int64 µs since midnight; null for a string that does not match the pattern.

    Args:
        text: strings. Null stays null.
        pattern: `iso` (hours and minutes, with or without seconds and a fraction), or a pattern that
            conf.time_notation.only_time_of_day accepts.
    """
    read = _read_iso_time_of_day if pattern == ISO else _reader(pattern)

    def convert(cursor: _Cursor) -> Ints:
        read(cursor)
        return cursor.second * US_OF_SECOND + cursor.fraction

    return _converted(text, convert)


def instants(local: Ints, time_zone: str) -> Ints:
    """Converts local times to instants.

    Args:
        local: (n,) µs between 1970-01-01 00:00 and the time on the clocks, from year 1 to year 9999.
        time_zone: the IANA name of the zone.

    Returns:
        (n,) µs since 1970-01-01 00:00 UTC.
    """
    if time_zone == UTC or not len(local):
        return local.copy()
    days, place = np.unique(local // US_OF_DAY, return_inverse=True)
    of_days = [_offsets_of_day(time_zone, day) for day in days.tolist()]
    offsets = np.array([of_day[0][1] for of_day in of_days], np.int64)[place]
    for index, of_day in enumerate(of_days):
        for start, offset in of_day[1:]:  # the zone's offset changes on this day
            offsets[(place == index) & (local >= start)] = offset
    return local - offsets


def starts_of_days(days: Ints, time_zone: str) -> Ints:
    """Returns the first instant of local days: (n,) µs since 1970-01-01 00:00 UTC.

    Args:
        days: (n,) days since 1970-01-01, from year 1 to year 9999.
        time_zone: the IANA name of the zone.
    """
    return instants(days * US_OF_DAY, time_zone)


@lru_cache(maxsize=_MOST_DAYS)
def _offsets_of_day(time_zone: str, day: int) -> tuple[tuple[int, int], ...]:
    """Returns (start, offset), both in µs, for each part of a local day with a constant offset from UTC.

    A start is in local time since 1970-01-01 00:00. The offsets at the full hours of the day are compared. If
    two of them differ, a binary search finds the second at which the offset changes. Offsets change only at
    whole seconds.
    """
    zone = zone_of(time_zone)
    midnight = _EPOCH + timedelta(days=day)

    def offset_at(second: int) -> int:
        offset = zone.utcoffset(midnight + timedelta(seconds=second))
        return round(offset.total_seconds() * US_OF_SECOND) if offset is not None else 0

    parts = [(0, offset_at(0))]
    grid = [*range(3600, 86_400, 3600), 86_399]
    for low, high in zip([0, *grid], grid, strict=False):
        if offset_at(high) != parts[-1][1]:
            # the offset at `last` is the new offset, the offset at `first` is the old one
            first, last = low, high
            while last - first > 1:
                middle = (first + last) // 2
                first, last = (first, middle) if offset_at(middle) != parts[-1][1] else (middle, last)
            parts.append((last, offset_at(last)))
    start = day * US_OF_DAY
    return tuple((start + second * US_OF_SECOND, offset) for second, offset in parts)


def days_before(year: Ints, month: Ints, day: Ints) -> Ints:
    """Returns the days from 1970-01-01 to n dates, each (n,) int64.

    The formula is `days_from_civil` of Howard Hinnant, https://howardhinnant.github.io/date_algorithms.html.
    """
    shifted = year - (month <= 2)  # years that begin in March, so that a leap day is the last of its year
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


class _Cursor:
    """A cursor over n strings: their characters, the position in each string, and the parts read so far.

    Attributes:
        chars: (n, width) uint8, filled with zeros after the end of a string.
        ends: (n,) the number of bytes of each string.
        at: (n,) the position of the next byte of each string.
        ok: (n,) whether the string is valid up to its position.
        year, month, day, second: (n,) the parts of the date, and the seconds since midnight.
        fraction: (n,) µs of the second.
        offset: (n,) µs by which the local time is ahead of UTC.
        has_offset: (n,) whether the string has an offset.
    """

    def __init__(self, chars: NDArray[np.uint8], ends: Ints) -> None:
        n = len(ends)
        self.chars, self.ends = chars, ends
        self.at = np.zeros(n, np.int64)
        self.ok = ends <= _LONGEST
        self.year, self.month, self.day = (np.ones(n, np.int64) for _ in range(3))
        self.second, self.fraction, self.offset = (np.zeros(n, np.int64) for _ in range(3))
        self.has_offset = np.zeros(n, bool)
        self._rows = np.arange(n)

    def peek(self, ahead: int = 0) -> NDArray[np.uint8]:
        """Returns the byte `ahead` bytes after the position of each string; 0 after the end."""
        return self.chars[self._rows, np.minimum(self.at + ahead, self.chars.shape[1] - 1)]

    def skip(self, char: str, when: Bools | None = None) -> None:
        """Reads one character.

        If a string does not have this character at its position, it becomes invalid. With `when`, only the
        strings for which `when` is true are read.
        """
        where = np.ones(len(self.at), bool) if when is None else when
        self.ok &= ~where | (self.peek() == ord(char))
        self.at += where

    def digits(self, least: int, most: int, when: Bools | None = None) -> tuple[Ints, Ints]:
        """Reads at most `most` digits. Returns the number, and the number of digits.

        A string with fewer than `least` digits becomes invalid. With `when`, only the strings for which
        `when` is true are read.
        """
        value = np.zeros(len(self.at), np.int64)
        count = np.zeros(len(self.at), np.int64)
        more = np.ones(len(self.at), bool) if when is None else when.copy()
        for _ in range(most):
            digit = self.peek().astype(np.int64) - ord("0")
            more &= (digit >= 0) & (digit <= 9)
            value = np.where(more, value * 10 + digit, value)
            count += more
            self.at += more
        self.ok &= (count >= least) if when is None else (count >= least) | ~when
        return value, count

    def number(self, least: int, most: int, low: int, high: int, when: Bools | None = None) -> Ints:
        """Reads a number of `least` to `most` digits, which must be between `low` and `high`."""
        value, _ = self.digits(least, most, when)
        fits = (value >= low) & (value <= high)
        self.ok &= fits if when is None else fits | ~when
        return value

    def read_fraction(self, when: Bools | None = None) -> None:
        """Reads 1 to 9 digits after the decimal point of a second. They are rounded down to µs."""
        value, count = self.digits(1, 9, when)
        power = 10 ** np.abs(6 - count)
        micros = np.where(count <= 6, value * power, value // power)
        self.fraction = micros if when is None else np.where(when, micros, self.fraction)

    def read_offset(self, when: Bools | None = None) -> None:
        """Reads an offset from UTC: Z, or a sign, hours and optional minutes, with or without a colon."""
        here = np.ones(len(self.at), bool) if when is None else when
        char = self.peek()
        is_z = here & (char == ord("Z"))
        signed = here & ((char == ord("+")) | (char == ord("-")))
        self.ok &= ~here | is_z | signed
        self.at += is_z | signed
        hours = self.number(2, 2, 0, 23, signed)
        colon = signed & (self.peek() == ord(":"))
        self.at += colon
        digit = self.peek()
        has_minutes = colon | (signed & (digit >= ord("0")) & (digit <= ord("9")))
        minutes = self.number(2, 2, 0, 59, has_minutes)
        length = (hours * 3600 + minutes * 60) * US_OF_SECOND
        self.offset = np.where(signed, np.where(char == ord("-"), -length, length), self.offset)
        self.has_offset |= is_z | signed

    def name(self, names: tuple[str, ...]) -> Ints:
        """Reads an English name from a list, in upper or lower case.

        Returns the position of the name, from 0.
        """
        match_index = np.full(len(self.at), -1, np.int64)
        for index, name in enumerate(names):
            fits = np.ones(len(self.at), bool)
            for ahead, char in enumerate(name):
                letter = self.peek(ahead)
                fits &= (letter == ord(char)) | (letter == ord(char.upper()))
            match_index = np.where(fits & (match_index < 0), index, match_index)
        self.ok &= match_index >= 0
        lengths = np.array([len(name) for name in names])
        self.at += np.where(match_index >= 0, lengths[match_index], 0)
        return match_index

    def finish(self) -> None:
        """Checks that each string was read to its end, and that its day exists."""
        leap = (self.year % 4 == 0) & ((self.year % 100 != 0) | (self.year % 400 == 0))
        last = _MONTH_DAYS[np.clip(self.month, 0, 12)] + (leap & (self.month == 2))
        self.ok &= (self.at == self.ends) & (self.year >= 1) & (self.day <= last)

    def days(self) -> Ints:
        """Returns the days from 1970-01-01 to each date."""
        return days_before(self.year, self.month, self.day)

    def local(self) -> Ints:
        """Returns the µs from 1970-01-01 00:00 to the time on the clocks."""
        return self.days() * US_OF_DAY + self.second * US_OF_SECOND + self.fraction


def _read_iso(cursor: _Cursor) -> None:
    """Reads `YYYY-MM-DD`, optionally followed by `T` or a blank, `HH:MM`, `:SS`, a fraction and an offset."""
    _iso_date(cursor)
    timed = cursor.at < cursor.ends
    letter = cursor.peek()
    cursor.ok &= ~timed | (letter == ord("T")) | (letter == ord(" "))
    cursor.at += timed
    _iso_time_of_day(cursor, timed)
    cursor.read_offset(timed & (cursor.at < cursor.ends))
    cursor.finish()


def _read_iso_time_of_day(cursor: _Cursor) -> None:
    """Reads `HH:MM`, optionally followed by `:SS` and a fraction."""
    _iso_time_of_day(cursor, np.ones(len(cursor.at), bool))
    cursor.finish()


def _iso_time_of_day(cursor: _Cursor, timed: Bools) -> None:
    """Reads a time of day in the strings for which `timed`, (n,) bool, is true."""
    hours = cursor.number(2, 2, 0, 23, timed)
    cursor.skip(":", timed)
    minutes = cursor.number(2, 2, 0, 59, timed)
    has_seconds = timed & (cursor.peek() == ord(":"))
    cursor.at += has_seconds
    seconds = cursor.number(2, 2, 0, 59, has_seconds)
    point = cursor.peek()
    has_fraction = has_seconds & ((point == ord(".")) | (point == ord(",")))
    cursor.at += has_fraction
    cursor.read_fraction(has_fraction)
    cursor.second = hours * 3600 + minutes * 60 + seconds


def _read_iso_date(cursor: _Cursor) -> None:
    _iso_date(cursor)
    cursor.finish()


def _iso_date(cursor: _Cursor) -> None:
    cursor.year = cursor.number(4, 4, 1, 9999)
    cursor.skip("-")
    cursor.month = cursor.number(2, 2, 1, 12)
    cursor.skip("-")
    cursor.day = cursor.number(2, 2, 1, 31)


def _reader(pattern: str) -> Callable[[_Cursor], None]:
    """Returns the function that reads strings by a pattern of directives.

    Numbers may have one or two digits where Python's strptime accepts one or two. `%Y` has four digits, and
    `%f` has one to nine. Other characters of the pattern, including blanks, must be the same in the string.
    """
    tokens = tokens_of(pattern)

    def read(cursor: _Cursor) -> None:
        for token in tokens:
            if token in _DIRECTIVES:
                _DIRECTIVES[token](cursor)
            else:
                cursor.skip("%" if token == "%%" else token)
        cursor.finish()

    return read


def _read_year(cursor: _Cursor) -> None:
    cursor.year = cursor.number(4, 4, 1, 9999)


def _read_short_year(cursor: _Cursor) -> None:
    short = cursor.number(2, 2, 0, 99)
    cursor.year = short + np.where(short >= _FIRST_YEAR_OF_1900, 1900, 2000)


def _read_month(cursor: _Cursor) -> None:
    cursor.month = cursor.number(1, 2, 1, 12)


def _read_month_name(cursor: _Cursor, short: bool) -> None:
    cursor.month = 1 + cursor.name(_names(_MONTHS, short))


def _read_day(cursor: _Cursor) -> None:
    cursor.day = cursor.number(1, 2, 1, 31)


def _add_seconds(cursor: _Cursor, values: Ints, seconds: int) -> None:
    cursor.second = cursor.second + values * seconds


_DIRECTIVES: Mapping[str, Callable[[_Cursor], None]] = {
    "%Y": _read_year,
    "%y": _read_short_year,
    "%m": _read_month,
    "%b": lambda cursor: _read_month_name(cursor, short=True),
    "%B": lambda cursor: _read_month_name(cursor, short=False),
    "%d": _read_day,
    "%H": lambda cursor: _add_seconds(cursor, cursor.number(1, 2, 0, 23), 3600),
    "%I": lambda cursor: _add_seconds(cursor, cursor.number(1, 2, 1, _NOON) % _NOON, 3600),
    "%p": lambda cursor: _add_seconds(cursor, cursor.name(("am", "pm")), _NOON * 3600),
    "%M": lambda cursor: _add_seconds(cursor, cursor.number(1, 2, 0, 59), 60),
    "%S": lambda cursor: _add_seconds(cursor, cursor.number(1, 2, 0, 59), 1),
    "%f": lambda cursor: cursor.read_fraction(),
    "%z": lambda cursor: cursor.read_offset(),
    "%a": lambda cursor: _read_weekday(cursor, short=True),
    "%A": lambda cursor: _read_weekday(cursor, short=False),
}


def _read_weekday(cursor: _Cursor, short: bool) -> None:
    cursor.name(_names(_WEEKDAYS, short))


def _names(names: tuple[str, ...], short: bool) -> tuple[str, ...]:
    return tuple(name[:_SHORT] for name in names) if short else names


def _converted(text: pa.Array, convert: Callable[[_Cursor], Ints]) -> pa.Array:
    """Applies `convert` to the strings of an array, a limited number at a time.

    Strings that `convert` cannot convert become null.
    """
    parts = []
    for start in range(0, len(text), _ROWS):
        part = text.slice(start, _ROWS)
        cursor = _Cursor(*_characters(part))
        values = convert(cursor)
        good = cursor.ok & part.is_valid().to_numpy(zero_copy_only=False)
        parts.append(pa.array(np.where(good, values, 0), pa.int64(), mask=~good))
    return pa.concat_arrays(parts) if parts else pa.array([], pa.int64())


def _characters(text: pa.Array) -> tuple[NDArray[np.uint8], Ints]:
    """Returns the first bytes of n strings, (n, width) uint8 filled with zeros, and their lengths (n,)."""
    offsets = np.frombuffer(text.buffers()[1], np.int32)[text.offset : text.offset + len(text) + 1]
    data = text.buffers()[2]
    content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
    width = min(int(lengths.max(initial=0)), _LONGEST)
    chars = np.zeros((len(text), width + _PADDING), np.uint8)
    if width:
        columns = np.arange(width)
        places = np.minimum(starts[:, None] + columns, len(content) - 1)
        chars[:, :width] = np.where(columns < lengths[:, None], content[places], 0)
    return chars, lengths
