"""What a fit writes: JSON of every step, measurements of the training rows, and readable vocabularies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from conf.errors import ConfigError
from etl.fit.row_statistics import count_values
from etl.ops import OPERATORS, Fitted
from etl.ops.tables import VOCABULARY, LocalTables
from etl.raw.splits import DAY
from etl.statistics.count_statistics import VOCABULARY_SCHEMA
from etl.statistics.id_rule import IdRule, assign_ids
from etl.workflow.chains import FittedChain
from etl.workflow.fitted_workflow import load_workflow
from storage.paths import LakePaths
from tests.etl.ops.case import Case
from tests.etl.ops.rows import DAYS


def _steps(case: Case) -> list[Fitted]:
    return [step for chain in case.workflow.chains for step in chain.steps]


@pytest.mark.every_operator
def test_every_step_is_the_same_after_json(case: Case, op: str | None) -> None:
    steps = _steps(case)
    names = {step.name for step in steps}
    assert op in names if op else names == set(OPERATORS)
    for step in steps:
        stored = json.loads(json.dumps(step.state()))
        again = type(step).from_state(list(step.inputs), list(step.outputs), stored)
        assert again == step
        assert again.state() == step.state()
        assert (again.cardinality, again.kept) == (step.cardinality, step.kept)


@pytest.mark.every_operator
def test_a_loaded_workflow_is_the_saved_one(case: Case) -> None:
    chains = json.loads(json.dumps([chain.to_json() for chain in case.workflow.chains]))
    assert tuple(FittedChain.from_json(stored) for stored in chains) == case.workflow.chains
    loaded = load_workflow(LakePaths(case.config.lake), case.workflow.version)
    assert loaded.chains == case.workflow.chains
    assert loaded.spec == case.workflow.spec
    assert loaded.vocabularies == case.workflow.vocabularies


@pytest.mark.every_operator
def test_ids_lie_below_their_cardinality(case: Case) -> None:
    sizes = {name: size for chain in case.workflow.chains for name, size in chain.cardinalities.items()}
    features = [*case.workflow.spec.categorical, *case.workflow.spec.multi_hot]
    for feature in features:
        assert feature.cardinality == sizes[feature.name]
        values = [value for value in case.expected[feature.name] if value is not None]
        ids = [one for value in values for one in (value if isinstance(value, list) else [value])]
        assert max(ids, default=0) < sizes[feature.name], feature.name


def test_data_stats_measure_the_training_rows(case: Case) -> None:
    train = [row for row in case.rows if row[DAY] in DAYS]
    measured = {
        step.inputs[0]: step.state()["measured"] for step in _steps(case) if step.name == "data_stats"
    }
    assert sorted(measured) == ["C1", "C2_stats", "C3", "I1", "I3", "I5", "T", "X"]
    for name, statistics in measured.items():
        if name == "C2_stats":
            continue
        values = [row[name] for row in train]
        if name == "T":
            values = [
                None if value is None else [part for part in value.split("|") if part] for value in values
            ]
        present = [value for value in values if value is not None]
        sizes: list[Any] = [value if isinstance(value, int | float) else len(value) for value in present]
        expected = {"rows": len(values), "nulls": len(values) - len(present)}
        expected |= {} if name == "T" else {"distinct": len(set(present))}
        assert statistics == {**expected, "min": min(sizes, default=None), "max": max(sizes, default=None)}, (
            name
        )
    ids = case.expected["C2_stats"]
    known = [value_id for value_id, row in zip(ids, case.by_row_id, strict=True) if row[DAY] in DAYS]
    assert measured["C2_stats"] == {
        "rows": len(known),
        "nulls": 0,
        "distinct": len(set(known)),
        "min": min(known),
        "max": max(known),
    }


def test_value_count_measures_the_lists_of_the_training_rows(case: Case) -> None:
    (step,) = [step for step in _steps(case) if step.name == "value_count"]
    lists = [
        [part for part in row["T"].split("|") if part]
        for row in case.rows
        if row[DAY] in DAYS and row["T"] is not None
    ]
    assert step.state()["measured"] == {"min": min(map(len, lists)), "max": max(map(len, lists))}


@pytest.mark.parametrize(
    "feature, raw",
    [
        ("C2", "C2"),
        ("K", "K"),
        ("C2_oov", "C2"),
        ("C1_share", "C1"),
        ("brand", None),
        ("origin", None),
        ("T_place_0", None),
    ],
)
def test_ids_are_decoded_to_the_values_they_stand_for(
    case: Case, spark: SparkSession, feature: str, raw: str | None
) -> None:
    workflow = load_workflow(LakePaths(case.config.lake), case.workflow.version)
    ids = case.expected[feature]
    frame = spark.createDataFrame(
        [(at, value_id) for at, value_id in enumerate(ids)], f"at int, {feature} int"
    )
    decoded = {row["at"]: row["value"] for row in workflow.decode(frame, feature, "value").collect()}
    assert len(decoded) == len(ids)
    first = 3 if feature != "C2_oov" else 6
    assert [decoded[at] is None for at in range(len(ids))] == [value_id < first for value_id in ids]
    vocabulary = workflow.vocabulary_of(feature)
    entries = workflow.tables.frames["vocabulary"].where(F.col("column") == vocabulary).collect()
    named = {row["id"]: row["value"] for row in entries}
    assert {decoded[at] for at, value_id in enumerate(ids) if value_id >= first} <= set(named.values())
    local = workflow.decode_ids({feature: [*ids, 10**6]})[feature]
    assert local == {value_id: decoded[at] for at, value_id in enumerate(ids) if value_id >= first}
    for at, (value_id, row) in enumerate(zip(ids, case.by_row_id, strict=True)):
        if value_id >= first:
            assert decoded[at] == (named[value_id] if raw is None else str(row[raw]))


@pytest.mark.parametrize("feature", ["C1_hash", "C1_x_K_x_C3", "I1_norm", "I1_bucket", "no feature"])
def test_what_has_no_vocabulary_is_not_decoded(case: Case, feature: str) -> None:
    with pytest.raises(ConfigError, match=f"{feature} has no vocabulary"):
        case.workflow.decode(Mock(), feature, "value")  # refused before it is read
    with pytest.raises(ConfigError, match=f"{feature} has no vocabulary"):
        case.workflow.decode_ids({feature: [7]})


def test_ids_of_a_vocabulary_are_decoded_whoever_wrote_its_files(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([("a",), ("b",), ("b",)], "C1 string").repartition(4)
    counts = count_values(rows, [("C1", F.col("C1"), False)], F.lit(7))
    entries = assign_ids(counts.withColumn("id", F.lit(None).cast("int")), {"C1": IdRule(1, 3, None)})
    written = entries.select("column", "value", "id", "count", "last_seen").repartition(4)  # some are empty
    written.write.parquet(str(tmp_path / "spark"))
    files = sorted(map(str, (tmp_path / "spark").glob("*.parquet")))
    assert not pq.read_schema(files[0]).field("column").nullable  # Spark expects no nulls, Arrow may
    for name, values in {"none": [], "more": [("C1", "c", 5, 1, 7)]}.items():
        columns = zip(*values, strict=True) if values else [[]] * len(VOCABULARY_SCHEMA)
        arrays = [pa.array(v, f.type) for v, f in zip(columns, VOCABULARY_SCHEMA, strict=True)]
        files.append(str(tmp_path / f"{name}.parquet"))
        pq.write_table(pa.Table.from_arrays(arrays, schema=VOCABULARY_SCHEMA), files[-1])
    for order in (files, files[::-1]):
        decoded = LocalTables({VOCABULARY: tuple(order)}).entries(["C1"], [3, 4, 5]).to_pylist()
        assert {entry["id"]: entry["value"] for entry in decoded} == {3: "b", 4: "a", 5: "c"}
