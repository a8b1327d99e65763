"""Generated rows of the log of tests.etl.ops.examples, its configuration, and workflows fitted on them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.types import Config
from etl.fit.fit_workflow import fit_workflow
from etl.ops.base import Type
from etl.raw.files import RawFiles
from etl.raw.splits import DAY
from etl.spark.raw_frames import read_attributes
from etl.workflow.feature_plan import plan_of
from etl.workflow.fitted_workflow import FittedWorkflow
from spark.choose_workers import SparkWorkers
from storage.paths import LakePaths
from tests.etl.ops.examples import COLUMNS, EXTERNAL, EXTERNAL_COLUMNS

Row = dict[str, Any]
DAYS = ("2026-03-01", "2026-03-02", "2026-03-04")
TEST_DAY = "2026-03-05"

_SPARK = {
    "int": "long",
    "float": "double",
    "string": "string",
    "ints": "array<long>",
    "strings": "array<string>",
}
_HUGE = [2**63 - 1, -(2**63), 2**53 + 1, 2**53, -1, 0, 1, 12]
_FLOATS = [0.0, -0.0, 1.5, -2.25, 0.1, 5e-324, 3e38, -3e38, 1e-7, 9.75]
# Beyond ASCII: precomposed and combined characters, and one beyond the first plane. In UTF-8 U+FFEE comes
# before it.
_FEW = ["né", "ne\u0301", "b", "\uffee", "\U0001f600", " b ", "0", "00"]
_PARTS = ["b", "né", "日本", "0", "x" * 40, "\U0001f600"]


def make_rows(day: str, rows: int, seed: int) -> list[Row]:
    """Rows of one day, with nulls, ties, extremes, and values of this day alone."""
    draw = random.Random(f"{day} {seed}")
    first = int(day[-2:]) * 10_000
    return [_row(draw, first + 3 * place, day) for place in range(rows)]


def _row(draw: random.Random, row_id: int, day: str) -> Row:
    parts = [draw.choice([*_PARTS, "", f"of {day}"]) for _ in range(draw.choice([0, 1, 1, 2, 3, 5]))]
    return {
        "row_id": row_id,
        "label": float(draw.random() < 0.3),
        DAY: day,
        "I1": draw.choice([None, *range(-7, 12)]),
        "I2": draw.choice([0, 1, 1, 1, 2]),
        "I3": draw.choice([None, *_HUGE]),
        "I4": 7,
        "I5": None,
        "X": draw.choice([None, *_FLOATS]),
        "K": draw.choice([None, 0, 1, -1, 10, 2**62, int(draw.paretovariate(1)) % 50]),
        "C1": draw.choice([None, *_FEW, "b", "b"]),
        "C2": draw.choice([None, f"of {day}", f"{int(draw.paretovariate(0.7)) % 60}"]),
        "C3": None,
        "T": "|".join(parts) or None,
        "item": draw.choice([None, "i0", "i1", "i2", "i3", "i3", "unknown"]),
    }


def make_config(folder: Path, groups: Sequence[Mapping[str, Any]], **sections: Any) -> Config:
    """A configuration of that log with these groups; the table from outside is written beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [",".join("" if cell is None else str(cell) for cell in row) for row in EXTERNAL]
    (folder / "items.csv").write_text("\n".join([",".join(EXTERNAL_COLUMNS), *lines, ""]), encoding="utf-8")
    columns = [{"name": "click", "type": "int"}]
    columns += [{"name": name, "type": kind} for name, kind in COLUMNS.items()]
    values: dict[str, Any] = {
        "name": "operators",
        "lake": str(folder / "lake"),
        "data": str(folder),
        "log": {
            "path": "{data}/dt={date}/*",
            "format": "tsv",
            "columns": columns,
            "label": {"column": "click"},
        },
        "features": list(groups),
        "split": {"by": "day"},
        "model": {"architecture": "dlrm"},
    }
    return Config.model_validate(values | sections)


def to_spark(spark: SparkSession, rows: Sequence[Row], types: Mapping[str, Type] = COLUMNS) -> DataFrame:
    """The rows as a frame of one partition, in their order."""
    columns = {"row_id": "long", "label": "float", DAY: "string"}
    columns |= {name: _SPARK[kind] for name, kind in types.items()}
    schema = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    return spark.createDataFrame([tuple(row[name] for name in columns) for row in rows], schema).coalesce(1)


def fit_rows(
    spark: SparkSession,
    config: Config,
    frames: Mapping[str, DataFrame],
    parent: FittedWorkflow | None = None,
) -> FittedWorkflow:
    """The workflow fitted on frames by day, through the public door of etl.fit.fit_workflow."""
    raw = [RawFiles(day, (), 1, f"digest of {day}") for day in frames]
    return fit_workflow(
        SparkWorkers(spark),
        plan_of(config),
        LakePaths(config.lake),
        raw,
        parent,
        counts_of=None,
        read_table=partial(read_attributes, spark),
        rows_of=lambda days: reduce(DataFrame.unionByName, [frames[day.dt] for day in days]),
    )


def by_day(spark: SparkSession, rows: Sequence[Row]) -> dict[str, DataFrame]:
    days = sorted({row[DAY] for row in rows})
    # Kept in the JVM: every pass would otherwise bring the rows from Python again.
    return {day: to_spark(spark, [row for row in rows if row[DAY] == day]).persist() for day in days}


def features_of(workflow: FittedWorkflow, rows: DataFrame) -> dict[str, list[Any]]:
    """Feature → its values, in the order of row_id."""
    collected = workflow.apply(rows).orderBy(F.col("row_id")).collect()
    return {feature.name: [row[feature.name] for row in collected] for feature in workflow.spec.features}
