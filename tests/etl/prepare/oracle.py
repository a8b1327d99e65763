"""What a log means, by the documents and by brute force: good rows, splits, histories, negatives and joins.

Tests compare the rows that tasks prepare (etl/prepare) with the results of this module. It is written from
docs/configuration.md, docs/operators, docs/decisions and the docstrings, and shares no code with etl. Rows are
dictionaries, and most functions compare each row with all others, so use it for some hundreds of rows.
"""

from __future__ import annotations

import ast
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow.parquet as pq
from pyarrow import orc

from conf.raw_types import Column, RawTable
from conf.types import Config, Negatives, SplitConfig
from tests.etl.ops.hashing import signed, xxh64

Row = dict[str, Any]
Erased = Mapping[str, str]  # user → the last day whose rows are left out
SPLITS = ("train", "validation", "test")
KEYS = ("user_key", "item_key", "group_key")
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_TOO_LARGE = 5e30
_UNIT = 2**24  # sums are computed from values that are rounded to multiples of 2**-24


@dataclass
class DayLog:
    """The lines of a day.

    Attributes:
        lines: number of lines, without headers.
        good: the rows that are used, in the order of the log.
        quarantine: the rejected lines: row_id, source_file (the name only), line_number, reason and line.
        left_out: reason → number of lines that are neither used nor quarantined.
    """

    lines: int = 0
    good: list[Row] = field(default_factory=list)
    quarantine: list[Row] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def misdated(self, config: Config, day: str) -> tuple[int, int | None, int | None]:
        """The number of good rows of another day in the time zone of the log, and their first and last time."""
        zone, times = ZoneInfo(config.log.time_zone), [row["event_time"] for row in self.good]
        days = [(_EPOCH + time * _US).astimezone(zone).date().isoformat() for time in times]
        others = [time for time, other in zip(times, days, strict=True) if other != day]
        return len(others), min(others, default=None), max(others, default=None)

    @property
    def dropped(self) -> dict[str, int]:
        """Reason → number of lines that are not used."""
        return dict(self.left_out + Counter(row["reason"] for row in self.quarantine))


class _Rejected(Exception):
    """A line that is no row. The argument is the reason."""


# Lines and their values


def read_log(config: Config, day: str, erased: Erased = MappingProxyType({})) -> DayLog:
    """Reads the files of a day in the order of their names.

    Rows of erased users are left out. A log that is not stored by day has none of their rows at all.
    """
    users = {user for user, last in erased.items() if config.split.by != "day" or day <= last}
    result, row_id = DayLog(), -1
    for path in files_of(config, config.log.path, day):
        for number, (text, values) in enumerate(_entries(config.log, path), start=1):
            row_id += 1
            if values is None:
                continue
            result.lines += 1
            row, reason = ({}, values) if isinstance(values, str) else _row_of(config, values)
            if _is_left_out(text, row, reason, config, users):
                reason = "erased_user"
            if reason is None:
                result.good.append({**row, "row_id": row_id})
            elif reason in _reasons_left_out(config):
                result.left_out[reason] += 1
            else:
                place = {"row_id": row_id, "source_file": path.name, "line_number": number}
                result.quarantine.append({**place, "reason": reason, "line": text})
    return result


def files_of(config: Config, pattern: str, day: str) -> list[Path]:
    """The files of a path of the configuration, sorted by name."""
    path = pattern.replace("{data}", config.data).replace("{lake}", config.lake).replace("{date}", day)
    return sorted(Path("/").glob(path.lstrip("/")))


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


def _entries(table: RawTable, path: Path) -> list[tuple[str, Mapping[str, Any] | str | None]]:
    """The text of each line, with its raw values, or the reason to reject it, or None for a header.

    Rows of Parquet and ORC have no text.
    """
    if table.format in ("parquet", "orc"):
        read = pq.read_table if table.format == "parquet" else orc.read_table
        rows = read(path).to_pylist()
        return [("", {column.name: row[column.source_name] for column in table.columns}) for row in rows]
    entries: list[tuple[str, Mapping[str, Any] | str | None]] = []
    header: list[str] | None = None
    for data in _lines(path):
        text = data.decode("utf-8", "replace")
        if table.format == "csv" and header is None:
            header = csv_fields(text, table.field_separator)
            entries.append((text, None))
            continue
        try:
            if text.encode() != data:
                raise _Rejected("not_utf8")
            entries.append((text, _raw_values(table, text, header)))
        except _Rejected as rejected:
            entries.append((text, str(rejected)))
    return entries


