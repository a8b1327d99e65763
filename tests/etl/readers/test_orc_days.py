"""build_features on a log of ORC files, without a JVM: its tables are those of the same log as Parquet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyspark.sql import SparkSession

from etl.passes import passes_of
from etl.raw.files import find_raw
from etl.workflow.feature_plan import plan_of
from spark.choose_workers import SparkWorkers
from storage.paths import LakePaths
from tests.etl import cases
from tests.etl.text.test_without_a_jvm import DAYS, GROUPS, build_here

COLUMNS: list[dict[str, Any]] = [
    {"name": "label", "type": "int"},
    {"name": "I1", "type": "int"},
    {"name": "I2", "source": "visits", "type": "int"},
    {"name": "user", "type": "string"},
    {"name": "item", "type": "string"},
    {"name": "C1", "type": "string"},
]
LOG = {**cases.LOG["log"], "separator": None, "columns": COLUMNS}


def rows_of(seed: int) -> pa.Table:
    """A day with nulls, and with two fractions in a column of integers."""
    rng = np.random.default_rng(seed)
    numbers = [None if rng.random() < 0.2 else float(rng.integers(-5, 100)) for _ in range(150)]
    numbers[7] = numbers[57] = 0.5
    return pa.table(
        {
            "label": (rng.random(150) < 0.3).astype(int),
            "I1": numbers,
            "visits": rng.integers(0, 9, 150),
            "user": [f"u{number}" for number in rng.integers(20, size=150)],
            "item": [f"i{number}" for number in rng.integers(30, size=150)],
            "C1": [None if rng.random() < 0.1 else str(rng.choice(["a", "ö", "b"])) for _ in range(150)],
        }
    )


def built(folder: Path, kind: str) -> dict[str, Any]:
    folder.mkdir()
    config = cases.write_config(folder, GROUPS, {"log": {**LOG, "format": kind}})
    for seed, day in enumerate(DAYS):
        path = folder / f"raw/dt={day}/clicks.{kind}"
        path.parent.mkdir(parents=True)
        if kind == "orc":
            orc.write_table(rows_of(seed), str(path))
        else:
            pq.write_table(rows_of(seed), path)
    return build_here(config)


@pytest.mark.processes
def test_the_tables_are_those_of_parquet(tmp_path: Path) -> None:
    expected = built(tmp_path / "parquet", "parquet")
    mine = built(tmp_path / "orc", "orc")
    for day in DAYS:
        assert len(expected[f"features {day}"]) == 148
        assert mine[f"features {day}"] == expected[f"features {day}"]
        assert [row["reason"] for row in mine[f"quarantine {day}"]] == ["integer:I1"] * 2


@pytest.mark.parametrize("kind", ["orc", "jsonl"])
@pytest.mark.parametrize("engine", ["sql", "arrow"])
def test_clusters_read_the_format(spark: SparkSession, tmp_path: Path, kind: str, engine: str) -> None:
    config = cases.write_config(
        tmp_path, GROUPS, {"log": {**LOG, "format": kind}, "workflow": {"engine": engine}}
    )
    path = tmp_path / f"raw/dt={DAYS[0]}/clicks.{kind}"
    path.parent.mkdir(parents=True)
    rows = rows_of(3)
    if kind == "orc":
        orc.write_table(rows, path)
    else:
        path.write_text("".join(f"{json.dumps(row, default=str)}\n" for row in rows.to_pylist()), "utf-8")
    raw = find_raw(config, config.log, DAYS[0])
    assert raw is not None
    counts = passes_of(SparkWorkers(spark), plan_of(config), LakePaths(config.lake)).scan_days([raw])[DAYS[0]]
    assert (counts.rows_in, counts.good) == (len(rows), len(rows) - counts.bad)
    assert counts.good > 0
