"""Rules for strings in configurations and arguments: names of folders and columns, paths, and ISO dates.

A rule is a function that returns the text or raises ValueError, as pydantic's validators do.
`split_table_path` splits the path of a table of Spark's catalogue, such as `shop.clicks/dt={date}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from conf.messages import is_printable

_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
LONGEST_COLUMN = 128
_RANGE = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}")
_MOST_NAMES = 10_000  # largest number of names of one range

# URI schemes of lakes and of raw data. On these stores, storage.file_io can replace a file atomically.
SCHEMES = ("", "file", "s3", "s3a", "hdfs", "gs", "abfss", "abfs", "az")


def scheme_of(path: str) -> str:
    """Returns the scheme of a URI, such as `s3a` for s3a://bucket/key; empty for a plain path."""
    return path.split("://", 1)[0] if "://" in path else ""


def folder_name(name: str) -> str:
    """Checks a name that is used for a folder of the lake."""
    if not _FOLDER.fullmatch(name):
        raise ValueError(
            "it is the name of a folder in the lake: write 1 to 100 letters (A to Z), digits and . _ - "
            "and begin with a letter or digit"
        )
    return name


def column_name(name: str) -> str:
    """Checks the name of a column or feature, which may become part of a file name."""
    if not 1 <= len(name) <= LONGEST_COLUMN or "/" in name or "\\" in name or not is_printable(name):
        raise ValueError(
            f"a column name must have 1 to {LONGEST_COLUMN} characters and must not contain /, \\ or "
            "control characters; choose another name. For a raw column, write this other name as `name`, and "
            "the name in the raw files as `source`"
        )
    return name


def plain_text(text: str) -> str:
    """Checks that a text is not empty and has no control characters."""
    if not text or not is_printable(text):
        raise ValueError("it must not be empty and must not contain control characters")
    return text


def lake_root(root: str) -> str:
    """Checks the root of a lake: a local path, or a URI of a store."""
    _require_location(root)
    if "{" in root or "}" in root:
        raise ValueError(
            "it must not contain braces, because nothing is replaced in the root of a lake: write the whole "
            "path, such as /data/lake"
        )
    return root


def _require_location(path: str) -> None:
    """Checks the path or URI of an output folder."""
    scheme = scheme_of(plain_text(path))
    if path.rstrip("/").endswith(":") and scheme:
        raise ValueError(f"it names no bucket: write {scheme}://bucket/folder")
    _require_scheme(path)
    if path.startswith("~") or "$" in path:
        raise ValueError(
            "~ and environment variables are not replaced here: write the whole path, such as "
            "/home/ann/lake. With --set on the command line, you can write the path in double quotes: then "
            "the shell replaces the variables"
        )


def new_folder(path: str) -> str:
    """Checks the path or URI of an output folder. Jobs also write other folders next to this folder."""
    _require_location(path)
    scheme, _, inner = path.rpartition("://")
    parts = inner.rstrip("/").split("/")
    if parts[-1] in ("", ".", "..") or ".." in parts or (scheme not in ("", "file") and len(parts) < 2):
        raise ValueError(
            f"{path!r} must end with the name of a folder, must not contain `..`, and must be below the "
            "bucket of a store, because other folders are written next to it: write a path such as "
            "/srv/lists or s3a://bucket/lists"
        )
    if "{" in path or "}" in path:
        raise ValueError(
            f"{path!r} must not contain braces, except {{lake}} and {{data}}, which are replaced by the "
            "values of these keys; each date has a folder of its own anyway"
        )
    return path


def raw_location(path: str) -> str:
    """Checks the path or URI of raw data, which is only read."""
    _check_dates(plain_text(path))
    if unknown := [key[0] for key in _PLACEHOLDER.finditer(path) if key[1] not in ("lake", "data", "date")]:
        raise ValueError(
            f"{path!r} contains {' and '.join(unknown)}, but only {{lake}}, {{data}} and {{date}} are "
            "replaced: write one of these names in braces"
        )
    return _require_scheme(path)


# The day in a path: `{date}` for YYYY-MM-DD, or with another notation, such as `{date:%Y%m%d}`.
_DATE_KEY = re.compile(r"\{date(?::([^{}]*))?\}")
# Matches a name in braces, but not a glob such as {a,b}.
_PLACEHOLDER = re.compile(r"\{(\w+)(?::[^{}]*)?\}")
_DATE_NOTATION = re.compile(r"(?:[^%]|%[Ymd])+")


def has_date(path: str) -> bool:
    """Returns whether a path contains the day of its files."""
    return bool(_DATE_KEY.search(path))


def with_date(path: str, day: str) -> str:
    """Returns a path in which a day replaces each `{date}`, in the notation of the path.

    `day` is an ISO date. If no placeholder of the path has a notation, `day` can be any text.
    """
    return _DATE_KEY.sub(lambda key: date.fromisoformat(day).strftime(key[1]) if key[1] else day, path)


def with_any_date(path: str) -> str:
    """Returns a glob that matches the files of all days."""
    return _DATE_KEY.sub(lambda key: re.sub("(%.)+", "*", key[1] or "%Y"), path)


