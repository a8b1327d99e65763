"""Reads the good rows of a raw log as a Spark frame: tasks read the blocks of its reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame

from etl.raw.file_splits import FileSplit
from etl.raw.files import RawFiles
from etl.raw.text_values import ARROW_TYPES
from etl.text.file_layout import FileLayout, layout_of_days
from etl.text.parse_block import read_split
from etl.text.row_source import columns_to_parse
from etl.workflow.feature_plan import Plan
from etl.workflow.row_values import decoded
from spark.arrow_frames import frame_of
from spark.workers import Workers
from storage.feature_spec import EVENT_TIME, GROUP_KEY, ITEM_KEY, LABEL, ROW_ID, USER_KEY, WEIGHT, raw_keys

# A file split has fewer lines. So row ids of a log are ordered as its lines, without counting them first.
_LINES_OF_SPLIT = 2**40
_FIXED = {
    **dict.fromkeys((USER_KEY, ITEM_KEY, GROUP_KEY), pa.string()),
    EVENT_TIME: pa.int64(),
    LABEL: pa.float32(),
    WEIGHT: pa.float32(),
}


def ordered_rows(workers: Workers, plan: Plan, raw: RawFiles, columns: Sequence[str] = ()) -> DataFrame:
    """Returns the good rows of a day's log as a lazy frame.

    The columns are row_id, label, keys, event_time and weight if the configuration has them, and `columns`.
    Here row_ids are only ordered as the lines of the log: they are not the indices of the lines.

    Args:
        workers, plan, raw: the workers, the plan of the run, and the files of the day.
        columns: raw columns to read as well.

    Raises:
        DataError, ConfigError: a file is damaged or lacks a column.
    """
    layout = layout_of_days(plan, [raw])
    types = column_types(plan, columns)
    schema = pa.schema([(ROW_ID, pa.int64()), *types.items()])
    splits = tuple(layout.reader.splits())
    parsed = columns_to_parse(layout, columns)
    task = partial(_rows_of, splits, layout, parsed, schema)
    return frame_of(workers.spark, workers.run(len(splits), task, schema))


def column_types(plan: Plan, columns: Sequence[str]) -> Mapping[str, pa.DataType]:
    """Returns the types of the columns of good rows: what the rules of the log compute, and raw columns."""
    times = [EVENT_TIME] if plan.config.log.event_time else []
    weights = [WEIGHT] if plan.config.log.label.weights is not None else []
    fixed = [*raw_keys(plan.config.keys), *times, LABEL, *weights]
    types = {name: _FIXED[name] for name in fixed}
    return types | {name: ARROW_TYPES[plan.config.log.types[name]] for name in columns if name not in types}


def _rows_of(
    splits: tuple[FileSplit, ...],
    layout: FileLayout,
    parsed: Sequence[str],
    schema: pa.Schema,
    index: int,
) -> Iterator[pa.RecordBatch]:
    """Runs one task: parses one file split."""
    before = index * _LINES_OF_SPLIT
    for block in read_split(splits[index], layout, parsed):
        columns = {ROW_ID: pa.array(block.row_lines + before, pa.int64()), **block.columns}
        arrays = [decoded(columns[field.name]).cast(field.type) for field in schema]
        before += block.lines
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
