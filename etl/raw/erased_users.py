"""The erased users of a lake, and the raw rows that are left out because of them.

The job erase_user adds users to the list `erasures/users.json`. The list contains salted digests of ids,
never the ids, and for each user the last day whose rows are left out. erase_user does not change the raw log.
So jobs that read a raw log leave out the rows of these users. Each lake has its own random salt, so the
digests of two lakes cannot be compared. Anyone who can read the list can check whether an id is in it.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from conf.errors import InfrastructureError
from conf.lazy_imports import F
from conf.names import has_date
from conf.raw_types import POINT, DecimalSeparator
from conf.types import Config, Keys, RawTable
from etl.raw.text_values import integer_text, integers_of_texts
from storage import file_io, format_versions
from storage.format_versions import typed
from storage.paths import LakePaths

if TYPE_CHECKING:  # Python workers import this module, but they do not need pyspark.
    from pyspark.sql import Column

_FILE = "users.json"
_SALT_BYTES = 16


@dataclass(frozen=True)
class ErasedUsers:
    """The erased users whose rows a reader leaves out, for example from the log of one day.

    Attributes:
        salt: the salt of the lake, hexadecimal digits.
        digests: the SHA-256 of salt and id of each user, as 64 hexadecimal digits.
        integers: the same digests of the ids as integers, such as 7 for the id `00007`. Empty unless the ids
            are compared with those of another table as integers.
    """

    salt: str
    digests: frozenset[str]
    integers: frozenset[str] = frozenset()

    def has(self, user: str) -> bool:
        """Returns whether an id belongs to one of these users."""
        if digest_of_user(self.salt, user) in self.digests:
            return True
        number = integer_text(user) if self.integers else None
        return number is not None and digest_of_user(self.salt, number) in self.integers

    def are_in(self, users: pa.Array) -> np.ndarray:
        """Returns which of n ids (strings or nulls) belong to erased users: (n,) bool."""
        return np.fromiter((user is not None and self.has(user) for user in users.to_pylist()), bool)


@dataclass(frozen=True)
class ErasedList:
    """The list of the erased users of a lake.

    Attributes:
        salt: the salt of the lake, hexadecimal digits.
        through: maps the digest of each user to the last day whose rows are left out.
        integers: for each id that is an integer in another notation, such as `00007`, maps the digest of the
            plain integer (`7`) to the same day.
    """

    salt: str
    through: Mapping[str, str] = field(default_factory=dict)
    integers: Mapping[str, str] = field(default_factory=dict)

    def of_day(self, day: str | None, *, as_integers: bool = False) -> ErasedUsers | None:
        """Returns the erased users whose rows jobs must leave out of a day; None if there are none.

        Args:
            day: the day. If it is None, the rows have no day, and the rows of all erased users are left out.
            as_integers: whether ids are compared as integers.
        """
        digests = _until(self.through, day)
        integers = digests | _until(self.integers, day) if as_integers else frozenset()
        return ErasedUsers(self.salt, digests, integers) if digests else None

    def digest(self, user: str) -> str:
        """Returns the salted digest of an id."""
        return digest_of_user(self.salt, user)


def _until(days: Mapping[str, str], day: str | None) -> frozenset[str]:
    """Returns the digests of users (keys of `days`) whose last day is `day` or later; all without a `day`."""
    return frozenset(digest for digest, last in days.items() if day is None or day <= last)


def digest_of_user(salt: str, user: str) -> str:
    """Returns the SHA-256 of salt and id, as 64 hexadecimal digits."""
    return sha256(f"{salt}{user}".encode()).hexdigest()


def read_erased(lake: LakePaths) -> ErasedList | None:
    """Returns the list of the erased users of a lake; None if nobody was erased.

    Raises:
        DataError: the list is damaged, or a newer release wrote it.
    """
    path = _path(lake)
    try:
        return format_versions.ERASED_USERS.load(path, _parsed)
    except FileNotFoundError:
        return None


def _parsed(values: Mapping[str, Any]) -> ErasedList:
    values = {"integers": {}, **values}
    typed(values, salt=str, through=dict, integers=dict)
    for day in (*values["through"].values(), *values["integers"].values()):
        date.fromisoformat(day)
    return ErasedList(values["salt"], values["through"], values["integers"])


def list_or_new(lake: LakePaths) -> ErasedList:
    """Returns the list of a lake.

    If the lake has no list, returns one that is not written yet: a new salt and no users.
    """
    return read_erased(lake) or ErasedList(secrets.token_hex(_SALT_BYTES))


def add_erased(lake: LakePaths, known: ErasedList, users: Iterable[str], through: str) -> ErasedList:
    """Adds users to the list of a lake, and returns the new list.

    Users whom another erasure has added since `known` was read stay in the list.

    Args:
        lake: the lake.
        known: the result of `list_or_new`.
        users: the ids.
        through: the last day whose rows are left out. If a user is already in the list, the later of the two
            days is kept.

    Raises:
        InfrastructureError: the list cannot be written, or another erasure has created a list with another
            salt.
    """
    now = read_erased(lake) or known
    if now.salt != known.salt:
        raise InfrastructureError(
            f"another erasure has written {_path(lake)} at the same time",
            "run erase_user again when no other erase_user is running",
        )
    known = now
    days, integers = dict(known.through), dict(known.integers)
    for user in users:
        _extend(days, known.digest(user), through)
        number = integer_text(user)
        if number not in (None, user):
            _extend(integers, known.digest(str(number)), through)
    changed = ErasedList(known.salt, dict(sorted(days.items())), dict(sorted(integers.items())))
    if changed != known:
        file_io.replace_json(_path(lake), _json(changed))
    return changed


def _extend(days: dict[str, str], digest: str, through: str) -> None:
    days[digest] = max(through, days.get(digest, through))


def require_listed(lake: LakePaths, users: Iterable[str]) -> None:
    """Raises InfrastructureError if the list of a lake lacks one of these users.

    If two erase_user jobs write the list at the same time, the later one can remove the users of the other.
    """
    known = list_or_new(lake)
    if not known.through.keys() >= {known.digest(user) for user in users}:
        raise InfrastructureError(
            f"another erasure has replaced {_path(lake)} with a list that lacks these users",
            "when no other erase_user is running, run erase_user again with the same options: it completes "
            "the erasure",
        )


def _json(known: ErasedList) -> dict[str, Any]:
    values = {"salt": known.salt, "through": dict(known.through), "integers": dict(known.integers)}
    return format_versions.ERASED_USERS.stamp(values)


def _path(lake: LakePaths) -> str:
    return f"{lake.erasures}/{_FILE}"


# The code below finds the rows of erased users, which jobs leave out when they read a raw log.

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

    If the table is not stored by day, it may still contain users who were erased on an earlier day. If its
    keys are compared with those of the log as integers, the row of 7 is left out if `00007` was erased. If
    the log also has the user `07`, this user has no attributes then, because nothing says to which of the two
    users the row belongs.
    """
    erased = read_erased(LakePaths(config.lake))
    if erased is None:
        return None
    day = dt if has_date(table.path) else None
    return erased.of_day(day, as_integers=compares_users_as_integers(config, table))


