"""Converts training rows that tasks read as blocks to a Spark frame."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame

from etl.fit.fit_inputs import TrainingBlocks
from etl.raw.text_values import ARROW_TYPES
from etl.split.time_split import DAY
from etl.workflow.feature_plan import Plan
from etl.workflow.row_values import decoded
from spark.arrow_frames import frame_of
from spark.workers import Workers
from storage.feature_spec import LABEL, ROW_ID


def frame_of_blocks(workers: Workers, blocks: TrainingBlocks, plan: Plan) -> DataFrame:
    """Returns the training rows as a lazy frame: row_id, label, the day `_day`, and what the plan reads.

    Args:
        workers: Spark's workers, which read the blocks.
        blocks: the training rows.
        plan: the chains of operators, whose inputs are the columns.
    """
    read = {name for chain in plan.chains for name in chain.inputs}
    read |= {name for chain in plan.chains for step in chain.steps for name in step.operator.reads()}
    types = {name: ARROW_TYPES[kind] for name, kind in plan.columns.items() if name in read - {LABEL}}
    fixed = [(ROW_ID, pa.int64()), (LABEL, pa.float32()), (DAY, pa.string())]
    schema = pa.schema([*fixed, *types.items()])
    task = partial(_read, blocks, tuple(types), schema)
    return frame_of(workers.spark, workers.run(blocks.tasks, task, schema))


def _read(
    blocks: TrainingBlocks, names: tuple[str, ...], schema: pa.Schema, index: int
) -> Iterator[pa.RecordBatch]:
    """Runs one task: reads the rows of one part of the blocks."""
    for batch in blocks.read(index, frozenset((LABEL, *names))):
        day = pa.repeat(batch.dt, len(batch.row_ids))
        fixed = [pa.array(batch.row_ids, pa.int64()), batch.columns[LABEL], day]
        columns = [decoded(batch.columns[name]).cast(schema.field(name).type) for name in names]
        yield pa.RecordBatch.from_arrays([*fixed, *columns], schema=schema)