def _row_of(config: Config, raw: Mapping[str, Any]) -> tuple[Row, str | None]:
    """The values of a row, and why it is not used (None if it is). The first reason counts."""
    row: Row = {}
    reasons: list[str] = []
    for column in config.log.columns:
        try:
            row[column.name] = _typed(raw[column.name], column, config.log)
        except _Rejected as rejected:
            row[column.name] = None
            reasons.append(str(rejected))
    row |= _computed(config, row, reasons)
    reasons += [_reason(operator) for operator in _filters(config) if not _keeps(operator, row)]
    return row, reasons[0] if reasons else None


def _raw_values(table: RawTable, text: str, header: list[str] | None) -> Mapping[str, Any]:
    """Column → text, JSON value or None."""
    if table.format == "jsonl":
        try:
            parsed = json.loads(text)
        except ValueError:
            raise _Rejected("json") from None
        if not isinstance(parsed, dict):
            raise _Rejected("json")
        return {column.name: _field(parsed, column.source_name) for column in table.columns}
    fields = csv_fields(text, table.field_separator) if header else text.split(table.field_separator)
    if fields is None:
        raise _Rejected("quote")
    names = header or [column.source_name for column in table.columns]
    if len(fields) != len(names):
        raise _Rejected("field_count")
    by_name = dict(zip(names, fields, strict=True))
    return {column.name: by_name.get(column.source_name) for column in table.columns}


def _field(parsed: Any, path: str) -> Any:
    for name in path.split("."):
        parsed = parsed.get(name) if isinstance(parsed, dict) else None
    return parsed


def csv_fields(line: str, separator: str) -> list[str] | None:
    """The fields of a line by RFC 4180; None if a double quote is in a wrong place."""
    fields, rest = [], line + separator
    while rest:
        found = re.match(f'"((?:[^"]|"")*)"{re.escape(separator)}', rest)
        if found is None:
            found = re.match(f'([^"{re.escape(separator)}]*){re.escape(separator)}', rest)
        if found is None:
            return None
        is_quoted = rest.startswith('"')
        fields.append(found[1].replace('""', '"') if is_quoted else found[1])
        rest = rest[found.end() :]
    return fields


def _typed(value: Any, column: Column, table: RawTable) -> Any:
    """A value with the type of its column; None for null."""
    if value is None:
        return None
    if isinstance(value, datetime):
        return _instant(value, table.time_zone)
    if isinstance(value, date):
        return (value - _EPOCH.date()).days
    is_list = column.type.startswith("list")
    if isinstance(value, dict) or (isinstance(value, list) and not is_list):
        raise _Rejected(f"json:{column.name}")
    if isinstance(value, list):
        return [element for element in value if element is not None]
    if isinstance(value, bool):
        value = ("true" if value else "false") if column.type == "string" else str(int(value))
    text = value if isinstance(value, str) else json.dumps(value)
    if text == "" or (isinstance(value, str) and text in table.null_values):
        return None
    reason, convert = _CONVERSIONS[column.type]
    converted = convert(text, column, table.time_zone)
    if converted is None:
        raise _Rejected(f"{reason}:{column.name}")
    return converted


def _integer(text: str) -> int | None:
    if not re.fullmatch(r"[+-]?[0-9]{1,19}(\.0*)?", text):
        return None
    number = int(text.split(".")[0])
    return number if -(2**63) <= number < 2**63 else None


def _number(text: str) -> float | None:
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        return None
    return float(text) if abs(float(text)) <= LARGEST_FLOAT32 else None


def _boolean(text: str) -> int | None:
    words = dict.fromkeys(("true", "t", "yes", "y", "1"), 1)
    words |= dict.fromkeys(("false", "f", "no", "n", "0"), 0)
    return words.get(text.lower())


def _date(text: str) -> int | None:
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        return None
    try:
        return (date.fromisoformat(text) - _EPOCH.date()).days
    except ValueError:
        return None


def _timestamp(text: str, zone: str) -> int | None:
    try:
        return _instant(datetime.fromisoformat(text), zone)
    except ValueError:
        return None


