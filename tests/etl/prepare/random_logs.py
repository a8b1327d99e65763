"""Small random logs with ties, nulls, misdated rows, unknown users and malformed lines, and their settings."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from conf.types import Config
from tests.etl import cases

DAYS = [f"2026-03-0{day}" for day in range(1, 7)]
_START = 1_772_323_200  # 2026-03-01 in s since 1970
_ROWS = 45  # of a file
COLUMNS = ["clicked", "who", "what", "visit", "price", "place", "at"]
_TYPES = ["int", "int", "string", "string", "float", "string", "int"]
LOG: dict[str, Any] = {
    "path": "{data}/{date}/*.csv",
    "format": "csv",
    "separator": ";",
    "null_values": ["", "none"],
    "columns": [{"name": name, "type": kind} for name, kind in zip(COLUMNS, _TYPES, strict=True)],
    "label": {"column": "clicked"},
    "event_time": {"column": "at"},
}
USERS: dict[str, Any] = {
    "path": "{data}/users-*.csv",
    "format": "csv",
    "separator": ";",
    "null_values": ["", "none"],
    "columns": [
        {"name": "who", "type": "int"},
        {"name": "age", "type": "int"},
        {"name": "city", "type": "string"},
    ],
}
ITEMS: dict[str, Any] = {
    "path": "{data}/items.csv",
    "format": "csv",
    "separator": ";",
    "columns": [
        {"name": "what", "type": "string"},
        {"name": "kind", "type": "string"},
        {"name": "weight_kg", "type": "float"},
    ],
}
IDS = {"kind": "categorical", "ops": [{"categorify": {"min_count": 1}}]}
NUMBERS = {"kind": "dense", "ops": ["fill_median", "normalize"]}
WHAT = {
    "columns": ["what"],
    "kind": "categorical",
    "ops": [{"categorify": {"min_count": 2, "share": "what"}}],
}
HISTORY = {
    "columns": ["history"],
    "kind": "multi_hot",
    "ops": [{"categorify": {"min_count": 2, "share": "what", "counts": False}}],
}
AGES = {
    "columns": ["ages"],
    "kind": "multi_hot",
    "ops": [{"bucketize": {"boundaries": [1, 60, 3600, 86400]}}],
}
SHOP: dict[str, Any] = {
    "log": LOG,
    "users": USERS,
    "items": ITEMS,
    "keys": {"user": "who", "item": "what"},
    "features": [
        {"columns": ["age", "price", "weight_kg"], **NUMBERS},
        {"columns": ["who", "city", "kind", "place"], **IDS},
        WHAT,
    ],
    "scopes": {"user": ["age", "who", "city"], "item": ["what", "kind", "weight_kg"]},
    "split": {"by": "day", "train_days": 3, "validation_days": 1, "test_days": 1, "min_train_days": 1},
    "quality": {"max_bad_share": 0.7, "max_misdated_share": 1, "misdated_share_warn": None},
    "output": {"row_group_rows": 50},
}
UNTIMED = {**LOG, "event_time": None}
ONE_TABLE = {**LOG, "path": "{data}/2026*/*.csv"}
ONE_UNTIMED = {**UNTIMED, "path": "{data}/2026*/*.csv"}
WITH_HISTORY: dict[str, Any] = {
    "history": {"length": 4, "days": 2},
    "features": [*SHOP["features"], HISTORY],
    "scopes": {**SHOP["scopes"], "user": ["age", "who", "city", "history"]},
}
IN_ONE_TABLE = {**WITH_HISTORY, "history": {"length": 4}}
WITH_AGES: dict[str, Any] = {
    "history": {"length": 4, "days": 2, "ages": "ages"},
    "features": [*WITH_HISTORY["features"], AGES],
    "scopes": {**SHOP["scopes"], "user": ["age", "who", "city", "history", "ages"]},
}
AGES_IN_ONE_TABLE = {**WITH_AGES, "history": {"length": 4, "ages": "ages"}}
BY_FRACTION = {"by": "fraction", "train": 0.6, "validation": 0.25}
IMPRESSIONS: dict[str, Any] = {
    "path": "{data}/shown/{date}*.csv",
    "format": "csv",
    "user": "user",
    "item": "item",
    "position": "position",
    "time": "time",
    "max_unmatched_share": 1,
    "row_column": "shown",
}
WITH_POSITIONS: dict[str, Any] = {
    "serving": {"impressions": IMPRESSIONS},
    "features": [*SHOP["features"], {"columns": ["shown"], **IDS}],
}
GROUPED: dict[str, Any] = {
    "prepare": [
        {"difference_lag": {"by": ["who"], "columns": ["price"]}},
        {
            "groupby": {
                "by": ["who", "what", "city"],
                "aggregates": {
                    "price": ["sum", "max", "mean"],
                    "price_difference_lag_1": ["sum"],
                    "place": ["list", "first", "last"],
                    "kind": ["first"],
                    "age": ["min"],
                    "who": ["count"],
                },
            }
        },
    ],
    "features": [
        {"columns": ["price_sum", "price_max", "price_mean", "age_min", "who_count"], **NUMBERS},
        {"columns": ["price_difference_lag_1_sum"], **NUMBERS},
        {"columns": ["what", "kind_first", "city", "place_first", "place_last"], **IDS},
        {"columns": ["place_list"], "kind": "multi_hot", "ops": ["categorify"]},
    ],
    "scopes": {},
}
_EVENTS = {"positive": ["cart", "buy"], "weights": {"view": 0.1, "cart": 0.5, "buy": 3}}
EVENTS: dict[str, Any] = {
    **LOG,
    "columns": [{"name": "event", "type": "string"}, *LOG["columns"][1:]],
    "label": {"column": "event", **_EVENTS},
}
NESTED: dict[str, Any] = {
    **LOG,
    "path": "{data}/{date}/*.jsonl",
    "format": "jsonl",
    "separator": None,
    "time_zone": "Europe/Berlin",
    "columns": [
        {"name": "clicked", "type": "bool", "source": "was.clicked"},
        {"name": "who", "type": "int", "source": "user.id"},
        {"name": "what", "type": "string"},
        {"name": "visit", "type": "string", "optional": True},
        {"name": "price", "type": "float"},
        {"name": "place", "type": "string"},
        {"name": "at", "type": "timestamp"},
        {"name": "tags", "type": "list<string>", "optional": True},
        {"name": "born", "type": "date", "optional": True},
    ],
}
_LABELS: dict[str, Sequence[str]] = {
    "events with weights": ["view", "view", "cart", "buy", "scroll", ""],
    "grouped events": ["1", "1", "20", "-3", "4", ""],
}
_STORED: dict[str, Any] = {
    **NESTED,
    "null_values": [""],
    "path": "{data}/{date}/*.parquet",
    "format": "parquet",
    "columns": [
        {key: value for key, value in column.items() if key not in ("source", "optional")}
        for column in NESTED["columns"]
    ],
}
STORED: dict[str, Any] = {
    **WITH_HISTORY,
    "negatives": {"per_positive": 1},
    "prepare": [{"dropna": {"columns": ["born"]}}],
    "features": [
        *WITH_HISTORY["features"],
        {"columns": ["tags"], "kind": "multi_hot", "ops": ["categorify"]},
    ],
}
CASES: dict[str, dict[str, Any]] = {
    "history, negatives and tables": {**WITH_HISTORY, "negatives": {"per_positive": 3, "seed": 5}},
    "groups": {
        **WITH_AGES,
        "keys": {"user": "who", "item": "what", "group": "visit"},
        "negatives": {"per_positive": 1, "seed": 2**40},
    },
    "without times": {**WITH_HISTORY, "log": UNTIMED, "history": {"length": 3, "days": 1}},
    "differences": {
        "prepare": [
            {"difference_lag": {"by": ["who"], "columns": ["price", "age"]}},
            {"filter": {"keep": "price < 90"}},
        ],
        "features": [
            *SHOP["features"],
            {
                "columns": ["price_difference_lag_1", "age_difference_lag_1"],
                "kind": "dense",
                "ops": [{"fill": {"value": 0}}],
            },
        ],
    },
    "differences over other keys": {
        "negatives": {"per_positive": 2},
        "prepare": [
            {"dropna": {"columns": ["visit", "price"]}},
            {"difference_lag": {"by": ["who"], "columns": ["price"]}},
            {"difference_lag": {"by": ["age", "place"], "columns": ["price"], "lag": -2}},
            {"filter": {"keep": "not (price >= 90) or place == 'b' and clicked != 0"}},
        ],
        "features": [
            *SHOP["features"],
            {
                "columns": ["price_difference_lag_1", "price_difference_lag_-2"],
                "kind": "dense",
                "ops": ["fill"],
            },
        ],
    },
    "groupby": GROUPED,
    "leave last out": {
        **AGES_IN_ONE_TABLE,
        "log": ONE_TABLE,
        "split": {"by": "leave_last_out"},
        "negatives": {"per_positive": 2, "train": False},
    },
    "leave last out without times": {
        **IN_ONE_TABLE,
        "log": ONE_UNTIMED,
        "split": {"by": "leave_last_out"},
        "negatives": {"per_positive": 2, "seed": 9},
    },
    "fraction of times": {
        "log": ONE_TABLE,
        "split": BY_FRACTION,
        "negatives": {"per_positive": 2},
    },
    "fraction of positions": {
        **IN_ONE_TABLE,
        "log": ONE_UNTIMED,
        "split": BY_FRACTION,
        "negatives": {"per_positive": 2},
    },
    "grouped fraction": {"log": ONE_TABLE, **GROUPED, "split": {"by": "fraction", "train": 0.6}},
    "positions": {**WITH_POSITIONS, "negatives": {"per_positive": 2}},
    "positions without times": {
        **WITH_POSITIONS,
        "log": UNTIMED,
        "serving": {
            "impressions": {
                **{key: value for key, value in IMPRESSIONS.items() if key != "time"},
                "path": "{data}/shown/{date}*.jsonl",
                "format": "jsonl",
            }
        },
    },
    "events with weights": {
        **WITH_HISTORY,
        "log": EVENTS,
        "negatives": {"per_positive": 2},
    },
    "grouped events": {
        **GROUPED,
        "log": {
            **LOG,
            "columns": [{"name": "event", "type": "int"}, *LOG["columns"][1:]],
            "label": {
                "column": "event",
                "positive": [20, -3],
                "weights": {1: 0.1, 20: 0.5},
                "other_events": "refuse",
            },
        },
    },
    "json lines": {
        **WITH_HISTORY,
        "log": NESTED,
        "users": {**USERS, "columns": [{"name": "who", "type": "string"}, *USERS["columns"][1:]]},
        "prepare": [{"filter": {"keep": "born >= 0 or is_null(born)"}}],
        "features": [
            *WITH_HISTORY["features"],
            {"columns": ["born"], **IDS},
            {"columns": ["tags"], "kind": "multi_hot", "ops": ["categorify"]},
        ],
    },
    "parquet": {**STORED, "log": _STORED},
    "orc": {**STORED, "log": {**_STORED, "path": "{data}/{date}/*.orc", "format": "orc"}},
    "without keys": {
        "log": ONE_TABLE,
        "keys": None,
        "users": None,
        "items": None,
        "split": BY_FRACTION,
        "prepare": [{"difference_lag": {"by": ["place"], "columns": ["price"]}}],
        "features": [
            {"columns": ["price", "price_difference_lag_1"], **NUMBERS},
            {"columns": ["place", "what"], **IDS},
        ],
        "scopes": {},
    },
    "tables of a day": {
        "users": {**USERS, "path": "{data}/{date}/users.tsv", "format": "tsv"},
        "log": {**LOG, "label": {"column": "price", "positive_at_least": 2.5}},
        "features": [{"columns": ["age", "weight_kg"], **NUMBERS}, *SHOP["features"][1:]],
    },
}


def write_config(folder: Path, name: str, *changes: Mapping[str, Any]) -> Config:
    """The configuration of a case. The log is in the folder `raw` of `folder`."""
    return cases.write_config(folder, SHOP, CASES[name], *changes)


def write_log(folder: Path, name: str, seed: int, misdated: float = 0.08) -> None:
    """Writes the log of a case, its tables of users and items, and its impressions.

    `misdated` is the share of the rows and impressions whose time is on the day before or after.
    """
    draw = random.Random(f"{name} {seed}")
    log = CASES[name].get("log", LOG)
    for number, day in enumerate(DAYS):
        (folder / day).mkdir(parents=True)
        for part in range(2):
            labels = _LABELS.get(name, "0011")
            rows = [_row(draw, number, misdated, labels) for _ in range(_ROWS)]
            path = folder / day / f"part-{part}.{log['format']}"
            if log["format"] in ("parquet", "orc"):
                _write_stored(draw, rows, path, part)
            else:
                is_json = log["format"] == "jsonl"
                text = _json_lines(draw, rows) if is_json else _csv(draw, rows, _names(log), part)
                path.write_bytes(text)
        of_day = [[str(field).replace('"', "").replace(";", "") for field in user] for user in _users(draw)]
        table = "".join(";".join(user) + "\n" for user in of_day)
        (folder / day / "users.tsv").write_text(table, encoding="utf-8")
        _write_impressions(folder / "shown", draw, number, misdated)
    users = _users(draw)
    _write_table(folder / "users-0.csv", "who age city", users[:5])
    _write_table(folder / "users-1.csv", "who age city", users[5:])
    weights = ["", 0.1, 7, "7.", "-0.0", "1e3"]
    items = [[f"item {n}", draw.choice(["", "war", "love"]), draw.choice(weights)] for n in range(17)]
    _write_table(folder / "items.csv", "what kind weight_kg", [row for row in items if row[0] != "item 4"])


def _names(log: Mapping[str, Any]) -> list[str]:
    return [column["name"] for column in log["columns"]]


def _time(draw: random.Random, number: int, misdated: float) -> int:
    """A time on a day, in s. Many rows have the same time, and some the time of another day."""
    days = draw.choice([-1, -1, 1]) if draw.random() < misdated else 0
    return _START + (number + days) * 86_400 + draw.randrange(40) * 600


def _row(draw: random.Random, number: int, misdated: float, labels: Sequence[str]) -> list[Any]:
    user = draw.randrange(12) if draw.random() < 0.93 else draw.randrange(20, 34)  # some have few clicks
    return [
        draw.choice(labels),
        draw.choice([user] * 30 + ["", "none", "x"]),
        draw.choice([f"item {int(draw.paretovariate(1)) % 15}"] * 30 + ["", "i\x1b", "é" * 129]),
        draw.choice([f"v{user}{draw.randrange(3)}"] * 12 + [""]),
        draw.choice(["", 1, 0.1, -0.0, 2.5, 40, 95, "none", 3, 1e-9, "1e39"]),
        draw.choice(["", "a", "b", 'say "hi"', "x;y", "日本"]),
        draw.choice([_time(draw, number, misdated)] * 30 + ["", str(2**62), "noon"]),
    ]


def _csv(draw: random.Random, rows: Sequence[Sequence[Any]], names: Sequence[str], part: int) -> bytes:
    """A file with a header, whose columns are in another order in the second file, and with broken lines."""
    order = list(range(len(names)))
    if part:
        draw.shuffle(order)
    text = io.StringIO()
    ends = "\r\n" if part else "\n"
    writer = csv.writer(text, delimiter=";", lineterminator=ends)
    writer.writerows([row[place] for place in order] for row in [names, *rows])
    header, *lines = text.getvalue().encode().splitlines()
    lines += [b"1;2", b"", b'1;2;"3;4;5;6;7', b"3;" * 6, b"1;\xff;item 1;v;2;a;1"]
    draw.shuffle(lines)
    return b"".join(line + ends.encode() for line in [header, *lines])


def _json_lines(draw: random.Random, rows: Sequence[Sequence[Any]]) -> bytes:
    """Objects whose numbers are sometimes texts, and whose times have offsets or are local."""
    lines = [b"", b"[1, 2]", b'{"what": "item 1", "user": {"id": 3', b'{"what": {"a": 1}}', b"7"]
    for clicked, who, what, visit, price, place, at in rows:
        is_number = isinstance(at, int)
        offset = draw.choice(["Z", "", "+02:00", ".250Z"])
        entry: dict[str, Any] = {
            "was": {"clicked": draw.choice([clicked == "1", clicked, int(clicked)])},
            "user": draw.choice([{"id": who}, {"id": str(who)}]),
            "what": what,
            "price": draw.choice([price, str(price)]),
            "place": draw.choice([place, place, True, 5, 2.5]),
            "at": _iso(at) + offset if is_number else at,
            "born": draw.choice([None, "1969-12-31", "1970-01-01", "2001-02-29", "2000-02-29"]),
        }
        if visit:
            entry["visit"] = visit
        if draw.random() < 0.7:
            entry["tags"] = draw.choice(["a|b||c", ["a", None, "d"], [], "", "b"])
        lines.append(json.dumps(entry, ensure_ascii=False).encode())
    draw.shuffle(lines)
    return b"".join(line + b"\n" for line in lines)


def _iso(seconds: int) -> str:
    day, second = divmod(seconds - _START, 86_400)
    month, of_month = (2, 28 + day + 1) if day < 0 else (3, day + 1)
    return f"2026-{month:02}-{of_month:02}T{second // 3600:02}:{second // 60 % 60:02}:00"


def _write_stored(draw: random.Random, rows: Sequence[Sequence[Any]], path: Path, part: int) -> None:
    """A file with typed values. Times have a time zone in the first file, and are local in the second."""
    zone = None if part else UTC
    columns: dict[str, pa.Array] = {
        "tags": pa.array(
            [draw.choice([None, [], ["a"], ["b", None, "a"]]) for _ in rows], pa.list_(pa.string())
        ),
        "born": pa.array([draw.choice([None, *[date(1969 + n, 12, 31) for n in range(9)]]) for _ in rows]),
        "clicked": pa.array([draw.choice([row[0] == "1"] * 20 + [None]) for row in rows], pa.bool_()),
        "who": pa.array([row[1] if isinstance(row[1], int) else None for row in rows], pa.int64()),
        "what": pa.array([row[2] or None for row in rows]),
        "visit": pa.array([row[3] for row in rows]),
        "price": pa.array(
            [row[4] if isinstance(row[4], int | float) else None for row in rows], pa.float64()
        ),
        "place": pa.array([row[5] for row in rows]).dictionary_encode(),
        "at": pa.array(
            [
                datetime.fromtimestamp(row[6], UTC).replace(tzinfo=zone) if isinstance(row[6], int) else None
                for row in rows
            ],
            pa.timestamp("us", "UTC" if zone else None),
        ),
    }
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path, row_group_size=20)
        return
    columns["place"] = columns["place"].cast(pa.string())
    orc.write_table(pa.table(columns), path)


def _users(draw: random.Random) -> list[list[Any]]:
    """The users from 2 on: some users of the log have no row, and some rows no user."""
    ages, cities = ["", 20, 40, "007", "+7", "none"], ["", "Köln", "Oslo", "none", "a;b", 'say "hi"']
    users = [[n, draw.choice(ages), draw.choice(cities)] for n in range(2, 14)]
    draw.shuffle(users)
    return users


def _write_table(path: Path, header: str, rows: Sequence[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=";").writerows([header.split(), *rows])


def _write_impressions(folder: Path, draw: random.Random, number: int, misdated: float) -> None:
    """Two files with impressions in each format; some are repeated, and some are invalid."""
    folder.mkdir(exist_ok=True)
    names = ["user", "item", "position", "time"]
    rows = [
        [
            draw.choice([draw.randrange(14)] * 20 + [""]),
            f"item {int(draw.paretovariate(1)) % 15}",
            draw.choice([1, 2, 3, 4, 4, 0, "first"]),
            draw.choice([_time(draw, number, misdated)] * 20 + ["", str(2**62)]),
        ]
        for _ in range(160)
    ]
    for part, entries in enumerate((rows[:90], rows[70:])):
        lines: list[list[Any]] = [names, *entries]
        text = "".join(",".join(map(str, line)) + "\n" for line in lines)
        (folder / f"{DAYS[number]}-{part}.csv").write_text(text)
        objects = [dict(zip(names, entry, strict=True)) for entry in entries]
        text = "".join(json.dumps(entry) + "\n" for entry in objects)
        (folder / f"{DAYS[number]}-{part}.jsonl").write_text(text)