def compares_users_as_integers(config: Config, table: RawTable) -> bool:
    """Returns whether ids of users in a table are compared with those of the log as integers.

    This is the case for the table of the section `users`, if its ids are strings and those of the log are
    integers, or vice versa. The ids of other tables, such as impressions, are compared as strings.
    """
    if config.keys is None or table != config.users:
        return False
    return config.log.types[config.keys.user] != table.types[config.keys.user]


@dataclass(frozen=True)
class LineFields:
    """Finds the strings in a rejected line of the log that may be the id of a user.

    Attributes:
        separator: the separator of the fields.
        integers: whether ids are integers. If so, `007` and `7.0` are the id `7`, as they are for the code
            that reads the log.
        decimal_separator: the character before the decimals of a number.
    """

    separator: str
    integers: bool = False
    decimal_separator: DecimalSeparator = POINT

    @classmethod
    def of(cls, table: RawTable, keys: Keys | None) -> LineFields:
        """Returns an object that finds ids of users in the lines of the log `table`."""
        integers = keys is not None and table.types[keys.user] == "int"
        return cls(table.field_separator, integers, table.decimal_separator)

    def ids(self, line: str) -> set[str]:
        """Returns the fields of a line, without quotes around them. The line need not be valid."""
        texts = line.split(self.separator)
        fields = {text.rstrip("\r") for text in texts} | {text.strip(_AROUND) for text in texts}
        if '"' in line:  # such a field may contain separators and doubled quotes
            quoted = _quoted_fields(self.separator).findall(line)
            fields |= {text.replace('""', '"') for text in quoted}
        return self.with_integers(fields)

    def ids_of_json(self, line: str) -> set[str]:
        """Returns the names and values in the text of a JSON object. The object need not be valid."""
        return self.with_integers(json_texts(line))

    def with_integers(self, texts: set[str]) -> set[str]:
        """Returns the strings and, if ids are integers, the integers that readers find in the strings."""
        if not self.integers:
            return texts
        plain = texts
        if self.decimal_separator != POINT:
            plain = {text.replace(".", "").replace(",", ".") for text in texts}
        numbers = map(integer_text, plain)
        return texts | {number for number in numbers if number is not None}


@lru_cache(maxsize=16)
def _quoted_fields(separator: str) -> re.Pattern[str]:
    """Returns a regular expression for the text between the quotes of a field (etl/raw/text_values.py).

    All repetitions are possessive, so a match does not backtrack, even on a long line.
    """
    end = re.escape(separator)
    return re.compile(f'(?:^|(?<={end}))"([^"]*+(?:""[^"]*+)*+)"(?=\\r?$|{end})')


def has_erased_field(line: str, fields: LineFields, erased: ErasedUsers) -> bool:
    """Returns whether a field of a line, without quotes around it, is the id of an erased user.

    If a line begins like a JSON object but is not valid JSON, its names and values are treated as fields too.
    The names and values of valid JSON are not searched, because the reader checks the user's column.
    """
    if any(map(erased.has, fields.ids(line))):
        return True
    if not line.lstrip().startswith("{"):
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return any(map(erased.has, fields.ids_of_json(line)))
    return False


def json_texts(line: str) -> set[str]:
    """Returns the names and values in the text of a JSON object, as strings. The object may be invalid."""
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
    condition = _has_digest(user, erased.salt, erased.digests)
    if erased.integers:
        number = integers_of_texts(user).cast("string")
        condition = condition | _has_digest(number, erased.salt, erased.integers)
    return condition


def _has_digest(user: Column, salt: str, digests: frozenset[str]) -> Column:
    digest = F.sha2(F.concat(F.lit(salt), user), 256)
    return F.coalesce(digest.isin(*sorted(digests)), F.lit(False))