def _instant(time: datetime, zone: str) -> int:
    """µs since 1970-01-01 UTC. A time without an offset is a time of the zone."""
    return ((time if time.tzinfo else time.replace(tzinfo=ZoneInfo(zone))) - _EPOCH) // _US


def _list(text: str, column: Column) -> list[Any] | None:
    elements = [element for element in text.split(column.separator or "|") if element]
    if column.type == "list<string>":
        return elements
    numbers = [_integer(element) for element in elements]
    return None if None in numbers else numbers


_CONVERSIONS: Mapping[str, tuple[str, Callable[[str, Column, str], Any]]] = {
    "int": ("integer", lambda text, column, zone: _integer(text)),
    "float": ("number", lambda text, column, zone: _number(text)),
    "string": ("", lambda text, column, zone: text),
    "bool": ("boolean", lambda text, column, zone: _boolean(text)),
    "date": ("date", lambda text, column, zone: _date(text)),
    "timestamp": ("timestamp", lambda text, column, zone: _timestamp(text, zone)),
    "list<int>": ("list", lambda text, column, zone: _list(text, column)),
    "list<string>": ("", lambda text, column, zone: _list(text, column)),
}


def _computed(config: Config, row: Row, reasons: list[str]) -> Row:
    """Label, weight, keys and time of a row. Adds the reasons to reject it, in the order of the rules."""
    computed = _label(config, row, reasons)
    names = (config.keys.user, config.keys.item, config.keys.group) if config.keys else ()
    for output, name in zip(KEYS, names, strict=False):
        if name is None:
            continue
        value = row[name]
        if value is None:
            reasons.append(f"missing_key:{name}")
        elif isinstance(value, str) and breaks_rule_of_ids(value):
            reasons.append(f"key:{name}")
        computed[output] = None if value is None else str(value)
    if config.log.event_time is None:
        return computed
    name = config.log.event_time.column
    computed["event_time"] = _time(config, row[name])
    if row[name] is None:
        reasons.append(f"missing_time:{name}")
    elif not -(2**63) < computed["event_time"] < 2**63:
        reasons.append(f"time_range:{name}")
    return computed


def _label(config: Config, row: Row, reasons: list[str]) -> Row:
    label = config.log.label
    value = row[label.column]
    if label.positive is None:
        least = label.positive_at_least
        if value is None or (least is None and value not in (0, 1)):
            reasons.append(f"label:{label.column}")
            return {"label": None}
        return {"label": float(value if least is None else value >= least)}
    if value is None:
        reasons.append(f"label:{label.column}")
    event = str(value)
    clicks = [str(name) for name in label.positive]
    if label.weights is None:
        return {"label": float(event in clicks)}
    weights = {**dict.fromkeys(clicks, 1.0), **{str(name): w for name, w in label.weights.items()}}
    if value is not None and event not in weights:
        reasons.append("other_event" if label.other_events == "drop" else f"event:{label.column}")
    return {"label": float(event in clicks), "weight": float(np.float32(weights.get(event, 0)))}


def _time(config: Config, value: Any) -> Any:
    """µs since 1970-01-01 UTC."""
    assert config.log.event_time is not None
    kind = config.log.type_of(config.log.event_time.column)
    if value is None or kind == "timestamp":
        return value
    if kind == "date":
        midnight = datetime(1970, 1, 1) + timedelta(days=value)
        return (midnight.replace(tzinfo=ZoneInfo(config.log.time_zone)) - _EPOCH) // _US
    nanoseconds = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[config.log.event_time.unit]
    return value * nanoseconds // 1000


def breaks_rule_of_ids(text: str) -> bool:
    """Whether an id has a control character or more than 256 bytes of UTF-8."""
    return len(text.encode()) > 256 or any(unicodedata.category(character) == "Cc" for character in text)


def _is_left_out(text: str, row: Row, reason: str | None, config: Config, users: set[str]) -> bool:
    """Whether a line is that of one of these users, or is rejected and has the id of one in a field."""
    if row.get("user_key") in users:
        return True
    if reason is None or not users:
        return False
    is_json = config.log.format == "jsonl"
    fields = re.split(r'["\s,:{}\[\]]+', text) if is_json else text.split(config.log.field_separator)
    # The reader knows the user of a whole object.
    return (not is_json or reason == "json") and any(field.strip('"') in users for field in fields)


