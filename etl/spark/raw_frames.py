"""Reads raw tables as Spark frames: the good rows of a log, and tables of attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.types import Config, RawTable
from etl.prepare.attributes import compares_integers, needs_keys_of_log, read_attribute_table, several_texts
from etl.raw.file_splits import FileSplit
from etl.raw.files import RawFiles, require_raw
from etl.raw.text_values import ARROW_TYPES, integers_of_texts
from etl.readers.base import TableReader, open_table
from etl.readers.table_heads import first_reasons
from etl.text.parse_block import FileLayout, columns_to_parse, layout_of_days, read_split
from etl.workflow.chains import decoded
from etl.workflow.feature_plan import FeaturePlan
from spark.rows import frame_of, spark_types
from spark.tasks import run_tasks
from spark.workers import Workers
from storage.feature_spec import EVENT_TIME, GROUP_KEY, ITEM_KEY, LABEL, ROW_ID, USER_KEY, WEIGHT, raw_keys
from storage.lineage import NOT_RECORDED, LineageRecorder

# Each file split has fewer lines than this. So Spark can assign row_ids in the order of the lines without
# counting the lines first.
_LINES_OF_SPLIT = 2**40
_FIXED = {
    **dict.fromkeys((USER_KEY, ITEM_KEY, GROUP_KEY), pa.string()),
    EVENT_TIME: pa.int64(),
    LABEL: pa.float32(),
    WEIGHT: pa.float32(),
}


def ordered_rows(
    workers: Workers, plan: FeaturePlan, raw: RawFiles, columns: Sequence[str] = ()
) -> DataFrame:
    """Returns the good rows of a day's log as a lazy frame.

    The columns are row_id, label, `columns` and, if the configuration has them, keys, event_time and weight.
    The row_ids ascend in the order of the lines, but they are not line numbers.

    Args:
        workers, plan, raw: the workers, the plan of the run, and the files of the day.
        columns: the raw columns to read besides the columns of label, keys and time.

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


def column_types(plan: FeaturePlan, columns: Sequence[str]) -> Mapping[str, pa.DataType]:
    """Returns the types of the columns of good rows: computed columns (keys, label…) and raw columns."""
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


# The functions below read tables other than the log, such as attributes of users or items, as Spark frames.

_REJECTED = "_rejected"
_NUMBER = "_number"


def read_attributes(
    spark: SparkSession,
    config: Config,
    table: RawTable,
    key: str | Sequence[str],
    section: str,
    dt: str,
    id_column: str | None = None,
    recorder: LineageRecorder = NOT_RECORDED,
) -> DataFrame:
    """Reads a table as a frame, with one row per key.

    Tasks read the blocks of the table's reader. Without Spark, etl.prepare.attributes.read_attribute_table
    reads the same rows as an Arrow table, and raises the same errors.
    """
    raw = require_raw(config, table, dt, f"{section}.path", recorder)
    reader = open_table(table, raw.paths)
    splits = tuple(reader.splits())
    text_id = id_column if id_column is not None and table.types[id_column] == "string" else None
    schema = pa.schema(
        [(_REJECTED, pa.int64()), *((name, ARROW_TYPES[kind]) for name, kind in table.types.items())]
    )
    task = partial(_read_split, reader, splits, text_id, schema)
    rows = run_tasks(spark, len(splits), task, spark_types(schema))
    keys = [key] if isinstance(key, str) else list(key)
    checked = rows.agg(
        F.count(F.lit(1)).alias("rows"),
        F.count(_REJECTED).alias("rejected"),
        F.countDistinct(*keys).alias("keys"),
    ).first()
    if checked is None:
        raise ValueError("internal error, please report: an aggregation has no row")
    if checked["rejected"] or checked["keys"] != checked["rows"]:
        # This call raises an error that names file and line.
        read_attribute_table(config, table, key, section, dt, id_column)
        raise ValueError(f"internal error, please report: {section} has invalid rows in Spark only")
    return rows.drop(_REJECTED)


def join_attributes(
    config: Config, rows: DataFrame, attributes: DataFrame, table: RawTable, key: str
) -> DataFrame:
    """Joins rows with a table of attributes, as etl.prepare.attributes.join_attributes joins Arrow tables."""
    if not compares_integers(config, table, key):
        return rows.join(attributes, key, "left")
    numbered = attributes.withColumn(_NUMBER, _as_integer(key, table)).drop(key)
    _require_one_text(numbered, key)
    log_key = _as_integer(key, config.log)
    return rows.withColumn(_NUMBER, log_key).join(numbered, _NUMBER, "left").drop(_NUMBER)


def key_text(config: Config, table: RawTable, name: str) -> Column:
    """Returns the key of a row in a table of attributes as text, like etl.prepare.attributes.key_texts."""
    text = F.col(name).cast("string")
    if not compares_integers(config, table, name):
        return text
    return F.coalesce(_as_integer(name, table).cast("string"), text)


def keyed_frame(
    config: Config, table: RawTable, rows: DataFrame, name: str, key: str, of_log: DataFrame | None = None
) -> DataFrame:
    """Returns the rows of a table of attributes. Their keys are written as in the log.

    etl.prepare.attributes.keyed_rows returns the same rows as an Arrow table, and describes the arguments.
    """
    if not compares_integers(config, table, name):
        return rows.withColumn(key, key_text(config, table, name))
    numbered, text = rows.withColumn(_NUMBER, _as_integer(name, table)), key_text(config, table, name)
    _require_one_text(numbered, name)
    if not needs_keys_of_log(config, table, name):
        return numbered.withColumn(key, text).withColumn(name, F.col(_NUMBER)).drop(_NUMBER)
    if of_log is not None:
        keys = of_log.select(key, integers_of_texts(F.col(key)).alias(_NUMBER))
        numbered, text = numbered.join(keys, _NUMBER, "left"), F.coalesce(F.col(key), text)
    return numbered.withColumn(key, text).withColumn(name, F.col(key)).drop(_NUMBER)


def _as_integer(key: str, table: RawTable) -> Column:
    """Returns a key column of `table` as integers. The column contains integers or strings."""
    return F.col(key) if table.types[key] == "int" else integers_of_texts(F.col(key))


def _require_one_text(numbered: DataFrame, name: str) -> None:
    """Raises DataError if an integer occurs more than once among the keys of a table."""
    counted = numbered.where(F.col(_NUMBER).isNotNull()).groupBy(_NUMBER).count()
    twice = counted.where("count > 1").orderBy(_NUMBER).first()
    if twice is not None:
        raise several_texts(name, twice[_NUMBER])


def _read_split(
    reader: TableReader,
    splits: tuple[FileSplit, ...],
    text_id: str | None,
    schema: pa.Schema,
    index: int,
) -> Iterator[pa.RecordBatch]:
    """Runs one task: reads one file split.

    If rows of a block are rejected, the task yields one more row, with the number of the rejected rows.
    """
    names = schema.names[1:]
    for block in reader.blocks(splits[index], names):
        arrays = [decoded(block.columns[name]).cast(schema.field(name).type) for name in names]
        none = pa.nulls(len(block.row_lines), pa.int64())
        yield pa.RecordBatch.from_arrays([none, *arrays], schema=schema)
        rejected = len(first_reasons(block, text_id))
        if rejected:
            nulls = [pa.nulls(1, schema.field(name).type) for name in names]
            yield pa.RecordBatch.from_arrays([pa.array([rejected]), *nulls], schema=schema)
