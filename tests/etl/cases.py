"""A small click log with all difficulties of logs, and functions that build and read its tables."""

from __future__ import annotations

import gzip
import random
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pyspark.sql import SparkSession

from conf.load import load_config
from conf.types import Config
from etl.build import BuildResult, build
from etl.workflow.feature_plan import plan_of
from spark.choose_workers import SparkWorkers
from spark.workers import Workers
from storage.feature_spec import FeatureSpec
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths, Partition
from tests.etl.tasks_here import TasksHere

LOG: dict[str, Any] = {
    "name": "hard",
    "log": {
        "path": "{data}/dt={date}/*",
        "format": "tsv",
        "columns": [
            {"name": "label", "type": "int"},
            {"name": "I{1..5}", "type": "int"},
            {"name": "X", "type": "float"},
            {"name": "user", "type": "string"},
            {"name": "item", "type": "string"},
            {"name": "C{1..3}", "type": "string"},
            {"name": "N", "type": "int"},
        ],
        "label": {"column": "label"},
    },
    "keys": {"user": "user", "item": "item"},
    "features": [
        {
            "columns": ["I{1..2}"],
            "kind": "dense",
            "ops": [{"fill": {"value": 0}}, {"clip": {"min": 0}}, "log1p", "normalize"],
        },
        # I3 has integers of any size, I4 is constant, I5 is always empty.
        {
            "columns": ["I3"],
            "kind": "dense",
            "ops": [{"clip": {"min": -10, "max": 10}}, {"fill": {"value": 5}}],
        },
        {"columns": ["I{4..5}"], "kind": "dense", "ops": [{"fill": {"value": 7}}, "normalize"]},
        {"columns": ["X"], "kind": "dense", "ops": ["normalize", {"fill": {"value": 0.5}}]},
        {"columns": ["user", "item"], "kind": "categorical", "ops": [{"categorify": {"min_count": 1}}]},
        # C3 is empty in every row.
        {"columns": ["C{1..3}", "N"], "kind": "categorical", "ops": [{"categorify": {"min_count": 3}}]},
    ],
    "scopes": {"user": ["I1", "user", "C1"], "item": ["I2", "item", "C2"]},
    "split": {"by": "day", "train_days": 2, "validation_days": 1, "test_days": 1, "min_train_days": 1},
    "quality": {"max_bad_share": 0.5},
    "output": {"row_group_rows": 64},
    "model": {"architecture": "dlrm"},
}

# U+FFEE sorts before U+1F600 by UTF-8 bytes, and after it by UTF-16.
TEXTS = [
    "a",
    "Z",
    "é",
    "日本",
    "\uffee",
    "\U0001f600",
    " a ",
    "NULL",
    "null",
    "nan",
    "\\N",
    '"q"',
    "a,b",
    "0",
]
INTEGERS = [
    "0",
    "1",
    "7",
    "007",
    "+7",
    "-0",
    "-3",
    "42",
    "99999",
    str(2**63 - 1),
    str(-(2**63)),
    str(2**53 + 1),
]
SMALL = ["", "0", "1", "2", "3", "-2", "50", "1000000"]
FLOATS = ["", "0", "-0.0", "123456.789", "1e3", "1e-7", "7."]

MALFORMED = {
    "field_count": ["", "1\t2", "\t" * 40, "no tabs at all"],
    "integer:I1": ["0\t1.5" + "\t" * 11, "1\tx" + "\t" * 11, "0\t 1" + "\t" * 11],
    "integer:I3": ["0\t\t\t12345678901234567890" + "\t" * 9, f"0\t\t\t{2**63}" + "\t" * 9],
    # The last one is a double that is out of float32's range.
    "number:X": ["0" + "\t" * 6 + text + "\t" * 6 for text in ("NaN", "1d", "1e308")],
    "label:label": ["2" + "\t" * 7 + "u\ti" + "\t" * 4, "\t" * 7 + "u\ti" + "\t" * 4],
    "missing_key:user": ["1" + "\t" * 8 + "i" + "\t" * 4],
    "missing_key:item": ["1" + "\t" * 7 + "u" + "\t" * 5],
    "key:user": ["1" + "\t" * 7 + "u\x1b[0m\ti" + "\t" * 4],
    "key:item": ["1" + "\t" * 7 + f"u\t{item}" + "\t" * 4 for item in ("i\0", "é" * 129)],
}


