"""Workflows that are fitted on blocks of generated rows, without Spark, and their features and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from conf.types import Config, JoinedTable
from etl.fit.fit_workflow import fit_workflow
from etl.fit.rounds import TrainingBlocks
from etl.ops.base import Type
from etl.ops.tables import workflow_table
from etl.raw.files import RawFiles
from etl.raw.splits import DAY
from etl.workflow.chains import RowPlace, compute_features
from etl.workflow.feature_plan import plan_of
from etl.workflow.fitted_workflow import FittedWorkflow
from spark.workers import Workers
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths
from tests.etl.block_rows import ARROW_TYPES, InThisProcess, blocks_of_rows
from tests.etl.ops.examples import COLUMNS, EXTERNAL, EXTERNAL_COLUMNS
from tests.etl.ops.rows import DAYS, Row


def read_external(config: Config, table: JoinedTable, key: str, section: str, dt: str) -> pa.Table:
    """The table of the examples, as a reader would return it."""
    assert section == "join_external"
    assert dt in DAYS
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
) -> tuple[LakePaths, FittedWorkflow]:
    """The workflow of the rows as blocks, in a lake of its own."""
    lake = LakePaths(str(folder))

    def blocks_of(days: Sequence[RawFiles]) -> TrainingBlocks:
        wanted = {day.dt for day in days}
        return blocks_of_rows([row for row in rows if row[DAY] in wanted], types, **layout)

    raw = [RawFiles(day, (), 1, f"digest of {day}") for day in sorted({row[DAY] for row in rows})]
    workflow = fit_workflow(
        workers or InThisProcess(),
        plan_of(config),
        lake,
        raw,
        parent,
        counts_of=None,
        read_table=read_external,
        blocks_of=blocks_of,
    )
    return lake, workflow


def table_of(lake: LakePaths, version: str, name: str) -> pa.Table:
    """A table of a version, in the order of its files."""
    partition = workflow_table(lake, version, name)
    manifest = read_manifest(partition)
    parts = [pq.read_table(path, partitioning=None) for path in data_files(partition, manifest)]
    types = [(column, kind) for column, kind in manifest.schema]
    whole = pa.concat_tables(parts) if parts else pa.table({})
    assert not parts or [(field.name, str(field.type)) for field in whole.schema] == types
    return pa.table({**{column: whole[column] for column in whole.column_names}})


def features_of_blocks(
    workflow: FittedWorkflow, rows: Sequence[Row], types: Mapping[str, Type] = COLUMNS, coded: bool = True
) -> dict[str, list[Any]]:
    """Feature → its values in the order of `rows`, which are sorted by day."""
    dtypes = {feature.name: feature.dtype for feature in workflow.spec.features}
    features: dict[str, list[Any]] = {name: [] for name in dtypes}
    blocks = blocks_of_rows(rows, types, batch_rows=33, coded=coded)
    for batch in blocks.read(0, frozenset(types)):
        place = RowPlace(batch.row_ids, batch.dt)
        for name, values in compute_features(
            workflow.chains, batch.columns, dtypes, workflow.local, place
        ).items():
            features[name] += values.to_pylist()
    return features