# Operators of `prepare` that drop rows. They run first, and read only columns of the log


def _operators(config: Config) -> list[tuple[str, Mapping[str, Any]]]:
    return [next(iter(entry.items())) for entry in config.prepare if not isinstance(entry, str)]  # type: ignore[misc]


def _filters(config: Config) -> list[tuple[str, Mapping[str, Any]]]:
    return [operator for operator in _operators(config) if operator[0] in ("filter", "dropna")]


def _reason(operator: tuple[str, Mapping[str, Any]]) -> str:
    name, settings = operator
    return f"{name}:{settings['keep'] if name == 'filter' else ','.join(settings['columns'])}"


def _reasons_left_out(config: Config) -> set[str]:
    return {"erased_user", "other_event", *map(_reason, _filters(config))}


def _keeps(operator: tuple[str, Mapping[str, Any]], row: Row) -> bool:
    name, settings = operator
    if name == "dropna":
        return all(row[column] is not None for column in settings["columns"])
    return _evaluated(ast.parse(settings["keep"], mode="eval").body, row) is True


def _evaluated(node: ast.expr, row: Row) -> Any:
    """The value of a condition with three-valued logic: comparisons, `and`, `or`, `not` and `is_null`."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return row[node.id]
        case ast.BoolOp():
            values = [_evaluated(value, row) for value in node.values]
            decisive = isinstance(node.op, ast.Or)
            return decisive if decisive in values else None if None in values else not decisive
        case ast.UnaryOp(op=ast.Not()):
            value = _evaluated(node.operand, row)
            return None if value is None else not value
        case ast.Call(func=ast.Name(id="is_null")):
            return _evaluated(node.args[0], row) is None
        case ast.Compare(ops=[operator]):
            left, right = _evaluated(node.left, row), _evaluated(node.comparators[0], row)
            return None if left is None or right is None else _COMPARISONS[type(operator)](left, right)
    raise ValueError(f"the oracle does not know {ast.unparse(node)}")


_COMPARISONS: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
}


# Preparation


def prepared_rows(config: Config, day: str, erased: Erased = MappingProxyType({})) -> list[Row]:
    """The prepared rows of a day. Each has its `split`, which is None if a day is in one split."""
    rows = with_splits(config, read_log(config, day, erased).good)
    if config.history:
        rows = with_histories(config, rows, earlier_clicks(config, day, erased))
    if config.negatives and config.keys:
        rows = with_negatives(rows, config.negatives, config.keys.item)
    rows = with_positions(config, rows, day)
    if config.keys:
        for table, key in ((config.users, config.keys.user), (config.items, config.keys.item)):
            gone = erased if table is config.users else {}
            rows = joined(config, rows, table, key, day, gone) if table else rows
    for name, settings in _operators(config):
        if name == "difference_lag":
            stride = config.negatives.per_positive + 1 if config.negatives and config.keys else 1
            rows = with_differences(rows, settings, stride)
        elif name == "groupby":
            rows = combined(rows, settings)
        elif name not in ("filter", "dropna"):
            raise ValueError(f"the oracle has no operator {name}")
    return rows


def _place(row: Row) -> tuple[int, ...]:
    """The place of a row in time: by event time, then by position in the log."""
    return (row["event_time"], row["row_id"]) if "event_time" in row else (row["row_id"],)


def with_splits(config: Config, rows: Sequence[Row]) -> list[Row]:
    """Adds the column `split`."""
    if config.split.by == "day":
        return [{**row, "split": None} for row in rows]
    if config.split.by == "leave_last_out":
        return [{**row, "split": _split_of_user(row, rows)} for row in rows]
    timed = bool(rows) and "event_time" in rows[0]
    return _by_time(rows, config.split) if timed else _by_position(rows, config.split)


def _split_of_user(row: Row, rows: Sequence[Row]) -> str:
    """Test from the last positive row of the user on, validation from the one before it on."""
    mine = [other for other in rows if other["user_key"] == row["user_key"]]
    clicks = sorted(_place(other) for other in mine if other["label"] == 1)
    if clicks and _place(row) >= clicks[-1]:
        return "test"
    return "validation" if len(clicks) > 1 and _place(row) >= clicks[-2] else "train"


def _shares(split: SplitConfig) -> list[Fraction]:
    train = Fraction(str(split.train))
    return [train, train + Fraction(str(split.validation))]


def _by_time(rows: Sequence[Row], split: SplitConfig) -> list[Row]:
    """Percentiles of the times end the splits, so rows with equal times are in the same split."""
    times = sorted(row["event_time"] for row in rows)
    cuts = []
    for share in _shares(split):
        position = (len(times) - 1) * share
        low, part = int(position), position - int(position)
        cuts.append(times[low] + (part * (times[low + 1] - times[low]) if part else 0))
    return [{**row, "split": _by_cuts(row["event_time"], cuts)} for row in rows]


def _by_position(rows: Sequence[Row], split: SplitConfig) -> list[Row]:
    cuts = [(len(rows) - 1) * share for share in _shares(split)]
    return [{**row, "split": _by_cuts(rank, cuts)} for rank, row in enumerate(rows)]


def _by_cuts(value: int, cuts: Sequence[int | Fraction]) -> str:
    return SPLITS[sum(value > cut for cut in cuts)]


def last_clicks(rows: Iterable[Row], user: str, length: int) -> list[Row]:
    """The last clicks of a user, the oldest first."""
    clicks = [row for row in rows if row["user_key"] == user and row["label"] == 1]
    return sorted(clicks, key=_place)[-length:]


def days_before(config: Config, day: str) -> list[str]:
    """The days whose clicks are in the histories of a day, the oldest first."""
    count = (config.history.days if config.history else None) or 0
    return [(date.fromisoformat(day) - timedelta(days=back)).isoformat() for back in range(count, 0, -1)]


def earlier_clicks(config: Config, day: str, erased: Erased = MappingProxyType({})) -> dict[str, list[Row]]:
    """User → the last clicks on the days before, the oldest first. A later day is more recent.

    As in the table `last_clicks`, each day has at most `history.length` clicks of a user, and all days
    together have, too.
    """
    if config.history is None or config.split.by != "day":
        return {}
    length = config.history.length
    found: dict[str, list[Row]] = {}
    for dt in days_before(config, day):
        rows = read_log(config, dt, erased).good
        for user in {row["user_key"] for row in rows}:
            found[user] = (found.get(user, []) + last_clicks(rows, user, length))[-length:]
    return found


def with_histories(config: Config, rows: Sequence[Row], earlier: Mapping[str, list[Row]]) -> list[Row]:
    """Adds the items that the user clicked before the row, the most recent one first, and their ages."""
    assert config.history is not None
    result = []
    for row in rows:
        mine = [other for other in rows if other["user_key"] == row["user_key"]]
        shown = row  # when its group was shown
        if "group_key" in row:
            shown = min((other for other in mine if other["group_key"] == row["group_key"]), key=_place)
        today = [click for click in mine if click["label"] == 1 and _place(click) < _place(shown)]
        older = [
            click
            for click in earlier.get(row["user_key"], [])
            if "event_time" not in row or click["event_time"] < row["event_time"]
        ]
        clicks = [*older, *sorted(today, key=_place)][::-1]
        result.append({**row, **_history(config, clicks[: config.history.length])})
    return result


def _history(config: Config, clicks: Sequence[Row]) -> Row:
    """The columns of the section `history` for clicks, the most recent one first."""
    assert config.history is not None
    columns: Row = {config.history.column: [click["item_key"] for click in clicks]}
    if config.history.ages:
        columns[config.history.ages] = [
            max(clicks[0]["event_time"] - click["event_time"], 0) // 1_000_000 for click in clicks
        ]
    return columns


def latest_histories(
    config: Config, run_date: str, known: Sequence[str], erased: Erased = MappingProxyType({})
) -> dict[str, Row]:
    """User → the columns of the history after the last row of the splits `known`, for users with a click."""
    assert config.history is not None
    if config.split.by == "day":
        after = 1 if "test" in known else 0 if "validation" in known else -1
        day = (date.fromisoformat(run_date) + timedelta(days=after)).isoformat()
        found = earlier_clicks(config, day, erased)
    else:
        rows = with_splits(config, read_log(config, run_date, erased).good)
        rows = [row for row in rows if row["split"] in known]
        users = {row["user_key"] for row in rows}
        found = {user: last_clicks(rows, user, config.history.length) for user in users}
    return {user: _history(config, clicks[::-1]) for user, clicks in found.items() if clicks}


def hash_of_draw(row_id: int, draw: int, seed: int) -> int:
    """Spark's `xxhash64(row_id, draw, seed)`: a bigint, an int, and an int or bigint, one after the other."""
    digest = xxh64(row_id.to_bytes(8, "little"), 42)
    digest = xxh64(draw.to_bytes(4, "little"), digest)
    return signed(xxh64(seed.to_bytes(4 if seed < 2**31 else 8, "little"), digest))


