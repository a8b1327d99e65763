"""Reads a day's raw log as typed rows. Good rows have a label and keys; bad rows have a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.errors import ConfigError, DataError
from conf.types import Config, EventTime, RawTable
from etl.ops.base import Type
from etl.ops.choose_engine import choose_engine
from etl.raw.erased_rows import ERASED, erased_of_day, is_erased, line_has_erased_field
from etl.raw.files import RawFiles, require_raw
from etl.raw.parquet_rows import EXACT_TIME, read_parquet_rows
from etl.raw.parse import FILE, LINE, LINE_NUMBER, REASON, read_text_rows
from etl.raw.rejected_lines import RejectedLine
from etl.raw.row_rules import Check, RowRule, bad_key, row_rules
from etl.readers.table_heads import unusable
from etl.workflow.feature_plan import plan
from storage.feature_spec import EVENT_TIME, ROW_ID
from storage.lineage import NOT_RECORDED, LineageRecorder


def read_log(spark: SparkSession, config: Config, raw: RawFiles) -> DataFrame:
    """Reads all rows of a day's raw log, with a reason for each row that cannot be used.

    Returns:
        A frame with one row per row of the log, and with these columns:
        row_id: index of the row among all rows of the day, from 0. `add_negatives` changes it later.
        _file, _line_number, _line: file, line number and text of the row.
        _reason: null for a good row. Otherwise, the reason why the row cannot be parsed, or the operator of
            `prepare` that drops the row.
        the raw columns, with the types of the configuration.
        label: float, 0 or 1.
        weight: float, above 0. The column exists only if `log.label.weights` is set.
        user_key, item_key, group_key: strings. Each column exists only if the section `keys` sets it.
        event_time: µs since 1970-01-01 UTC. The column exists only if `log.event_time` is set.
    """
    read = _rows(spark, config, config.log, raw, config.log.event_time)
    rows = derive_columns(config, add_reasons(config, read, raw.dt))
    if EXACT_TIME not in rows.columns:
        return rows
    # The raw column is rounded down to `log.event_time.unit`. A Parquet timestamp may be more exact.
    return rows.withColumn(EVENT_TIME, F.coalesce(EXACT_TIME, EVENT_TIME)).drop(EXACT_TIME)


def add_reasons(config: Config, rows: DataFrame, dt: str) -> DataFrame:
    """Completes `_reason`: also rows that break a rule of the log, or that `prepare` drops, have a reason.

    So have the rows of erased users (etl/raw/erased_rows.py). `rows` has the raw columns of the log of the
    day `dt` and the reason of each line that cannot be parsed. It must not have the columns of
    `derive_columns` yet, because they may replace raw columns that decide on the reason.
    """
    types: Mapping[str, Type] = config.log.types
    reasons = [F.col(REASON)]
    reasons += [_reason(check, F.col(rule.column)) for rule in _rules(config, types) for check in rule.checks]
    reasons += [F.when(~operator.keeps(types), F.lit(operator.reason)) for operator in plan(config).filters]
    reason, erased = F.coalesce(*reasons), erased_of_day(config, dt)
    if erased is None or config.keys is None:
        return rows.withColumn(REASON, reason)
    is_left_out = is_erased(F.col(config.keys.user).cast("string"), erased)
    is_left_out |= reason.isNotNull() & line_has_erased_field(F.col(LINE), config.log.field_separator, erased)
    return rows.withColumn(REASON, F.when(is_left_out, F.lit(ERASED)).otherwise(reason))


def derive_columns(config: Config, rows: DataFrame) -> DataFrame:
    """Adds label, weight, keys and event_time to the rows of a log, which are computed from raw columns."""
    types: Mapping[str, Type] = config.log.types
    return rows.withColumns(
        {rule.output: rule.in_spark(F.col(rule.column)) for rule in _rules(config, types)}
    )


def _rules(config: Config, types: Mapping[str, Type]) -> tuple[RowRule, ...]:
    return row_rules(types, config.log.label, config.keys, config.log.event_time, config.log)


def _reason(check: Check, raw: Column) -> Column:
    """Returns an expression: the reason of a check if it rejects the row, and otherwise null."""
    return F.when(check.in_spark(raw), F.lit(check.reason))


def good_rows(rows: DataFrame) -> DataFrame:
    """Returns the good rows of `read_log`, without `_file`, `_line_number`, `_line` and `_reason`."""
    return rows.where(F.col(REASON).isNull()).drop(FILE, LINE, LINE_NUMBER, REASON)


def bad_rows(rows: DataFrame) -> DataFrame:
    """Returns the bad rows of `read_log`.

    The columns are `row_id`, `source_file`, `line_number`, `reason` and `line`.
    """
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
    """Reads a table other than the log, such as attributes of users or items, with one row per key.

    This function has many parameters, because its callers need many combinations of table, key, section and
    id column.

    Args:
        spark, config: session and configuration of the run.
        table: the table to read.
        key: the column or columns whose values must be unique.
        section: the section of the configuration, for error messages.
        dt: the date that replaces `{date}` in the table's path.
        id_column: the column with ids of users or items; None if there is none.
        recorder: records the table's files as an input of the run.

    Raises:
        DataError: there is no file, rows cannot be parsed, ids violate the rule of etl/raw/key_rule.py, or a
            key is null or occurs more than once. A join with duplicate keys would multiply rows.
    """
    raw = require_raw(config, table, dt, f"{section}.path", recorder)
    rows = _rows(spark, config, table, raw)
    if id_column is not None and table.types[id_column] == "string":
        rows = rows.withColumn(REASON, F.coalesce(REASON, _reason(bad_key(id_column), F.col(id_column))))
    keys = [key] if isinstance(key, str) else list(key)
    checked = rows.agg(
        F.count(F.lit(1)).alias("rows"),
        F.count(REASON).alias("bad"),
        F.min(F.when(F.col(REASON).isNotNull(), F.struct(FILE, LINE_NUMBER, REASON, LINE))).alias(
            "first_bad"
        ),
        F.countDistinct(*keys).alias("keys"),
    ).first()
    if checked is None:
        raise ValueError("internal error, please report: an aggregation has no row")
    if checked["bad"]:
        raise unusable(table, section, RejectedLine(*checked["first_bad"]), checked["bad"])
    if checked["keys"] != checked["rows"]:
        key_names = ", ".join(keys)
        place, invalid = _first_invalid_key(rows, keys)
        raise DataError(
            f"{place}: {checked['rows']} rows have {checked['keys']} different values of {key_names}; "
            f"{invalid}",
            f"keep exactly one row for each value of {key_names}, without nulls",
        )
    return rows.select(*table.names)


def _first_invalid_key(rows: DataFrame, keys: Sequence[str]) -> tuple[str, str]:
    """Returns the file of the smallest key that is null or occurs more than once, and a text with the key."""
    places = F.sort_array(F.collect_list(F.struct(FILE, LINE_NUMBER)))
    counted = rows.groupBy(*keys).agg(F.count(F.lit(1)).alias("count"), F.slice(places, 1, 2).alias("places"))
    null = reduce(or_, (F.col(name).isNull() for name in keys))
    first = counted.where(null | (F.col("count") > 1)).orderBy(*keys).first()
    if first is None:
        raise ValueError("internal error, please report: every key occurs once, but keys and rows differ")
    values = {name: first[name] for name in keys}
    lines = " and ".join(f"line {line} of {path}" for path, line in first["places"])
    return first["places"][0][FILE], f"the first value that is null or occurs twice is {values}, in {lines}"


def _rows(
    spark: SparkSession,
    config: Config,
    table: RawTable,
    raw: RawFiles,
    event_time: EventTime | None = None,
) -> DataFrame:
    """Returns the rows of a raw table in any format, with the columns that etl.raw.parse returns."""
    if table.format == "parquet":
        return read_parquet_rows(spark, table, raw.paths, event_time)
    if table.format == "tsv" or table.format == "csv":
        return read_text_rows(spark, table, raw.paths, choose_engine(config.workflow.engine))
    name = {"jsonl": "JSON lines", "orc": "ORC files"}.get(table.format, f"the format {table.format}")
    raise ConfigError(
        f"{raw.paths[0]}: Spark frames cannot read {name}",
        "set workflow.engine=auto and run the job on one machine, without spark-submit; or deliver the "
        "table as Parquet or csv",
    )
