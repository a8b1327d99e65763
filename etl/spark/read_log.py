"""One day's raw log as typed rows: good ones with label and keys, bad ones with a reason."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.errors import DataError
from conf.types import Config, RawTable
from etl.ops.base import Type
from etl.ops.engine import choose_engine
from etl.raw import ids
from etl.raw.files import RawFiles, require_raw
from etl.raw.parse import FILE, LINE, LINE_NUMBER, REASON, number_of, read_parquet_rows, read_text_rows
from etl.workflow.feature_plan import plan
from storage import file_io
from storage.feature_spec import EVENT_TIME, LABEL, ROW_ID, raw_keys
from storage.lineage import NOT_RECORDED, LineageRecorder

_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}


def read_log(spark: SparkSession, config: Config, raw: RawFiles) -> DataFrame:
    """Every row of a day's raw log, good or bad, once.

    Columns: row_id (position of the row in the day's files; `negatives` multiplies it later), _file, _line_number, _line, _reason (null for a row that
    goes on; otherwise why it does not parse, or which operator of `prepare` filters it out), the raw columns, label (float 0/1), user_key, item_key and group_key (strings,
    where the config names them), event_time (µs UTC, where the config names it).
    """
    rows = _rows(spark, config, config.log, raw)
    label, label_ok = _label(config)
    columns: dict[str, Column] = {LABEL: label}
    reasons = [F.col(REASON), F.when(~label_ok, F.lit(f"label:{config.log.label.column}"))]
    for key, name in raw_keys(config.keys).items():
        columns[key] = F.col(name).cast("string")
        reasons.append(F.when(F.col(name).isNull(), F.lit(f"missing_key:{name}")))
        reasons.append(_bad_key(config.log, name))
    if config.log.event_time:
        time = config.log.event_time
        instant, scale = F.col(time.column).cast("bigint"), _MICROSECONDS[time.unit]
        columns[EVENT_TIME] = instant * scale
        reasons.append(F.when(F.col(time.column).isNull(), F.lit(f"missing_time:{time.column}")))
        last = (2**63 - 1) // scale  # a product beyond 64 bits would come out as another time
        reasons.append(F.when(~instant.between(-last, last), F.lit(f"time_range:{time.column}")))
    known: dict[str, Type] = {column.name: column.type for column in config.log.columns}
    reasons += [F.when(~each.keeps(known), F.lit(each.reason)) for each in plan(config).filters]
    # Reasons first: a raw column may have the name of one of ours, and is replaced by it.
    return rows.withColumn(REASON, F.coalesce(*reasons)).withColumns(columns)


def _bad_key(table: RawTable, name: str) -> Column:
    """The reason of rows whose id in a column breaks the rule, null for the others; numbers always obey it."""
    kinds = {column.name: column.type for column in table.columns}
    if kinds[name] != "string":
        return F.lit(None).cast("string")
    return F.when(ids.is_bad_key(F.col(name)), F.lit(ids.reason(name)))


def good_rows(rows: DataFrame) -> DataFrame:
    """The rows that parsed, without the raw line."""
    return rows.where(F.col(REASON).isNull()).drop(FILE, LINE, LINE_NUMBER, REASON)


def bad_rows(rows: DataFrame) -> DataFrame:
    """The rows that did not: (row_id, source_file, line_number, reason, line)."""
    return rows.where(F.col(REASON).isNotNull()).select(
        ROW_ID,
        F.col(FILE).alias("source_file"),
        F.col(LINE_NUMBER).alias("line_number"),
        F.col(REASON).alias("reason"),
        F.col(LINE).alias("line"),
    )


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
    """A table from beside the log, such as attributes of users or items: its columns typed, one row a key.

    Args:
        key: the column, or the columns together, that must tell rows apart.
        section: of the configuration, for what an error advises.
        id_column: the column that holds ids of users or items, if there is one.
        recorder: notes the file as an input of the run.

    Raises:
        DataError: there is no file, rows do not parse, ids break the rule of etl/raw/ids.py, keys are null or occur twice (a
            join would multiply rows).
    """
    raw = require_raw(config, table, dt, f"{section}.path", recorder)
    rows = _rows(spark, config, table, raw)
    if id_column is not None:
        rows = rows.withColumn(REASON, F.coalesce(REASON, _bad_key(table, id_column)))
    keys = [key] if isinstance(key, str) else list(key)
    checked = rows.agg(
        F.count(F.lit(1)).alias("rows"),
        F.count(REASON).alias("bad"),
        F.min(F.when(F.col(REASON).isNotNull(), F.struct(LINE_NUMBER, REASON))).alias("first_bad"),
        F.countDistinct(*keys).alias("keys"),
    ).first()
    if checked is None or checked["bad"]:
        first = tuple(checked["first_bad"]) if checked else ()
        rule = f" ({ids.RULE})" if id_column and first and first[1] == ids.reason(id_column) else ""
        raise DataError(
            f"{raw.paths[0]}: {checked and checked['bad']} rows do not parse, first (line, reason): {first}{rule}",
            f"correct the file or {section}.columns",
        )
    if checked["keys"] != checked["rows"]:
        named = ", ".join(keys)
        raise DataError(
            f"{raw.paths[0]}: {checked['rows']} rows hold {checked['keys']} different values of {named}; "
            f"{_first_offence(rows, keys)}",
            f"deliver exactly one row a {named}, none of them null",
        )
    return rows.select(*table.names)


def _first_offence(rows: DataFrame, keys: Sequence[str]) -> str:
    """The least key that is null or occurs more than once, in words."""
    counted = rows.groupBy(*keys).agg(F.count(F.lit(1)).alias("count"))
    null = reduce(or_, (F.col(name).isNull() for name in keys))
    first = counted.where(null | (F.col("count") > 1)).orderBy(*keys).first()
    values = {name: first[name] for name in keys} if first else {}
    return f"the first that is null or occurs twice is {values}"


def _rows(spark: SparkSession, config: Config, table: RawTable, raw: RawFiles) -> DataFrame:
    if table.format == "parquet":
        first, first_rows = 0, []
        for path in raw.paths:
            files, inner = file_io.filesystem(path)
            with files.open_input_file(inner) as source:
                first_rows.append(first)
                first += pq.read_metadata(source).num_rows
        return read_parquet_rows(spark, table, raw.paths, first_rows)
    return read_text_rows(spark, table, raw.paths, choose_engine(spark, config.workflow.engine))


def _label(config: Config) -> tuple[Column, Column]:
    raw = F.col(config.log.label.column)
    kinds = {column.name: column.type for column in config.log.columns}
    value = number_of(raw) if kinds[config.log.label.column] == "string" else raw.cast("double")
    least = config.log.label.positive_at_least
    if least is None:
        return value.cast("float"), F.coalesce(value.isin(0.0, 1.0), F.lit(False))
    return (value >= least).cast("float"), value.isNotNull()