def _check_dates(path: str) -> None:
    """Checks that the placeholders `{date…}` of a path, if any, together contain year, month and day."""
    notations = [key[1] for key in _DATE_KEY.finditer(path)]
    if not notations:
        return
    for notation in notations:
        if notation is not None and not (notation.isascii() and _DATE_NOTATION.fullmatch(notation)):
            raise ValueError(
                f"{{date:{notation}}} is not a notation of a day: write %Y, %m and %d in it, such as "
                "{date:%Y%m%d}; {date} alone is YYYY-MM-DD"
            )
    together = "".join("%Y%m%d" if notation is None else notation for notation in notations)
    if missing := [part for part in ("%Y", "%m", "%d") if part not in together]:
        raise ValueError(
            f"{path!r} contains a date without {' and '.join(missing)}: write {{date:%Y%m%d}}, or one "
            "folder for each part, such as year={date:%Y}/month={date:%m}/day={date:%d}"
        )


def _require_scheme(path: str) -> str:
    if scheme_of(path) not in SCHEMES:
        schemes = ", ".join(f"{scheme}://" for scheme in SCHEMES if scheme)
        raise ValueError(
            f"{scheme_of(path)}:// is not supported: write a path or a URI that begins with {schemes}"
        )
    return path


FolderName = Annotated[str, AfterValidator(folder_name)]
ColumnName = Annotated[str, AfterValidator(column_name)]
PlainText = Annotated[str, AfterValidator(plain_text)]
LakeRoot = Annotated[str, AfterValidator(lake_root)]
NewFolder = Annotated[str, AfterValidator(new_folder)]
RawLocation = Annotated[str, AfterValidator(raw_location)]


def reject_unknown(where: str, names: list[str], known: set[str]) -> None:
    """Raises ValueError if a name is not a known column. `where` is the key that lists the names."""
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"{where} names columns that do not exist: {unknown}; known: {sorted(known)}")


def reject_repeated(where: str, names: list[str]) -> None:
    """Raises ValueError if a column is listed twice. `where` is the key that lists the columns."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{where} names the columns {repeated} twice; name each column once")


def equal_without_case(names: Iterable[str]) -> list[str]:
    """Returns the first two distinct names that differ only in upper and lower case; empty if there are none.

    Column names in SQL are case-insensitive.
    """
    seen: dict[str, str] = {}
    for name in names:
        first = seen.setdefault(name.casefold(), name)
        if first != name:
            return [first, name]
    return []


# Dates in arguments and configurations: ISO dates. The rules limit years, so that date arithmetic cannot
# fail.

_FIRST_YEAR, _LAST_YEAR = 1970, 2199
EPOCH = date(1970, 1, 1)


def iso_date(value: Any) -> str:
    """Returns a date as YYYY-MM-DD.

    Args:
        value: a string, or the `date` object to which YAML converts an unquoted date.

    Raises:
        ValueError: the value is not a date of this form, or its year is out of range.
    """
    text = value.isoformat() if type(value) is date else str(value)
    parsed = date.fromisoformat(text)
    if parsed.isoformat() != text:
        raise ValueError(f"it is not of the form YYYY-MM-DD: write {parsed.isoformat()}")
    if not _FIRST_YEAR <= parsed.year <= _LAST_YEAR:
        raise ValueError(f"its year must be from {_FIRST_YEAR} to {_LAST_YEAR}")
    return text


def days_since_epoch(day: str | date) -> int:
    """Returns the number of days from 1970-01-01 to `day`, which is a `date` or an ISO date."""
    parsed = date.fromisoformat(day) if isinstance(day, str) else day
    return (parsed - EPOCH).days


IsoDate = Annotated[str, BeforeValidator(iso_date)]


# The function below splits the path of a table of Spark's catalogue, such as `shop.clicks/dt={date}`.

SPARK_TABLE = "spark_table"  # the format
_NAME = re.compile(r"(?:`[^`]+`|[^`.]+)(?:\.(?:`[^`]+`|[^`.]+))*")
_PART = re.compile(r"`([^`]+)`|([^`.]+)")
_FILTER = re.compile(r"([^=]+)=(.+)")
_NOT_IN_PATH = re.compile(r"[*?\[\]\s]")
_HELP = (
    "write the name of the table, such as shop.clicks, and after it the column of the day, such as "
    "shop.clicks/dt={date}"
)


def split_table_path(path: str) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Returns the parts of a table's name, and the (column, value) pairs that its rows must have.

    A part of the name may contain dots if it is in backticks.

    Raises:
        ValueError: the path does not consist of the name of a table and any number of `/column=value`.
    """
    name, *conditions = path.split("/")
    matches = [_FILTER.fullmatch(condition) for condition in conditions]
    if (
        scheme_of(path)
        or "{lake}" in path
        or "{data}" in path
        or _NOT_IN_PATH.search(path)
        or not _NAME.fullmatch(name)
        or None in matches
    ):
        raise ValueError(f"{path!r} is not a table of Spark's catalogue: {_HELP}")
    parts = tuple(quoted or plain for quoted, plain in _PART.findall(name))
    return parts, tuple((match[1], match[2]) for match in matches if match)


def expand_range(name: str) -> list[str]:
    """Expands a range in a name: `C{1..3}` becomes `[C1, C2, C3]`, and `C1` becomes `[C1]`."""
    match = _RANGE.search(name)
    if match is None:
        return [name]
    first, last = int(match[1]), int(match[2])
    if not 0 <= last - first < _MOST_NAMES:
        raise ValueError(
            f"{name!r}: a range must ascend, as in {{1..13}}, and have at most {_MOST_NAMES} numbers"
        )
    return [f"{name[: match.start()]}{i}{name[match.end() :]}" for i in range(first, last + 1)]


def fits_column(name: str) -> bool:
    """Returns whether a raw column or a feature may have this name.

    Names that begin with an underscore are reserved for internal columns.
    """
    return name not in ("", "*") and not name.startswith("_") and "." not in name and "`" not in name
