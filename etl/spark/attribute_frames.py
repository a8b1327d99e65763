"""Reads tables other than the log, such as attributes of users or items, as Spark frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.types import Config, RawTable
from etl.prepare.attributes import read_attribute_table
from etl.raw.file_splits import FileSplit
from etl.raw.files import require_raw
from etl.raw.text_values import ARROW_TYPES
from etl.readers.base import TableReader
from etl.readers.discovery import open_table
from etl.readers.table_heads import first_reasons
from etl.workflow.row_values import decoded
from spark.arrow_frames import spark_types
from spark.tasks import run_tasks
from storage.lineage import NOT_RECORDED, LineageRecorder

_REJECTED = "_rejected"


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
    """Reads a table as a frame, with one row per key. Tasks read the blocks of its reader.

    The arguments are those of etl.prepare.attributes.read_attribute_table, which returns the same rows as a
    table of this process, and raises the same errors.
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
        read_attribute_table(config, table, key, section, dt, id_column)  # its error names file and line
        raise ValueError(f"internal error, please report: {section} has invalid rows in Spark only")
    return rows.drop(_REJECTED)


def _read_split(
    reader: TableReader,
    splits: tuple[FileSplit, ...],
    text_id: str | None,
    schema: pa.Schema,
    index: int,
) -> Iterator[pa.RecordBatch]:
    """Runs one task: reads one file split. Rejected rows are one row with their number."""
    names = schema.names[1:]
    for block in reader.blocks(splits[index], names):
        arrays = [decoded(block.columns[name]).cast(schema.field(name).type) for name in names]
        none = pa.nulls(len(block.row_lines), pa.int64())
        yield pa.RecordBatch.from_arrays([none, *arrays], schema=schema)
        rejected = len(first_reasons(block, text_id))
        if rejected:
            nulls = [pa.nulls(1, schema.field(name).type) for name in names]
            yield pa.RecordBatch.from_arrays([pa.array([rejected]), *nulls], schema=schema)
