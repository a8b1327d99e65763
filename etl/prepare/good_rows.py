"""Reads the good rows of a day's raw log as Arrow tables, in tasks and without a JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.raw.file_splits import FileSplit
from etl.raw.files import RawFiles
from etl.text.file_layout import FileLayout, layout_of_days
from etl.text.parse_block import plain, read_split
from etl.text.row_source import columns_to_parse
from etl.workflow.feature_plan import Plan
from spark.workers import Workers
from storage.feature_spec import EVENT_TIME, GROUP_KEY, ITEM_KEY, LABEL, ROW_ID, USER_KEY

_TASK, _LINES = "_task", "_lines"
_TYPES = {
    USER_KEY: pa.string(),
    ITEM_KEY: pa.string(),
    GROUP_KEY: pa.string(),
    LABEL: pa.float32(),
    EVENT_TIME: pa.int64(),
    ROW_ID: pa.int64(),
}


def good_rows_of(
    workers: Workers, plan: Plan, raw: RawFiles, columns: Sequence[str], *, only_clicks: bool = False
) -> Iterator[pa.Table]:
    """Yields the good rows of a day's log, in the order of the log, about one block of a file at a time.

    Tasks of `workers` parse the file splits. The rows of erased users are left out.

    Args:
        workers: processes of this machine, because the rows come to this process.
        plan, raw: the plan of the run, and the files of the day.
        columns: names of the columns to return, any of user_key, item_key, group_key (string), label
            (float32), event_time (int64, µs) and row_id (int64: the index of the row's line in the day).
        only_clicks: whether to return only the rows with label 1.

    Raises:
        DataError, ConfigError: a file is damaged or lacks a column.
        ValueError: the workers are those of Spark.
    """
    layout = layout_of_days(plan, [raw])
    splits = tuple(layout.reader.splits())
    schema = pa.schema(
        [(_TASK, pa.int32()), (_LINES, pa.int64()), *((name, _TYPES[name]) for name in columns)]
    )
    times = (plan.config.log.event_time.column,) if plan.config.log.event_time else ()
    task = partial(_rows_of, splits, layout, columns_to_parse(layout, times), schema, only_clicks)
    rows = workers.run(len(splits), task, schema)
    if not isinstance(rows, pa.Table):
        raise ValueError("internal error, please report: Spark's workers do not return Arrow tables")
    ends = rows.filter(pc.is_valid(rows.column(_LINES))).select([_TASK, _LINES])
    lines = np.zeros(len(splits), np.int64)
    lines[ends.column(_TASK).to_numpy()] = ends.column(_LINES).to_numpy()
    first_row_id = np.cumsum(lines) - lines
    for batch in rows.to_batches():
        if not len(batch) or batch.column(_LINES)[0].is_valid:
            continue
        table = pa.Table.from_batches([batch])
        if ROW_ID in columns:  # tasks do not know how many lines come before their split
            first = pa.scalar(first_row_id[batch.column(_TASK)[0].as_py()], pa.int64())
            position = table.column_names.index(ROW_ID)
            table = table.set_column(position, ROW_ID, pc.add(table.column(ROW_ID), first))
        yield table.select(list(columns))


def _rows_of(
    splits: tuple[FileSplit, ...],
    layout: FileLayout,
    parsed_columns: Sequence[str],
    schema: pa.Schema,
    only_clicks: bool,
    index: int,
) -> Iterator[pa.RecordBatch]:
    """Runs one task: parses one file split. The last batch is one row with the number of lines."""
    lines = 0
    for parsed in read_split(splits[index], layout, parsed_columns):
        values = {**parsed.columns, ROW_ID: pa.array(parsed.row_lines + lines, pa.int64())}
        lines += parsed.lines
        if only_clicks:
            clicked = pc.equal(plain(parsed.columns[LABEL]), 1)
            values = {name: values[name].filter(clicked) for name in schema.names if name in values}
        count = len(values[ROW_ID]) if ROW_ID in values else len(next(iter(values.values())))
        arrays = [pa.repeat(pa.scalar(index, pa.int32()), count), pa.nulls(count, pa.int64())]
        arrays += [plain(values[name]).cast(_TYPES[name]) for name in schema.names[2:]]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
    end = {_TASK: index, _LINES: lines}
    yield pa.RecordBatch.from_arrays(
        [pa.array([end.get(field.name)], field.type) for field in schema], schema=schema
    )
