"""Reads frames of Spark into this process, and computes features in the Python workers of Spark.

pyspark is imported only if the caller has a frame of Spark.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeGuard, Union

import pyarrow as pa

from conf.errors import ConfigError
from etl.workflow.chains import FEATURE_SPARK_TYPES
from etl.workflow.fitted_workflow import LocalWorkflow
from nightrank.frames import Frame, arrow_table, require_kept

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AnyFrame: TypeAlias = Union[Frame, "DataFrame"]
_PART = "part"


def is_spark_frame(rows: object) -> TypeGuard[DataFrame]:
    """Returns whether an object is a frame of Spark."""
    return "pyspark.sql" in sys.modules and isinstance(rows, sys.modules["pyspark.sql"].DataFrame)


def collect_columns(rows: DataFrame, columns: Sequence[str]) -> pa.Table:
    """Returns some columns of a frame as an Arrow table. Columns that the frame lacks are left out.

    Spark sends the columns to this process as Arrow batches, in the order of the frame.

    Raises:
        ConfigError: two columns of the frame have the same name.
    """
    selected = _select(rows, [name for name in columns if name in rows.columns])
    from pyspark.sql.pandas.types import to_arrow_schema

    parts = [row[_PART] for row in selected.mapInArrow(_serialized, f"{_PART} binary").collect()]
    tables = [pa.ipc.open_stream(part).read_all() for part in parts]
    return pa.concat_tables(tables) if tables else to_arrow_schema(selected.schema).empty_table()


def local_table(rows: AnyFrame | pa.RecordBatch, columns: Sequence[str]) -> pa.Table:
    """Returns some columns of a frame of any kind as an Arrow table.

    Columns that the frame lacks are left out.

    Raises:
        ConfigError: `rows` is not a frame, or two of its columns have the same name.
        DataError: the values of a column have different types.
    """
    return collect_columns(rows, columns) if is_spark_frame(rows) else arrow_table(rows, columns)


def transform_frame(rows: DataFrame, workflow: LocalWorkflow, keep: Sequence[str]) -> DataFrame:
    """Returns a frame with the columns `keep` and the features, which Spark computes when it is used.

    Python workers compute the features batch by batch. Spark sends the workflow, with its vocabularies, to
    the workers.

    Raises:
        ConfigError: `rows` lacks one of the columns `keep`, or a feature has the name of one of them.
        DataError: a raw column is missing, or has an unsupported type.
    """
    features = workflow.spec.features
    require_kept(keep, rows.columns, [feature.name for feature in features])
    raw = [name for name in workflow.raw_types() if name in rows.columns]
    # Check names and types now, because Spark evaluates the frame later, in tasks.
    workflow.encode_table(collect_columns(rows.limit(0), raw))
    empty = [
        f"cast(null as {FEATURE_SPARK_TYPES[feature.dtype]}) as {_quoted(feature.name)}"
        for feature in features
    ]
    schema = rows.selectExpr(*(_quoted(name) for name in keep), *empty).schema
    selected = _select(rows, list(dict.fromkeys([*keep, *raw])))
    return selected.mapInArrow(partial(_encoded, workflow, tuple(keep)), schema)


def _select(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    repeated = [name for name in columns if rows.columns.count(name) > 1]
    if repeated:
        raise ConfigError(f"the rows have several columns named {repeated}", "rename these columns")
    return rows.select([_quoted(name) for name in columns])


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _serialized(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        yield pa.RecordBatch.from_arrays([pa.array([sink.getvalue().to_pybytes()], pa.binary())], [_PART])


def _encoded(
    workflow: LocalWorkflow, keep: tuple[str, ...], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        features = workflow.encode_table(pa.Table.from_batches([batch])).combine_chunks()
        columns = [batch.column(name) for name in keep]
        columns += [column.chunk(0) for column in features.columns]
        yield pa.RecordBatch.from_arrays(columns, [*keep, *features.column_names])
