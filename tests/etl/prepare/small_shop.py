"""A log with users, items, histories and negatives, and tables of users and items that lack some of them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from conf.types import Config
from tests.etl import cases

RUN_DATE = "2026-01-05"
DAYS = [f"2026-01-0{number}" for number in range(1, 6)]
_START = 1_767_225_600  # 2026-01-01 in s since 1970

SETTINGS: dict[str, Any] = {
    "name": "shop",
    "log": {
        "path": "{data}/dt={date}/*",
        "format": "csv",
        "separator": ",",
        "columns": [
            {"name": "clicked", "type": "int"},
            {"name": "user", "type": "string"},
            {"name": "item", "type": "int"},
            {"name": "time", "type": "int"},
        ],
        "label": {"column": "clicked"},
        "event_time": {"column": "time", "unit": "s"},
    },
    "users": {
        "path": "{data}/users.csv",
        "format": "csv",
        "separator": ";",
        "null_values": ["", "unknown"],
        "columns": [
            {"name": "user", "type": "string"},
            {"name": "age", "type": "float"},
            {"name": "town", "type": "string"},
        ],
    },
    "items": {
        "path": "{data}/items.csv",
        "format": "csv",
        "separator": ",",
        "columns": [
            {"name": "item", "type": "int"},
            {"name": "price", "type": "float"},
            {"name": "tags", "type": "string"},
        ],
    },
    "keys": {"user": "user", "item": "item"},
    "history": {"length": 4, "days": 2},
    "negatives": {"per_positive": 1},
    "features": [
        {"columns": ["age", "price"], "kind": "dense", "ops": ["fill_median", "normalize"]},
        {"columns": ["town"], "kind": "categorical", "ops": [{"categorify": {"min_count": 1}}]},
        {
            "columns": ["item"],
            "kind": "categorical",
            "ops": [{"categorify": {"min_count": 1, "share": "item"}}],
        },
        {
            "columns": ["history"],
            "kind": "multi_hot",
            "ops": [{"categorify": {"min_count": 1, "share": "item", "counts": False}}],
        },
        {
            "columns": ["tags"],
            "kind": "multi_hot",
            "ops": [{"split_list": {"separator": " "}}, {"categorify": {"min_count": 1}}],
        },
        {"columns": ["item"], "kind": "dense", "ops": [{"target_encoding": {"folds": 2}}]},
    ],
    "scopes": {"user": ["age", "town", "history"], "item": ["item", "price", "tags", "item_te"]},
    "split": {"by": "day", "train_days": 3, "validation_days": 1, "test_days": 1, "min_train_days": 1},
    "quality": {"max_misdated_share": 1.0, "misdated_share_warn": None},
    "output": {"row_group_rows": 16},
    "model": {
        "architecture": "sasrec",
        "embedding_dim": 8,
        "blocks": 1,
        "multi_hot": {"lengths": {"history": 4, "tags": 2}},
    },
    "train": {"global_batch_size": 64, "epochs": 1, "loss": "softmax", "negatives": {"per_positive": 2}},
    "score": {"k": 3},
    "measure": {"against": "test_split"},
}
IN_ONE_FILE: dict[str, Any] = {
    "log": {**SETTINGS["log"], "path": "{data}/dt=*/*"},
    "history": {"length": 4},
    "split": {"by": "leave_last_out"},
}


def write_shop(folder: Path, *changes: Mapping[str, Any]) -> Config:
    """Writes log and tables. Some users and items of the log are not in the tables, and the other way."""
    config = cases.write_config(folder, SETTINGS, *changes)
    draw = random.Random(7)
    for number, day in enumerate(DAYS):
        (folder / f"raw/dt={day}").mkdir(parents=True)
        rows = [
            (
                int(draw.random() < 0.4),
                f"u{draw.randrange(14)}",
                min(int(draw.paretovariate(0.7)), 15),
                _START + number * 86_400 + draw.randrange(86_400),
            )
            for _ in range(110)
        ]
        text = ["clicked,user,item,time", *(",".join(map(str, row)) for row in rows), "1,broken"]
        (folder / f"raw/dt={day}/part.csv").write_text("\n".join(text) + "\n")
    users = [
        "user;age;town",
        *(f"u{n};{draw.choice(['', 30.5, 41])};{draw.choice('xy')}" for n in range(2, 17)),
    ]
    (folder / "raw/users.csv").write_text("\n".join([*users[:-1], "u99;unknown;unknown"]) + "\n")
    items = [
        "item,price,tags",
        *(f"{n},{n / 4},{draw.choice(['a b', 'b', '', 'c a'])}" for n in range(3, 18)),
    ]
    (folder / "raw/items.csv").write_text("\n".join(items) + "\n")
    return config


def no_session(*_: object) -> SparkSession:
    """Stands for a session that must not be opened."""
    raise AssertionError("no Spark session is needed")
