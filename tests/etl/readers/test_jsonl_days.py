"""build_features on a log of JSON lines, without a JVM: its tables are those of the same log as csv."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.etl import cases
from tests.etl.text.test_without_a_jvm import DAYS, GROUPS, build_here

pytestmark = pytest.mark.processes

COLUMNS: list[dict[str, Any]] = [
    {"name": "label", "type": "int"},
    {"name": "I1", "type": "int"},
    {"name": "I2", "source": "measured.I2", "type": "int"},
    {"name": "user", "type": "string"},
    {"name": "item", "type": "string"},
    {"name": "C1", "type": "string"},
]
NESTED = {"measured.I2": ("measured", "I2")}


def rows_of(seed: int) -> list[dict[str, Any]]:
    """Rows with nulls, texts that JSON and csv must quote, and values of another type than their column."""
    rng = np.random.default_rng(seed)
    texts = np.array(["a", 'q"uote', "com,ma", "ö", "back\\slash"], object)
    rows = []
    for number in range(150):
        row = {
            "label": int(rng.random() < 0.3),
            "I1": None if rng.random() < 0.2 else int(rng.integers(-5, 100)),
            "measured.I2": None if rng.random() < 0.2 else int(rng.integers(0, 9)),
            "user": f"u{rng.integers(20)}",
            "item": f"i{rng.integers(30)}",
            "C1": None if rng.random() < 0.1 else str(rng.choice(texts)),
        }
        if number % 50 == 7:
            row["I1"] = "many"
        rows.append(row)
    return rows


def as_csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json_lines(rows: list[dict[str, Any]]) -> str:
    """Leaves out half of the nulls, and puts the nested column into its object."""
    lines = []
    for number, row in enumerate(rows):
        values = {name: value for name, value in row.items() if value is not None or number % 2}
        inner = {"measured": {"I2": values.pop("measured.I2")}} if "measured.I2" in values else {}
        lines.append(json.dumps({**values, **inner}, ensure_ascii=bool(number % 3)))
    return "\n".join(lines) + "\n"


def built(folder: Path, kind: str, broken: str = "") -> dict[str, Any]:
    folder.mkdir()
    log = {**cases.LOG["log"], "format": kind, "columns": COLUMNS}
    config = cases.write_config(folder, GROUPS, {"log": log})
    for seed, day in enumerate(DAYS):
        path = folder / f"raw/dt={day}/clicks.{kind}"
        path.parent.mkdir(parents=True)
        text = as_csv(rows_of(seed)) if kind == "csv" else as_json_lines(rows_of(seed))
        path.write_text(text + broken, encoding="utf-8")
    return build_here(config)


def test_the_tables_are_those_of_csv(tmp_path: Path) -> None:
    expected = built(tmp_path / "csv", "csv")
    mine = built(tmp_path / "jsonl", "jsonl", broken='{"label": 1\n')
    for day in DAYS:
        # A csv file has a header line, so its row ids are larger by one.
        features = [{**row, "row_id": row["row_id"] - 1} for row in expected[f"features {day}"]]
        assert len(features) == 147
        assert mine[f"features {day}"] == features
        reasons = [row["reason"] for row in mine[f"quarantine {day}"]]
        assert reasons == ["integer:I1"] * 3 + ["json"]
        assert json.loads(mine[f"quarantine {day}"][0]["line"])["I1"] == "many"
