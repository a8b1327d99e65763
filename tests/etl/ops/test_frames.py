"""Operators over rows: what they keep, add and group, whatever the order and the partitions of the rows."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from conf.errors import ConfigError
from conf.types import Config
from etl.ops import RowChanger, RowFilter, frame_operator_from_config
from etl.raw.files import require_raw
from etl.raw.splits import DAY, SPLIT
from etl.workflow.feature_plan import plan_of
from storage.feature_spec import FLOAT32_MAX
from tests.etl.log_rows import prepared_rows, read_log
from tests.etl.ops import formulas
from tests.etl.ops.examples import COLUMNS, FRAME_EXAMPLES
from tests.etl.ops.rows import DAYS, Row, make_config, make_rows, to_spark

FILTERS = [*FRAME_EXAMPLES["filter"], *FRAME_EXAMPLES["dropna"]]
ROWS = [{**row, "event_time": row["row_id"] // 7} for row in make_rows(DAYS[0], 120, seed=3)]


def _frame(spark: SparkSession, rows: list[Row]) -> Any:
    shuffled = random.Random(5).sample(rows, len(rows))
    return to_spark(spark, shuffled, {**COLUMNS, "event_time": "int"}).repartition(3)


def _keeps(entry: Mapping[str, Any], row: Row) -> bool:
    if "filter" in entry:
        return formulas.evaluate(entry["filter"]["keep"], row) is True
    return all(row[name] is not None for name in entry["dropna"]["columns"])


def test_filters_keep_the_rows_for_which_they_hold() -> None:
    types = {"int": pa.int64(), "float": pa.float64(), "string": pa.string()}
    for entry in FILTERS:
        operator = frame_operator_from_config(entry)
        assert isinstance(operator, RowFilter)
        names = operator.inputs(COLUMNS)
        rows = {name: pa.array([row[name] for row in ROWS], types[COLUMNS[name]]) for name in names}
        kept = [bool(value) for value in operator.keeps_rows(rows, len(ROWS), COLUMNS).to_pylist()]
        assert kept == [_keeps(entry, row) for row in ROWS]
        assert 0 < sum(kept) < len(ROWS)


def _differences(parameters: Mapping[str, Any], rows: list[Row]) -> dict[str, dict[int, float | None]]:
    lag: int = parameters.get("lag", 1)
    differences: dict[str, dict[int, float | None]] = {}
    groups: dict[tuple, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row["event_time"], row["row_id"])):
        groups.setdefault(tuple(row[name] for name in parameters["by"]), []).append(row)
    for column in parameters["columns"]:
        named = differences.setdefault(f"{column}_difference_lag_{lag}", {})
        for mine in groups.values():
            for place, row in enumerate(mine):
                earlier = mine[place - lag][column] if 0 <= place - lag < len(mine) else None
                both = row[column] is not None and earlier is not None
                difference = float(row[column]) - float(earlier or 0) if both else None
                # Within float32's range, as every feature is.
                named[row["row_id"]] = difference and max(-FLOAT32_MAX, min(difference, FLOAT32_MAX))
    return differences


@pytest.mark.parametrize("entry", FRAME_EXAMPLES["difference_lag"])
def test_differences_are_to_the_row_before_of_the_same_key(
    spark: SparkSession, entry: dict[str, Any]
) -> None:
    operator = frame_operator_from_config(entry)
    assert isinstance(operator, RowChanger)
    collected = operator.apply(_frame(spark, ROWS)).collect()
    assert len(collected) == len(ROWS)
    for name, expected in _differences(entry["difference_lag"], ROWS).items():
        assert operator.bind(COLUMNS)[name] == "float"
        assert {row["row_id"]: row[name] for row in collected} == expected
        assert len({*expected.values()}) > 3


def _aggregate(name: str, rows: list[Row], column: str) -> Any:
    values = [row[column] for row in rows]
    present = [value for value in values if value is not None]
    measures = {
        "sum": lambda: math.fsum(present) if present else None,
        "mean": lambda: math.fsum(present) / len(present) if present else None,
        "min": lambda: min(present, default=None),
        "max": lambda: max(present, default=None),
        "count": lambda: len(present),
        "first": lambda: values[0],
        "last": lambda: values[-1],
        "list": lambda: present,
    }
    return measures[name]()


def _grouped(parameters: Mapping[str, Any], rows: list[Row], by: list[str]) -> dict[int, dict[str, Any]]:
    groups: dict[tuple, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row["event_time"], row["row_id"])):
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    grouped: dict[int, dict[str, Any]] = {}
    for key, mine in groups.items():
        first = min(row["row_id"] for row in mine)
        grouped[first] = dict(zip(by, key, strict=True)) | {
            "label": max(row["label"] for row in mine),
            "event_time": max(row["event_time"] for row in mine),
            DAY: mine[0][DAY],
        }
        for column, wanted in parameters["aggregates"].items():
            grouped[first] |= {
                f"{column}_{aggregate}": _aggregate(aggregate, mine, column) for aggregate in wanted
            }
    return grouped


@pytest.mark.parametrize("entry", FRAME_EXAMPLES["groupby"])
def test_groups_are_one_row_for_the_rows_of_a_key(spark: SparkSession, entry: dict[str, Any]) -> None:
    operator = frame_operator_from_config(entry)
    assert isinstance(operator, RowChanger)
    collected = {row["row_id"]: row.asDict() for row in operator.apply(_frame(spark, ROWS)).collect()}
    parameters = entry["groupby"]
    expected = _grouped(parameters, ROWS, parameters["by"])
    assert collected.keys() == expected.keys()
    assert set(operator.bind(COLUMNS)) <= set(next(iter(collected.values())))
    for row_id, row in expected.items():
        for name, value in row.items():
            mine = collected[row_id][name]
            if name.endswith(("_sum", "_mean")) and value is not None:
                assert mine == pytest.approx(value, rel=1e-9, abs=1e-6), (name, row)
            else:
                assert mine == value, (name, row)


def test_groups_do_not_cross_splits(spark: SparkSession) -> None:
    parameters = {"by": ["C1"], "aggregates": {"I1": ["count"]}}
    operator = frame_operator_from_config({"groupby": parameters})
    assert isinstance(operator, RowChanger)
    split = F.when(F.col("row_id") % 2 == 0, "train").otherwise("test")
    collected = operator.apply(_frame(spark, ROWS).withColumn(SPLIT, split)).collect()
    rows = [{**row, SPLIT: "test" if row["row_id"] % 2 else "train"} for row in ROWS]
    expected = _grouped(parameters, rows, ["C1", SPLIT])
    assert {row["row_id"]: (row[SPLIT], row["I1_count"]) for row in collected} == {
        row_id: (row[SPLIT], row["I1_count"]) for row_id, row in expected.items()
    }


PREPARE: list[dict[str, Any]] = [
    {"difference_lag": {"by": ["C1"], "columns": ["I1"]}},
    {"dropna": {"columns": ["C1"]}},
    {"filter": {"keep": "I1 != 3"}},
    {"groupby": {"by": ["C1"], "aggregates": {"I1": ["sum", "list"], "I1_difference_lag_1": ["max"]}}},
]
FEATURES: list[dict[str, Any]] = [
    {"columns": ["I1_sum", "I1_difference_lag_1_max"], "kind": "dense", "ops": ["fill"]},
    {"columns": ["I1_list"], "kind": "multi_hot", "ops": [{"hash_bucket": {"buckets": 5}}]},
]


def _log(folder: Path) -> Config:
    config = make_config(folder, FEATURES, prepare=PREPARE)
    lines = ["\t".join([str(int(row["label"])), *(_field(row[name]) for name in COLUMNS)]) for row in ROWS]
    day = folder / f"dt={DAYS[0]}"
    day.mkdir()
    (day / "log.tsv").write_text("\n".join([*lines, "broken", ""]), encoding="utf-8")
    return config


def _field(value: Any) -> str:
    return "" if value is None else str(value)


def test_prepared_rows_are_filtered_with_a_reason_then_changed_in_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    config = _log(tmp_path)
    raw = require_raw(config, config.log, DAYS[0])
    reasons = {
        row["_reason"]: row["count"]
        for row in read_log(spark, config, raw).groupBy("_reason").count().collect()
    }
    rows = [{**row, "row_id": place, "event_time": 0} for place, row in enumerate(ROWS)]
    dropped = [row for row in rows if row["C1"] is None]
    filtered = [row for row in rows if row["C1"] is not None and row["I1"] in (None, 3)]
    kept = [row for row in rows if row not in dropped and row not in filtered]
    assert reasons == {
        None: len(kept),
        "dropna:C1": len(dropped),
        "filter:I1 != 3": len(filtered),
        "field_count": 1,
    }
    differences = _differences({"by": ["C1"], "columns": ["I1"]}, kept)["I1_difference_lag_1"]
    kept = [{**row, "I1_difference_lag_1": differences[row["row_id"]]} for row in kept]
    expected = _grouped(PREPARE[3]["groupby"], kept, ["C1"])
    collected = {row["row_id"]: row.asDict() for row in prepared_rows(spark, config, raw).collect()}
    names = ["C1", "label", "I1_sum", "I1_list", "I1_difference_lag_1_max"]
    assert {row_id: {name: row[name] for name in names} for row_id, row in collected.items()} == {
        row_id: {name: row[name] for name in names} for row_id, row in expected.items()
    }


@pytest.mark.parametrize(
    "prepare, message",
    [
        ([{"filter": {"keep": "nothing > 0"}}], "no column nothing"),
        ([{"filter": {"keep": "I1 + 1"}}], "keep='I1 + 1' is a number, not true or false"),
        ([{"filter": {"keep": 3}}], "keep=3: Input should be a valid string"),
        ([{"filter": {}}], "filter needs the parameter keep"),
        ([{"dropna": {"columns": []}}], "dropna columns=[]: it must not be empty"),
        ([{"dropna": {"columns": ["nothing"]}}], "['nothing']"),
        ([{"dropna": {"columns": "I1"}}], "columns='I1': it must be a list"),
        ([{"difference_lag": {"by": ["X"], "columns": ["I1"]}}], "['X']"),
        ([{"difference_lag": {"by": ["K"], "columns": ["C1"]}}], "['C1']"),
        ([{"difference_lag": {"by": ["K"], "columns": ["I1"], "lag": 0}}], "lag=0"),
        ([{"difference_lag": {"by": [], "columns": ["I1"]}}], "difference_lag by=[]: it must not be empty"),
        ([{"groupby": {"by": [], "aggregates": {}}}], "groupby by=[]: it must not be empty"),
        ([{"groupby": {"by": ["X"], "aggregates": {}}}], "['X']"),
        ([{"groupby": {"by": ["K"], "aggregates": {"I1": ["median"]}}}], "median"),
        (
            [{"groupby": {"by": ["K"], "aggregates": {"C1": ["sum"]}}}],
            "sum takes a column of type int or float, but C1",
        ),
        (
            [{"groupby": {"by": ["K"], "aggregates": {"X": ["list"]}}}],
            "list takes a column of type int or string, but X",
        ),
        ([{"groupby": {"by": ["K"], "aggregates": {"nothing": ["count"]}}}], "nothing is not a column"),
        (["sort"], "unknown operator 'sort'"),
        ([{"dropna": {"columns": ["I1"]}, "filter": {"keep": "I1 > 0"}}], "has 2 operators"),
    ],
)
def test_what_cannot_prepare_rows_is_refused(tmp_path: Path, prepare: list[Any], message: str) -> None:
    group = {"columns": ["I1"], "kind": "dense", "ops": ["fill"]}
    with pytest.raises(ConfigError) as refused:
        plan_of(make_config(tmp_path, [group], prepare=prepare))
    assert message in str(refused.value)


def test_groups_that_lose_a_key_are_refused(tmp_path: Path) -> None:
    group = {"columns": ["I1_sum"], "kind": "dense", "ops": ["fill"]}
    prepare = [{"groupby": {"by": ["K"], "aggregates": {"I1": ["sum"]}}}]
    plan_of(make_config(tmp_path, [group], prepare=prepare))
    with pytest.raises(ConfigError, match=r"drops the key columns \['C1'\]"):
        plan_of(make_config(tmp_path, [group], prepare=prepare, keys={"user": "K", "item": "C1"}))