def with_negatives(rows: Sequence[Row], config: Negatives, item_column: str) -> list[Row]:
    """Adds rows with label 0 for items that the user has not seen in the split of the row and before."""
    stride = config.per_positive + 1
    number: dict[str | None, int] = {None: 0, "train": 0, "validation": 1, "test": 2}
    result = []
    for row in rows:
        result.append({**row, "row_id": row["row_id"] * stride})
        if row["label"] != 1 or (row["split"] == "train" and not config.train):
            continue
        visible = [other for other in rows if number[other["split"]] <= number[row["split"]]]
        seen = {other["item_key"] for other in visible if other["user_key"] == row["user_key"]}
        since: dict[str, int] = {}
        for other in visible:
            key, first = other["item_key"], number[other["split"]]
            since[key] = min(since.get(key, first), first)
        items = sorted(since, key=lambda item: (since[item], item.encode()))
        raw = {other["item_key"]: other[item_column] for other in visible}
        for draw in range(1, stride):
            item = items[hash_of_draw(row["row_id"], draw, config.seed) % len(items)]
            if item not in seen:
                drawn = {"item_key": item, item_column: raw[item], "label": 0.0}
                drawn |= {"weight": 1.0} if "weight" in row else {}
                result.append({**row, **drawn, "row_id": row["row_id"] * stride + draw})
    return result


