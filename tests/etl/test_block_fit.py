"""Workflows that are fitted on blocks of rows equal those that Spark fits on frames of the same rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from conf.errors import ConfigError, DataError
from conf.types import Config, JoinedTable
from etl.fit import key_parts
from etl.fit.fit_inputs import TrainingBlocks
from etl.fit.fit_workflow import fit_workflow
from etl.ops.base import Type
from etl.ops.tables import RARE, VOCABULARY, workflow_table
from etl.raw.files import RawFiles
from etl.split.time_split import DAY
from etl.workflow.fitted_chains import RowPlace, compute_features
from etl.workflow.fitted_workflow import FittedWorkflow
from spark.local_workers import LocalWorkers
from spark.workers import Workers
from storage.manifest import data_files, read_manifest
from storage.paths import Lake
from tests.etl.block_rows import ARROW_TYPES, InThisProcess, blocks_of_rows, encoded
from tests.etl.ops.case import GROUPS
from tests.etl.ops.examples import COLUMNS, EXTERNAL, EXTERNAL_COLUMNS
from tests.etl.ops.rows import (
    DAYS,
    TEST_DAY,
    Row,
    by_day,
    features_of,
    fit_rows,
    make_config,
    make_rows,
    to_spark,
)

# Chains that read several inputs, lists or tables before they need statistics.
FURTHER: list[dict[str, Any]] = [
    {
        "columns": ["K", "C2"],
        "kind": "dense",
        "ops": [
            {"target_encoding": {"joint": True, "smoothing": 0, "target": "I1"}},
            {"rename": {"suffix": "_scaled"}},
            "normalize",
        ],
    },
    {
        "columns": ["C1"],
        "kind": "dense",
        "ops": [
            {"join_groupby": {"statistics": ["var", "min", "max", "sum"], "of": ["X", "I3"]}},
            {"rename": {"prefix": "all_"}},
            "fill",
            "data_stats",
        ],
    },
    {
        "columns": ["I1", "X"],
        "kind": "dense",
        "ops": [{"expression": {"output": "product", "formula": "I1 * X"}}, "fill_median", "winsorize"],
    },
    {
        "columns": ["T"],
        "kind": "multi_hot",
        "ops": [
            {"rename": {"suffix": "_again"}},
            {"split_list": {"separator": "|"}},
            "data_stats",
            {"categorify": {"min_count": 2, "max_size": 4}},
        ],
    },
]
ALL = [*GROUPS, *FURTHER]


def rows_of_days(sizes: Sequence[int], days: Sequence[str] = DAYS, seed: int = 1) -> list[Row]:
    rows = [row for day, size in zip(days, sizes, strict=True) for row in make_rows(day, size, seed)]
    return [{**row, "row_id": place} for place, row in enumerate(rows)]


def read_external(config: Config, table: JoinedTable, key: str, section: str, dt: str) -> pa.Table:
    """The table of the examples, as a reader would return it."""
    assert section == "join_external" and dt in DAYS
    types = {column.name: ARROW_TYPES[column.type] for column in table.columns}
    at = {name: EXTERNAL_COLUMNS.index(name) for name in types}
    return pa.table(
        {name: pa.array([row[at[name]] for row in EXTERNAL], kind) for name, kind in types.items()}
    )


def fit_blocks(
    config: Config,
    rows: Sequence[Row],
    folder: Path,
    workers: Workers | None = None,
    parent: FittedWorkflow | None = None,
    types: Mapping[str, Type] = COLUMNS,
    **layout: Any,
) -> tuple[Lake, FittedWorkflow]:
    """The workflow of the rows as blocks, in a lake of its own."""
    lake = Lake(str(folder))

    def blocks_of(days: Sequence[RawFiles]) -> TrainingBlocks:
        wanted = {day.dt for day in days}
        return blocks_of_rows([row for row in rows if row[DAY] in wanted], types, **layout)

    def no_frames(raw: RawFiles) -> Any:
        raise AssertionError("blocks need no frames")

    raw = [RawFiles(day, (), 1, f"digest of {day}") for day in sorted({row[DAY] for row in rows})]
    workflow = fit_workflow(
        workers or InThisProcess(),
        config,
        lake,
        raw,
        no_frames,
        parent,
        blocks_of=blocks_of,
        read_table=read_external,
    )
    return lake, workflow


def table_of(lake: Lake, version: str, name: str) -> pa.Table:
    """A table of a version, in the order of its files."""
    partition = workflow_table(lake, version, name)
    manifest = read_manifest(partition)
    parts = [pq.read_table(path, partitioning=None) for path in data_files(partition, manifest)]
    types = [(column, kind) for column, kind in manifest.schema]
    whole = pa.concat_tables(parts) if parts else pa.table({})
    assert not parts or [(field.name, str(field.type)) for field in whole.schema] == types
    return pa.table({**{column: whole[column] for column in whole.column_names}})


def tables_of(lake: Lake, workflow: FittedWorkflow) -> dict[str, Any]:
    """All tables of a version: their columns, and their rows in order. Vocabularies are sorted."""
    tables: dict[str, Any] = {}
    names = [*workflow.local.names, RARE]
    for name in names:
        if name == RARE and VOCABULARY not in names:
            continue
        table = table_of(lake, workflow.version, name)
        if name in (VOCABULARY, RARE) and len(table):
            table = table.sort_by([("column", "ascending"), ("value", "ascending")])
        schema = [(field.name, field.type) for field in table.schema]
        # `repr` tells -0.0 from 0.0, and shows each bit of a double.
        tables[name] = schema, [repr(row) for row in table.to_pylist()]
    return tables


def learned(workflow: FittedWorkflow) -> list[str]:
    return [json.dumps(chain.to_json(), sort_keys=True) for chain in workflow.chains]


def assert_equal(lake: Lake, workflow: FittedWorkflow, expected_lake: Lake, expected: FittedWorkflow) -> None:
    assert workflow.version == expected.version
    for chain, of_spark in zip(learned(workflow), learned(expected), strict=True):
        assert chain == of_spark
    assert workflow.spec == expected.spec
    assert workflow.vocabularies == expected.vocabularies
    tables, of_frames = tables_of(lake, workflow), tables_of(expected_lake, expected)
    assert tables.keys() == of_frames.keys()
    for name, table in tables.items():
        assert table == of_frames[name], name


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return rows_of_days((90, 60, 40))


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return make_config(tmp_path_factory.mktemp("frames"), ALL)


@pytest.fixture(scope="module")
def of_spark(spark: SparkSession, config: Config, rows: list[Row]) -> FittedWorkflow:
    return fit_rows(spark, config, by_day(spark, rows))


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"tasks": 3, "batch_rows": 7},
        {"tasks": 2, "batch_rows": 20, "coded": True},
    ],
    ids=str,
)
def test_every_operator_learns_the_same_from_blocks(
    config: Config, rows: list[Row], of_spark: FittedWorkflow, tmp_path: Path, layout: dict[str, Any]
) -> None:
    lake, workflow = fit_blocks(config, rows, tmp_path, **layout)
    assert_equal(lake, workflow, Lake(config.lake), of_spark)


def test_processes_and_small_ranges_of_keys_give_equal_tables(
    config: Config,
    rows: list[Row],
    of_spark: FittedWorkflow,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_session() -> SparkSession:
        raise AssertionError("no JVM is needed")

    monkeypatch.setattr(key_parts, "_RANGE_ROWS", 20)
    workers = LocalWorkers(2, no_session)
    lake, workflow = fit_blocks(config, rows, tmp_path, workers, tasks=3, batch_rows=11, coded=True)
    assert_equal(lake, workflow, Lake(config.lake), of_spark)
    name = next(name for name in workflow.local.names if name.startswith("join_groupby_C2"))
    partition = workflow_table(lake, workflow.version, name)
    assert len(data_files(partition, read_manifest(partition))) > 1
    left = {path.name.split("-")[0] for path in tmp_path.rglob("*.parquet")}
    assert left == {"part"}, "counts and parts are deleted"


def test_an_extension_from_blocks_equals_one_from_frames(
    spark: SparkSession, tmp_path: Path, rows: list[Row]
) -> None:
    groups = [group for group in ALL if "max_age_days" not in str(group)]
    config = make_config(tmp_path / "frames", groups)
    old = [row for row in rows if row[DAY] != DAYS[2]]
    first = fit_rows(spark, config, by_day(spark, old))
    expected = fit_rows(spark, config, by_day(spark, rows), first)
    lake = Lake(str(tmp_path / "blocks"))
    # The tables of join_external are those of the first fit.
    start = config.model_copy(update={"lake": lake.root})
    _, parent = fit_blocks(start, old, tmp_path / "blocks", tasks=2)
    lake, workflow = fit_blocks(start, rows, tmp_path / "blocks", parent=parent, tasks=2)
    assert_equal(lake, workflow, Lake(config.lake), expected)