def write_config(folder: Path, *changes: Mapping[str, Any]) -> Config:
    """The configuration LOG with changes, loaded from a YAML file. Lake and raw data are in the folder."""
    values: dict[str, Any] = {**LOG, "lake": str(folder / "lake"), "data": str(folder / "raw")}
    for change in changes:
        values |= change
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(values, allow_unicode=True), encoding="utf-8")
    return load_config(str(path))


def make_lines(day: str, rows: int, seed: int) -> list[str]:
    """Good lines with nulls, ties, extremes and values of this day only, and malformed lines between them."""
    draw = random.Random(seed)
    lines = [line for malformed in MALFORMED.values() for line in malformed]
    texts = ["", *TEXTS, *(f"only {day} {n}" for n in range(3))]
    for _ in range(rows):
        fields = [
            draw.choice("01"),
            draw.choice(SMALL),
            draw.choice(SMALL),
            draw.choice(["", *INTEGERS]),
            "7",
            "",
            draw.choice(FLOATS),
            f"user {draw.choice([*range(9), f'of {day}'])}",
            f"item {int(draw.paretovariate(1)) % 20}",
            draw.choice(texts),
            draw.choice(texts[:6]),
            "",
            draw.choice(["", *INTEGERS]),
        ]
        lines.append("\t".join(fields))
    draw.shuffle(lines)
    return lines


def write_day(folder: Path, lines: Sequence[str]) -> list[Path]:
    """Writes the lines to four files: with CR LF, gzip, empty, and without an end of the last line."""
    folder.mkdir(parents=True)
    third = len(lines) // 3
    (folder / "a.tsv").write_bytes("".join(line + "\r\n" for line in lines[:third]).encode())
    with gzip.open(folder / "b.tsv.gz", "wb") as stream:
        stream.write("".join(line + "\n" for line in lines[third : 2 * third]).encode())
    (folder / "c.tsv").touch()
    # An empty last line without an end would not count as a line. `sorted` avoids it.
    (folder / "d.tsv").write_bytes("\n".join(sorted(lines[2 * third :])).encode())
    return sorted(folder.iterdir())


def run_build(
    workers: SparkSession | Workers, config: Config, run_date: str, parent: str | None = None
) -> BuildResult:
    """Builds the features of a run date without timing its phases.

    With a session, rows go the way that they go on one machine: Spark works only for the engine `sql`. Otherwise
    this process runs the tasks.
    """
    if isinstance(workers, Workers):
        chosen = workers
    elif config.workflow.engine == "sql":
        chosen = SparkWorkers(workers)
    else:
        chosen = TasksHere(2, lambda: workers)
    return build(chosen, plan_of(config), LakePaths(config.lake), run_date, parent, lambda _: nullcontext())


def read_rows(partition: Partition, split: str | None = None) -> pd.DataFrame:
    """The rows of a published partition, read with pyarrow by its manifest."""
    files = data_files(partition, read_manifest(partition), split)
    tables = [pq.read_table(file, partitioning=None) for file in files]
    return pa.concat_tables(tables).to_pandas() if tables else pd.DataFrame()


def assert_features_equal(actual: pd.DataFrame, expected: pd.DataFrame, spec: FeatureSpec) -> None:
    """Compares the order of columns; keys, label and ids exactly; dense values in float32's precision."""
    assert list(actual.columns) == spec.table_columns
    assert sorted(expected.columns) == sorted(spec.table_columns)
    ordered = actual.sort_values("row_id", ignore_index=True)
    exact = [*spec.key_columns, spec.label, *(feature.name for feature in spec.categorical)]
    for name in exact:
        assert ordered[name].tolist() == expected[name].tolist(), name
    for name in (feature.name for feature in spec.dense):
        np.testing.assert_allclose(
            ordered[name].astype(float), expected[name].astype(float), rtol=1e-6, atol=1e-6, err_msg=name
        )