def with_positions(config: Config, rows: Sequence[Row], day: str) -> list[Row]:
    """Adds the position of the last impression of user and item at or before the time of the row."""
    settings = config.serving.impressions
    if settings is None or settings.row_column is None:
        return list(rows)
    shown = _impressions(config, day)
    result = []
    for row in rows:
        pair = (row["user_key"], row["item_key"])
        mine = [(time, position) for user, item, time, position in shown if (user, item) == pair]
        if "event_time" in row:
            mine = [(time, position) for time, position in mine if time <= row["event_time"]]
            mine = [entry for entry in mine if entry[0] == max(mine)[0]]
        position = min((position for _, position in mine), default=None)
        result.append({**row, settings.row_column: position})
    return result


def _impressions(config: Config, day: str) -> list[tuple[str, str, int, int]]:
    """The valid impressions of a day: user, item, time (µs, or 0 without times) and position."""
    settings = config.serving.impressions
    assert settings is not None
    found = []
    for path in files_of(config, settings.path, day):
        lines = [line.decode() for line in _lines(path)]
        if settings.format == "jsonl":
            entries = [json.loads(line) for line in lines]
        else:
            header, *others = [line.split(settings.separator or ",") for line in lines]
            entries = [dict(zip(header, fields, strict=True)) for fields in others]
        for entry in entries:
            user, item = entry.get(settings.user), entry.get(settings.item)
            position = _integer(str(entry.get(settings.position)))
            logged = _integer(str(entry.get(settings.time))) if settings.time else 0
            if user in (None, "") or item in (None, "") or logged is None or (position or 0) < 1:
                continue
            time = _time(config, logged) if settings.time else 0
            if abs(time) < 2**63:
                found.append((str(user), str(item), time, position or 0))
    return found


def attributes_of(config: Config, table: RawTable, day: str) -> list[Row]:
    """The rows of a table of users or items, in the order of its files. All of them must be good rows."""
    return [
        {column.name: _typed(values[column.name], column, table) for column in table.columns}
        for path in files_of(config, table.path, day)
        for _, values in _entries(table, path)
        if isinstance(values, Mapping)
    ]


