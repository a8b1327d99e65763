"""Describes rejected rows in error messages: file, line, column, value, rule and remedy.

The remedy depends on the reason. For example, the remedy for a wrong separator differs from the remedy for a
label that is not a number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from conf.raw_types import (
    DECLARE_TIME,
    NUMBER_TYPES,
    POINT,
    SEPARATORS,
    TIME_TYPES,
    Column,
    Log,
    RawTable,
    format_settings,
)
from conf.time_notation import ISO, only_date
from etl.raw import row_rules, text_values
from etl.raw.file_columns import common_header

_SHOWN = 100  # Maximum number of characters of a value or line in a message.
_MOST_VALUES = 5  # A message shows at most this number of values that were rejected for the same reason.
_IS_NOT = {
    "integer": "is not an integer of 64 bits",
    "number": "is not a number within the range of float32",
    "boolean": "is not one of true, t, yes, y, 1, false, f, no, n and 0",
    "decimal": "is not a decimal of at most 38 digits within the range of float32",
    "list": "has an element that is not an integer of 64 bits",
    "json": "is an object, or an array in a column without a list type",
    "key": f"is not an id: {row_rules.RULE}",
}
_ABOUT_LINES = {
    text_values.REASON: (
        "breaks the rule for double quotes",
        "write a double quote inside a field twice, enclose the field in quotes, and remove line breaks from "
        "fields",
    ),
    "json": (
        "is not a JSON object",
        "deliver one JSON object in each line, without empty lines, and without an array around them",
    ),
    "not_utf8": (
        "is not UTF-8 text",
        "convert the file to UTF-8, for example with `iconv -f LATIN1 -t UTF-8`; or set `encoding: "
        "windows-1252` beside the key `path` of this table, for files of Excel and other programs in "
        "Western Europe",
    ),
}

_ABOUT_COLUMNS = {
    "time_range": "correct log.event_time.unit, which says whether times are in s, ms or us",
    "missing_time": "give every row a time in {column}, or remove log.event_time",
    "missing_key": "give every row an id in {column}, or leave these rows out of the files; for rows without "
    "a user, set keys.rows_without_user: leave_out",
    "key": "correct the ids in {column}",
}

_DECIMAL_COMMA = re.compile(r"[+-]?[0-9.]*[0-9],[0-9]+")
# Notations that a message may propose: for dates, and for times that follow a date.
_DATES = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%Y%m%d")
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")


@dataclass(frozen=True)
class RejectedLine:
    """A row of a raw file that was rejected.

    Attributes:
        file: path of the file.
        line_number: number of the line, from 1; in a file without lines, such as Parquet, number of the row.
        reason: the reason of the quarantine, such as `integer:age`.
        line: text of the line; for formats without lines, the row as JSON.
    """

    file: str
    line_number: int
    reason: str
    line: str


def description(table: RawTable, rejected: RejectedLine) -> str:
    """Describes a rejected row: its number, the rejected value, and the rule that this value breaks."""
    kind, column = _split(rejected.reason)
    settings = format_settings(table.format)
    place = f"{'line' if settings.is_text and settings.is_row_per_line else 'row'} {rejected.line_number}"
    if kind in _ABOUT_LINES and not column:
        return f"{place} {_ABOUT_LINES[kind][0]}: {_short(rejected.line)}"
    if kind == "field_count":
        expected = len(_header(table, rejected.file) or table.columns)
        fields = len(_fields(table, rejected.line))
        return (
            f"{place} has {fields} field{'s' * (fields != 1)} separated by "
            f"{_quoted(table.field_separator)}, but must have {expected}: {_short(rejected.line)}"
        )
    return f"{place}: {_broken_rule(table, rejected, kind, column)}"


def values_of(table: RawTable, rejected: Sequence[RejectedLine]) -> list[str]:
    """Returns some distinct values for which rows were rejected. All `rejected` rows have the same reason."""
    column = _split(rejected[0].reason)[1] if rejected else ""
    if not column:
        return []
    headers = {path: _header(table, path) for path in {one.file for one in rejected}}
    values = (_field(table, one.line, column, headers[one.file]) for one in rejected)
    shown = dict.fromkeys(_short(value) for value in values if value is not None)
    return list(shown)[:_MOST_VALUES]


def remedy(table: RawTable, section: str, rejected: RejectedLine) -> str:
    """Returns the remedy for rows with the same reason as `rejected`.

    Args:
        table: the table of the rows.
        section: the section of the configuration that describes the table, such as `log` or `users`.
        rejected: one of the rows.
    """
    kind, column = _split(rejected.reason)
    if kind in _ABOUT_LINES and not column:
        return _ABOUT_LINES[kind][1]
    if kind == "field_count":
        return _separator_remedy(table, section, rejected)
    if kind in _ABOUT_COLUMNS:
        return _ABOUT_COLUMNS[kind].format(column=column)
    if isinstance(table, Log) and column == table.label.column:
        return _label_remedy(table, column, rejected)
    if isinstance(table, Log) and table.event_time and column in table.event_time.columns:
        return _time_remedy(section, _column_of(table, column), field_of(table, rejected, column))
    return _type_remedy(table, section, rejected, column)


def field_of(table: RawTable, rejected: RejectedLine, column: str) -> str | None:
    """Returns the value of a column in a row, as a string; None if it is empty or cannot be found."""
    return _field(table, rejected.line, column, _header(table, rejected.file))


def _field(table: RawTable, line: str, column: str, header: list[str] | None) -> str | None:
    source = _column_of(table, column).source_name
    if table.format == "jsonl":
        value = _json_value(line, source)
        return value if value is None or isinstance(value, str) else json.dumps(value)
    if not format_settings(table.format).is_text:
        value = json.loads(line).get(source)
        return value if value is None or isinstance(value, str) else json.dumps(value)
    names = table.names if header is None else header
    values = dict(zip(names, _fields(table, line), strict=False))
    return values.get(column if header is None else source) or None


def _json_value(line: str, path: str) -> Any:
    """Returns the value of a path such as `a.b` in the text of a JSON object; None if there is none."""
    try:
        value = json.loads(line)
    except ValueError:  # DuckDB accepts some lines that are not valid JSON for Python
        return None
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _separator_remedy(table: RawTable, section: str, rejected: RejectedLine) -> str:
    width = len(_header(table, rejected.file) or table.columns)
    others = [other for other in SEPARATORS if len(rejected.line.split(other)) == width > 1]
    if others:
        return f"set `separator: {_quoted(others[0])}` in the section {section}"
    if format_settings(table.format).is_positional:
        return (
            "correct these lines of the files; if all lines are like this one, list all columns of the files "
            f"in {section}.columns, or correct {section}.separator"
        )
    return f"write as many fields as the header has, or correct {section}.separator"


def _label_remedy(log: Log, column: str, rejected: RejectedLine) -> str:
    value = field_of(log, rejected, column)
    if value is None:
        what = "a label" if log.label.positive is None else "an event"
        empty = (
            ""
            if log.label.weights
            else ("; or set log.label.rows_without_value=not_clicked if these rows are not clicks")
        )
        return f"give every row {what} in {column}, or leave these rows out of the files{empty}"
    if log.label.positive is not None:
        if not rejected.reason.startswith("event:"):
            return _type_remedy(log, "log", rejected, column)
        return (
            f"add {_short(value)} to log.label.positive if it is a click, or give it a weight in "
            "log.label.weights; or set log.label.other_events=drop, which leaves out all other events"
        )
    if not _is_number(value):
        return (
            f"a string such as {_short(value)} cannot be a label: if it is an event, give {column} the type "
            "string in log.columns, and list the events that are clicks in log.label.positive, such as "
            "[cart, purchase]; or write a number for each kind of event, and set log.label.positive_at_least "
            "to the smallest number that is a click"
        )
    if log.label.positive_at_least is None:
        return (
            f"set log.label.positive_at_least to the smallest value of {column} that is a click, or write "
            "only 0 and 1 into this column"
        )
    return _type_remedy(log, "log", rejected, column)


def _type_remedy(table: RawTable, section: str, rejected: RejectedLine, column: str) -> str:
    """Returns the remedy for a value that does not have the type of its column."""
    value = field_of(table, rejected, column)
    declared = _column_of(table, column)
    if declared.type in TIME_TYPES:
        return _time_remedy(section, declared, value)
    if value is None:
        return f"correct the values of {column}"
    number = _is_number(value)
    if declared.type in NUMBER_TYPES and _DECIMAL_COMMA.fullmatch(value):
        if table.decimal_separator != POINT:
            return f"write the numbers of {column} with one decimal comma, or correct the file"
        return (
            f'set `decimal_separator: ","` in the section {section} if its numbers have decimal commas; or '
            f"write the numbers of {column} with a decimal point, and without separators of thousands"
        )
    if declared.type in NUMBER_TYPES and number and table.decimal_separator != POINT and "." in value:
        return (
            f"write the numbers of {column} with a decimal comma, or remove `decimal_separator` from the "
            f"section {section} if its numbers have decimal points"
        )
    keys = format_settings(table.format).has_null_values and not number
    null = f", add {_quoted(value)} to {section}.null_values if it stands for null" if keys else ""
    kind = "float or string" if number and rejected.reason.startswith("integer:") else "string"
    if declared.type == "list<int>":
        kind = f"list<string>, or correct its `separator`, which is {declared.element_separator!r}"
        return f"give {column} in {section}.columns the type {kind}{null}; or correct the file"
    if declared.type == "decimal" and number:
        kind = "float or string"
    return f"give {column} the type {kind} in {section}.columns{null}, or correct the file"


def _time_remedy(section: str, column: Column, value: str | None) -> str:
    """Returns the remedy for a value that is not a time in the declared format."""
    if column.type not in TIME_TYPES:
        return DECLARE_TIME
    if column.type == "time":
        return _time_of_day_remedy(section, column)
    other = "YYYY-MM-DD" if column.type == "date" else "2026-01-31T13:45:00Z"
    example = _format_of(value or "") or ("%d/%m/%Y" if column.type == "date" else "%d/%m/%Y %H:%M:%S")
    if column.type == "date" and not only_date(example):
        return (
            f"give {column.name} the type timestamp in {section}.columns, with `format: {_quoted(example)}`, "
            "or write only a date into the file"
        )
    if column.type == "date" and value and _is_iso_time(value):
        return (
            f"give {column.name} the type timestamp in {section}.columns, or write only a date into the file"
        )
    if column.format != ISO:
        return f"correct `format` of {column.name} in {section}.columns, or correct the file"
    return (
        f"set `format` of {column.name} in {section}.columns, such as {_quoted(example)}, if times are not "
        f"written as {other}; if the value stands for null, add it to {section}.null_values; or correct the "
        "file"
    )


def _time_of_day_remedy(section: str, column: Column) -> str:
    """Returns the remedy for a value that is not a time of day in the declared format."""
    where = f"{section}.columns"
    if column.format != ISO:
        return f"correct `format` of {column.name} in {where}, or correct the file"
    return (
        f'set `format` of {column.name} in {where}, such as "%I:%M %p", if times are not written as '
        "13:45:00; give it the type timestamp if it also has a date; if the value stands for null, add it to "
        f"{section}.null_values; or correct the file"
    )


def _format_of(value: str) -> str | None:
    """Returns the first known notation that fits a value; None if no known notation fits."""
    for pattern in (date + time for time in _TIMES for date in _DATES):
        with suppress(ValueError):
            datetime.strptime(value, pattern)
            return pattern
    return None


def _is_iso_time(value: str) -> bool:
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return ":" in value


def _column_of(table: RawTable, name: str) -> Column:
    return next(one for one in table.columns if one.name == name)


def _is_number(text: str) -> bool:
    try:
        return abs(float(text)) < float("inf")  # false for NaN
    except ValueError:
        return False


def _broken_rule(table: RawTable, rejected: RejectedLine, kind: str, column: str) -> str:
    """Returns a clause with the value of a column, and the rule that it breaks."""
    value = field_of(table, rejected, column)
    if kind in ("missing_key", "missing_time") or value is None:
        return f"{column} has no value"
    if kind == "label":
        threshold = isinstance(table, Log) and table.label.positive_at_least is not None
        rule = "is not a number" if threshold else "is not 0 or 1"
    elif kind == "event":
        rule = "is not an event that log.label names"
    elif kind == "time_range":
        rule = "exceeds 64 bits after conversion to µs"
        if _column_of(table, column).type == "date":
            rule = "is a date before year 1 or after year 9999"
    elif kind in TIME_TYPES:
        form = _column_of(table, column).format
        what = "time of day" if kind == "time" else kind
        rule = f"is not a {what} {'in ISO 8601' if form == ISO else f'of the format {form!r}'}"
    else:
        rule = _IS_NOT.get(kind, f"is rejected ({rejected.reason})")
    return f"{column} has the value {_short(value)}, which {rule}"


def _header(table: RawTable, path: str) -> list[str] | None:
    """Returns the header of a csv file. Other files have none."""
    if table.format != "csv":
        return None
    return common_header([path], table)


def _fields(table: RawTable, line: str) -> list[str]:
    if table.format == "csv":
        return text_values.split_line(line, table.field_separator) or []
    return line.split(table.field_separator)


def _split(reason: str) -> tuple[str, str]:
    """Returns the kind of a reason and its column: `integer:age` is (integer, age)."""
    kind, _, column = reason.partition(":")
    return kind, column


def _quoted(text: str) -> str:
    """Returns a value as a YAML string in double quotes."""
    return json.dumps(text, ensure_ascii=False)


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")
