"""Finds the files of a table that has no configuration yet, and the days in the names of these files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from pyarrow import fs

from conf.errors import ConfigError
from conf.names import has_date, with_any_date
from etl.raw.files import find_files
from storage import file_io

# The notations of days in names of files and folders: a pattern with groups for year, month and day, and the
# placeholder for this notation in a configured path.
_DAYS = tuple(
    (re.compile(rf"(?<!\d){pattern}(?!\d)"), key)
    for pattern, key in (
        (r"(\d{4})-(\d{2})-(\d{2})", "{date}"),
        (r"((?:19|20)\d{2})_(\d{2})_(\d{2})", "{date:%Y_%m_%d}"),
        (r"((?:19|20)\d{2})\.(\d{2})\.(\d{2})", "{date:%Y.%m.%d}"),
        (r"((?:19|20)\d{2})(\d{2})(\d{2})", "{date:%Y%m%d}"),
        (r"((?:19|20)\d{2})/(\d{2})/(\d{2})", "{date:%Y/%m/%d}"),
        (
            r"year=((?:19|20)\d{2})/month=(\d{2})/day=(\d{2})",
            "year={date:%Y}/month={date:%m}/day={date:%d}",
        ),
    )
)
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True)
class RawPath:
    """The location of a table's files.

    Attributes:
        pattern: path or glob, with `{date}` if the files are stored by day.
        files: the files, ordered by name.
        days: the days in the names, ascending; empty without `{date}`.
    """

    pattern: str
    files: tuple[str, ...]
    days: tuple[str, ...]


def find_table(location: str) -> RawPath:
    """Finds the files of a table at a location: a file, a folder, or a glob, which may contain `{date}`.

    If the names of the files differ by a day, such as 2026-01-31, 2026_01_31 or 20260131, the returned
    pattern contains `{date}` in place of the day, with the same notation.

    Raises:
        ConfigError: there is no file, or the names of the files differ by more than a date and numbers after
            it.
    """
    if is_delta_table(location):
        return RawPath(location, (location,), ())
    files = _files(location)
    if not files:
        raise ConfigError(f"there is no file at {location}", "pass the path of a file, a folder or a glob")
    days = {day_of_file(name) for name in files}
    if has_date(location) or (len(days) > 1 and None not in days):
        return _by_day(location, files)
    if len(files) == 1:
        return RawPath(files[0], files, ())
    pattern = location if "*" in location or "?" in location else _pattern_of(location, files)
    return RawPath(pattern, files, ())


def is_delta_table(location: str) -> bool:
    """Returns whether the folder is a Delta table."""
    files, inner = file_io.filesystem(location)
    return files.get_file_info(f"{inner.rstrip('/')}/_delta_log").type == fs.FileType.Directory


def _files(location: str) -> tuple[str, ...]:
    """Returns the files of a location, which is a file, a folder or a glob, ordered by name.

    Hidden files are left out.
    """
    pattern = with_any_date(location)
    if "*" in pattern or "?" in pattern:
        return find_files(pattern, "tsv")
    files, inner = file_io.filesystem(location)
    info = files.get_file_info(inner)
    if info.type == fs.FileType.File:
        return (location,)
    if info.type != fs.FileType.Directory:
        return ()
    root = location.rstrip("/")
    below = files.get_file_info(fs.FileSelector(inner, recursive=True))
    names = sorted(
        entry.path[len(inner.rstrip("/")) + 1 :]
        for entry in below
        if entry.type == fs.FileType.File and entry.size
    )
    shown = [name for name in names if not any(part.startswith((".", "_")) for part in name.split("/"))]
    return tuple(f"{root}/{name}" for name in shown)


def _by_day(location: str, files: tuple[str, ...]) -> RawPath:
    """Returns the files with their common path pattern, in which `{date}` stands for the day."""
    days = sorted({day for name in files if (day := day_of_file(name)) is not None})
    if has_date(location):
        return RawPath(location, files, tuple(days))
    templates = sorted({_with_date_key(name) for name in files})
    pattern = _common_pattern(templates)
    if pattern is None:
        raise ConfigError(
            f"the names of the files below {location} differ by more than a date: {templates[:3]}",
            "pass one of these paths, with {date} for the day and * for other parts, in quotes",
        )
    return RawPath(pattern, files, tuple(days))


def _common_pattern(templates: Sequence[str]) -> str | None:
    """Returns a glob pattern that fits all names (with a placeholder for the day); None if none fits.

    Folders and files may differ by numbers after the day, such as hours. In a folder whose name has the day,
    or below it, names of files may be completely different, but must have the same ending.
    """
    ends = [template.rindex("}") + 1 for template in templates]
    heads = {template[:end] for template, end in zip(templates, ends, strict=True)}
    tails = [template[end:].split("/") for template, end in zip(templates, ends, strict=True)]
    if len(heads) > 1 or len({len(tail) for tail in tails}) > 1:
        return None
    parts = []
    for place, names in enumerate(zip(*tails, strict=True)):
        is_of_folder = 0 < place == len(tails[0]) - 1
        if len(set(names)) == 1:
            parts.append(names[0])
        elif is_of_folder and len({_ending(f"/{name}") for name in names}) == 1:
            parts.append(f"*{_ending(f'/{names[0]}')}")
        elif len({_NUMBERS.sub("0", name) for name in names}) == 1:
            before = _NUMBERS.split(names[0], maxsplit=1)[0]
            parts.append(f"{before}*{_NUMBERS.split(names[0])[-1]}")
        else:
            return None
    return heads.pop() + "/".join(parts)


def day_of_file(name: str) -> str | None:
    """Returns the last day in the name of a file, as YYYY-MM-DD; None if the name has no date."""
    last = _last_day(name)
    return None if last is None else "-".join(last[0].groups())


def _with_date_key(name: str) -> str:
    """Returns the name of a file with its last day replaced by a placeholder, such as `{date:%Y%m%d}`."""
    last = _last_day(name)
    return name if last is None else f"{name[: last[0].start()]}{last[1]}{name[last[0].end() :]}"


def without_days(name: str) -> str:
    """Returns the path of a log without the days in it, and without wildcards."""
    bare = with_any_date(name)
    while (last := _last_day(bare)) is not None:
        bare = bare[: last[0].start()] + bare[last[0].end() :]
    return bare.replace("*", "")


def _last_day(name: str) -> tuple[re.Match[str], str] | None:
    """Returns the last day in a name, and the placeholder for it.

    If several notations match at the same end, the longest match is used.
    """
    days = [
        (match, key) for pattern, key in _DAYS for match in pattern.finditer(name) if _is_day(match.groups())
    ]
    return max(days, key=lambda day: (day[0].end(), -day[0].start()), default=None)


def _is_day(parts: Sequence[str]) -> bool:
    year, month, day = map(int, parts)
    try:
        date(year, month, day)
    except ValueError:
        return False
    return True


def _pattern_of(location: str, files: Sequence[str]) -> str:
    folders = {name.rsplit("/", 1)[0] for name in files}
    endings = {_ending(name) for name in files}
    if len(folders) > 1 or len(endings) > 1:
        raise ConfigError(
            f"{location} has files of several tables: {[name.rsplit('/', 1)[1] for name in files][:5]}",
            "pass the file of the log, or a glob in quotes, such as 'folder/events_*.csv'",
        )
    return f"{folders.pop()}/*{endings.pop()}"


def _ending(name: str) -> str:
    """Returns a file's name from its first dot on, without the parts that are numbers."""
    last = name.rsplit("/", 1)[1]
    return "".join(f".{part}" for part in last.split(".")[1:] if not part.isdigit())
