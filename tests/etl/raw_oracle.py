"""The expected rows of a raw log, parsed with pandas and without Spark (see tests.etl.oracle)."""

from __future__ import annotations

import csv
import gzip
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from conf.types import Config, RawTable

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1


def lines_of(path: Path) -> list[bytes]:
    """Lines of a plain or gzip text file. They end with LF, CR LF or CR; the last one may lack its end.

    A byte order mark is not part of the first line.
    """
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    data = data.removeprefix(b"\xef\xbb\xbf")
    return data.splitlines()  # bytes.splitlines knows these three ends only


def parse_table(table: RawTable, paths: Sequence[Path]) -> pd.DataFrame:
    """All raw rows: row_id, file, line_number, line, reason (None for a good row) and typed columns."""
    rows: list[dict[str, Any]] = []
    row_id = 0
    for path in sorted(paths):
        header: list[str] | None = None
        for number, data in enumerate(lines_of(path), start=1):
            line = data.decode("utf-8", errors="replace")
            row = {"row_id": row_id, "file": path.name, "line_number": number, "line": line}
            row_id += 1
            if table.format == "csv" and header is None:
                header = next(csv.reader([line], delimiter=table.field_separator))
                continue
            if line.encode() != data:
                rows.append(row | {"reason": "not_utf8"})
            elif header and csv_fields(line, table.field_separator) is None:
                rows.append(row | {"reason": "quote"})
            else:
                rows.append(row | _typed(table, _fields(table, line, header)))
    names = ["row_id", "file", "line_number", "line", "reason", *table.names]
    return pd.DataFrame(rows, columns=names, dtype=object)


def _fields(table: RawTable, line: str, header: list[str] | None) -> list[str] | None:
    """The line's fields in the order of the configuration; None if their number is wrong."""
    if header is None:
        plain_fields = line.split(table.field_separator)
        return plain_fields if len(plain_fields) == len(table.columns) else None
    fields = csv_fields(line, table.field_separator)
    if fields is None or len(fields) != len(header):
        return None
    by_name = dict(zip(header, fields, strict=True))
    return [by_name[column.source_name] for column in table.columns]


def csv_fields(line: str, separator: str) -> list[str] | None:
    """The fields of a line of csv, parsed by character; None if a quote is in a wrong position."""
    fields, rest = [], line
    while True:
        field = ""
        if rest.startswith('"'):
            rest = rest[1:]
            while True:
                before, quote, rest = rest.partition('"')
                field += before
                if not quote:
                    return None
                if not rest.startswith('"'):
                    break
                field, rest = field + '"', rest[1:]
            if rest and not rest.startswith(separator):
                return None
        else:
            end = rest.find(separator)
            field, rest = (rest, "") if end < 0 else (rest[:end], rest[end:])
            if '"' in field:
                return None
        fields.append(field)
        if not rest:
            return fields
        rest = rest[1:]


def _typed(table: RawTable, fields: list[str] | None) -> dict[str, Any]:
    if fields is None:
        return {"reason": "field_count"}
    reasons, values = [], {}
    for column, text in zip(table.columns, fields, strict=True):
        is_null = text in table.null_values
        value = None if is_null else _PARSERS[column.type](text)
        if not is_null and value is None:
            reasons.append(f"{'integer' if column.type == 'int' else 'number'}:{column.name}")
        values[column.name] = value
    return values | {"reason": reasons[0] if reasons else None}


def _integer(text: str) -> int | None:
    if not re.fullmatch(r"[+-]?[0-9]{1,19}(\.0*)?", text):
        return None
    whole = int(text.split(".")[0])
    return whole if LONG_MIN <= whole <= LONG_MAX else None


def _number(text: str) -> float | None:
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        return None
    return float(text) if abs(float(text)) <= float(np.finfo(np.float32).max) else None


_PARSERS: Mapping[str, Callable[[str], Any]] = {"int": _integer, "float": _number, "string": str}


def parse_log(config: Config, paths: Sequence[Path]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(good rows with label, user_key, item_key and event_time where configured; bad rows) of one day."""
    rows = parse_table(config.log, paths)
    label, threshold = config.log.label.column, config.log.label.positive_at_least
    if threshold is None:
        bad_label = ~rows[label].isin([0, 1])
        clicked = rows[label] == 1
    else:
        bad_label = rows[label].isna()
        clicked = rows[label].map(lambda value: value is not None and value >= threshold)
    rules = [(bad_label, f"label:{label}")]
    if config.keys:
        for name in (config.keys.user, config.keys.item):
            rules += [(rows[name].isna(), f"missing_key:{name}"), (rows[name].map(_breaks), f"key:{name}")]
        rows["user_key"] = rows[config.keys.user].map(_text)
        rows["item_key"] = rows[config.keys.item].map(_text)
    if config.log.event_time:
        column, scale = config.log.event_time.column, {"s": 10**6, "ms": 10**3, "us": 1}
        rules.append((rows[column].isna(), f"missing_time:{column}"))
        factor = scale[config.log.event_time.unit]
        rows["event_time"] = rows[column].map(lambda value: None if pd.isna(value) else value * factor)
        beyond = rows["event_time"].map(lambda value: value is not None and abs(value) > LONG_MAX)
        rules.append((beyond, f"time_range:{column}"))
    for broken, reason in rules:
        rows.loc[broken & rows["reason"].isna(), "reason"] = reason
    rows["label"] = clicked.astype(np.float32)
    good = rows["reason"].isna()
    return rows[good].drop(columns="reason").reset_index(drop=True), rows[~good].reset_index(drop=True)


def _breaks(key: Any) -> bool:
    """Whether an id has a control character (C0, DEL, C1) or more than 256 bytes."""
    text = _text(key) or ""
    return len(text.encode()) > 256 or any(unicodedata.category(character) == "Cc" for character in text)


def _text(value: Any) -> str | None:
    return None if pd.isna(value) else str(value)