def joined(
    config: Config,
    rows: Sequence[Row],
    table: RawTable,
    key: str,
    day: str,
    erased: Erased = MappingProxyType({}),
) -> list[Row]:
    """Adds the attributes of a table: those of its row with the key of the row, or nulls.

    The rows of erased users in it do not count: in a table of a day, those erased on this day or later, and
    in other tables all, also if they have come back since.
    """
    as_integers = table.type_of(key) != config.log.type_of(key)

    def comparable(value: Any) -> Any:
        return _integer(str(value)) if as_integers and value is not None else value

    gone = {user for user, last in erased.items() if "{date}" not in table.path or day <= last}
    attributes = [row for row in attributes_of(config, table, day) if str(row[key]) not in gone]
    missing = {column.name: None for column in table.columns if column.name != key}
    result = []
    for row in rows:
        partners = [
            {name: value for name, value in other.items() if name != key}
            for other in attributes
            if row[key] is not None and comparable(other[key]) == comparable(row[key])
        ]
        assert len(partners) <= 1
        result.append({**row, **missing, **(partners[0] if partners else {})})
    return result


# Operators of `prepare` that change rows


def with_differences(rows: Sequence[Row], settings: Mapping[str, Any], stride: int = 1) -> list[Row]:
    """The operator `difference_lag`. Every row whose row_id is no multiple of `stride` is a drawn negative."""
    lag, result = settings.get("lag", 1), []
    of_log = [row for row in rows if row["row_id"] % stride == 0]
    for row in rows:
        alike = [other for other in of_log if _same(row, other, settings["by"])]
        alike.sort(key=_place)
        positive = row["row_id"] - row["row_id"] % stride
        place = [other["row_id"] for other in alike].index(positive) - lag
        earlier = alike[place] if 0 <= place < len(alike) else dict.fromkeys(settings["columns"])
        row = dict(row)
        for name in settings["columns"]:
            now, before = row[name], earlier[name]
            difference = None if now is None or before is None else float(now) - float(before)
            if difference is not None:
                difference = max(-LARGEST_FLOAT32, min(difference, LARGEST_FLOAT32))
            row[f"{name}_difference_lag_{lag}"] = difference
        result.append(row)
    return result


def _same(row: Row, other: Row, names: Iterable[str]) -> bool:
    return all(row[name] == other[name] for name in names)


def combined(rows: Sequence[Row], settings: Mapping[str, Any]) -> list[Row]:
    """The operator `groupby`."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted(rows, key=_place):
        groups.setdefault(tuple(row[name] for name in (*settings["by"], "split")), []).append(row)
    result = []
    for members in groups.values():
        kept = (*settings["by"], "split", *KEYS)
        new = {name: members[0][name] for name in kept if name in members[0]}
        new["row_id"] = min(member["row_id"] for member in members)
        for name in ("label", "event_time", "weight"):
            new |= {name: max(member[name] for member in members)} if name in members[0] else {}
        for column, names in settings["aggregates"].items():
            values = [member[column] for member in members]
            new |= {f"{column}_{name}": aggregate(name, values) for name in names}
        result.append(new)
    return result


def aggregate(name: str, values: Sequence[Any]) -> Any:
    """An aggregate of `groupby` over values in the order of time. Sums are exact sums of rounded values."""
    present = [value for value in values if value is not None]
    if name in ("first", "last"):
        return values[0 if name == "first" else -1]
    if name == "count":
        return len(present)
    if name == "list":
        return present
    if not present:
        return None
    if name in ("min", "max"):
        return min(present) if name == "min" else max(present)
    total = exact_sum(present)
    return total / len(present) if name == "mean" and total is not None else total


def exact_sum(values: Sequence[float]) -> float | None:
    """The sum of values that are rounded to multiples of 2**-24; null if a number or the sum is too large."""
    units = [np.rint(np.float64(value) * _UNIT) for value in values]
    if any(abs(unit) / _UNIT >= _TOO_LARGE for unit in units):
        return None
    total = sum(int(Decimal(repr(float(unit)))) for unit in units)  # by the shortest notation
    return float(total) / _UNIT if abs(total) < _TOO_LARGE * _UNIT else None


def rounded(value: float) -> float:
    """The value that exact sums use: the nearest multiple of 2**-24."""
    return round(float(value) * _UNIT) / _UNIT
