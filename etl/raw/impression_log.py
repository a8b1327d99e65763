"""Reads the log of what was shown to users on one day (`serving.impressions`).

Two jobs need it: measure_recommendations compares it with the published lists, and build_features adds
positions to the rows of the click log (etl/spark/shown_positions.py).
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from conf.errors import DataError
from conf.raw_types import Column, Log
from conf.serving_types import Impressions
from conf.types import Config
from etl.raw.files import RawFiles, find_raw
from etl.raw.number_text import integers
from etl.raw.row_rules import time_rule
from etl.raw.stored_values import stored_values
from etl.raw.time_text import timestamps
from etl.raw.value_text import EXACT_BELOW, id_texts, not_exact, whole_number_texts
from spark.rows import Rows
from spark.workers import Workers
from storage import file_io
from storage.feature_spec import EVENT_TIME
from storage.manifest import digest_of

log = logging.getLogger("nightrank.etl")

_BATCH_ROWS = 50_000
ERROR = "error"
_TIMESTAMP = Column(name="timestamp", type="timestamp")
LOGGED = pa.schema(
    [
        ("user_key", pa.string()),
        ("item_key", pa.string()),
        ("position", pa.int64()),
        ("logged_variant", pa.string()),
        ("logged_version", pa.string()),
        (EVENT_TIME, pa.int64()),
        (ERROR, pa.string()),
    ]
)


def impressions_of(config: Config, raw: RawFiles) -> RawFiles | None:
    """Returns the files with the impressions of the day of a click log.

    Returns None if there are none, or if their positions are not a column of the click log's rows.

    Args:
        config: the configuration.
        raw: the files of the click log. Its recorder records the impressions as an input of the run.
    """
    settings = config.serving.row_positions
    return find_raw(config, settings.files, raw.dt, raw.recorder) if settings else None


def impression_inputs(config: Config, raw: RawFiles) -> dict[str, str]:
    """Returns the input `impressions` of everything that is computed from the prepared rows of a day.

    It is the digest of the day's impressions, or `none` without a file. The result is empty if their
    positions are not a column of the rows.
    """
    if config.serving.row_column is None:
        return {}
    logged = impressions_of(config, raw)
    return {"impressions": logged.digest if logged else "none"}


def rows_digest(config: Config, raw: RawFiles) -> str:
    """Returns a digest of the files from which the prepared rows of a day are computed.

    It is the digest of the click log unless positions of the impressions are a column of the rows.
    """
    inputs = impression_inputs(config, raw)
    return digest_of([raw.digest, inputs]) if inputs else raw.digest


def read_impressions(workers: Workers, settings: Impressions, raw: RawFiles, log_table: Log) -> Rows:
    """Returns the rows of a day's log with the columns of LOGGED, one row for each row of the files.

    An empty field is null, and so is a position that is not an integer from 1 on. Ids that are numbers become
    their text. `event_time` is in µs; it is null if the log has no times, or if the field has no time. A file
    that cannot be read has one row, in which `error` says why; `error` is null elsewhere.

    Args:
        workers: run a task for each file.
        settings: the section `serving.impressions`.
        raw: the files.
        log_table: the section `log`, whose event time says how the times are written.
    """
    return workers.run(len(raw.paths), partial(_read_file, raw.paths, settings, log_table), LOGGED)


def unreadable(error: str) -> DataError:
    """Returns the error of a file that could not be read.

    Args:
        error: the value of the column `error`.
    """
    return DataError(
        f"the log of impressions cannot be read: {error}",
        "deliver the file again, or correct serving.impressions in the configuration",
    )


def log_counts(settings: Impressions, dt: str, rows: int, invalid: int) -> None:
    """Logs how many impressions of a day are invalid, and a warning if they are too many.

    Args:
        settings: the section `serving.impressions`.
        dt: the date of the day.
        rows: number of impressions. Nothing is logged if it is 0.
        invalid: how many of them have no user, item, position or time.
    """
    if not rows:
        return
    log.info("impressions of %s: %d rows, of which %d are invalid", dt, rows, invalid)
    if invalid / rows > settings.max_unmatched_share:
        log.warning(
            "impressions: %d of %d rows of %s have no user, item, position or time, a larger share than "
            "serving.impressions.max_unmatched_share=%g; they give no position to rows of the click log",
            invalid,
            rows,
            dt,
            settings.max_unmatched_share,
        )


def _read_file(
    paths: tuple[str, ...], settings: Impressions, log_table: Log, index: int
) -> Iterator[pa.RecordBatch]:
    """Runs one task: reads one file."""
    try:
        for batch in _batches(paths[index], settings):
            yield _logged(batch, settings, log_table)
    except (pa.ArrowException, KeyError, OSError, ValueError, EOFError) as error:
        row = {**dict.fromkeys(LOGGED.names), ERROR: f"{paths[index]}: {error}"}
        yield pa.RecordBatch.from_pylist([row], schema=LOGGED)


def _batches(path: str, settings: Impressions) -> Iterator[pa.RecordBatch]:
    """Yields the configured columns of a file.

    Raises:
        ValueError, KeyError, OSError: the file cannot be read, or lacks a column.
    """
    files, inner = file_io.filesystem(path)
    names = settings.columns
    if settings.format == "parquet":
        with files.open_input_file(inner) as opened:
            file = pq.ParquetFile(opened)
            _require(names, file.schema_arrow.names)
            yield from file.iter_batches(_BATCH_ROWS, columns=names)
        return
    with files.open_input_stream(inner) as stream:
        if settings.format == "jsonl":
            yield from _json_batches(stream, names)
            return
        options = pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
        )
        parse = pa_csv.ParseOptions(delimiter=settings.separator)
        reader = pa_csv.open_csv(stream, parse_options=parse, convert_options=options)
        _require(names, reader.schema.names)
        for batch in reader:
            yield batch.select(names)


def _require(names: Iterable[str], present: Iterable[str]) -> None:
    columns = list(present)
    missing = [name for name in names if name not in columns]
    if missing:
        raise ValueError(f"columns are missing: {missing}; the file has {columns}")


def _json_batches(stream: pa.NativeFile, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Yields the values of JSON objects as texts. A key that an object does not have is null."""
    lines = io.TextIOWrapper(io.BufferedReader(stream), encoding="utf-8-sig")
    objects = (_json_object(line, number) for number, line in enumerate(lines, 1) if line.strip())
    while rows := list(islice(objects, _BATCH_ROWS)):
        columns = [pa.array([_text(row.get(name)) for row in rows], pa.string()) for name in names]
        yield pa.RecordBatch.from_arrays(columns, names)


def _json_object(line: str, number: int) -> dict[str, Any]:
    """Returns the object in a line. Raises ValueError, which names the line, if there is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {number} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"line {number} is not a JSON object")
    return value


def _text(value: Any) -> str | None:
    """Returns the text of a text or an integer; None for other values and for an empty text.

    A float without a fraction, such as 1.0, is an integer, as in Parquet.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT_BELOW["double"]:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value else None


def _logged(batch: pa.RecordBatch, settings: Impressions, log_table: Log) -> pa.RecordBatch:
    """Returns the columns of LOGGED."""

    def text(name: str | None) -> pa.Array:
        if name is None:
            return pa.nulls(batch.num_rows, pa.string())
        return id_texts(name, batch.column(name))

    def whole(name: str | None) -> pa.Array:
        """Returns int64 values; null for a value that is not an integer."""
        column = batch.column(name) if name else None
        if column is None or not pa.types.is_floating(column.type):
            return integers(text(name))
        return whole_number_texts(pc.if_else(not_exact(column), None, column)).cast(pa.int64())

    position = whole(settings.position)
    times = pa.nulls(batch.num_rows, pa.int64())
    if settings.time:
        stored = batch.column(settings.time)
        is_instant = pa.types.is_timestamp(stored.type) or pa.types.is_date(stored.type)
        times = pa.nulls(len(stored), pa.int64()) if is_instant else _times(whole(settings.time), log_table)
        times = pc.coalesce(_instants(stored, log_table), times)
    columns = [
        text(settings.user),
        text(settings.item),
        pc.if_else(pc.greater(position, 0), position, pa.scalar(None, pa.int64())),
        text(settings.variant),
        text(settings.model_version),
        times,
        pa.nulls(batch.num_rows, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LOGGED)


def _instants(values: pa.Array, log_table: Log) -> pa.Array:
    """Returns timestamps, dates and texts of times in µs, rounded down; null for other values.

    Texts are written like those of the event time of the click log, if its type is `timestamp` or `date`.
    Times without an offset are in the time zone of the click log.
    """
    if pa.types.is_date(values.type):
        values = values.cast(pa.timestamp("s"))
    if pa.types.is_timestamp(values.type):
        return stored_values(values, _TIMESTAMP, log_table.time_zone)[0]
    column = next((one for one in log_table.columns if one.name == _time_column(log_table)), None)
    if column is None or column.type == "int" or not pa.types.is_string(values.type):
        return pa.nulls(len(values), pa.int64())
    return timestamps(values, column.format, log_table.time_zone)


def _time_column(log_table: Log) -> str | None:
    return log_table.event_time.column if log_table.event_time else None


def _times(values: pa.Array, log_table: Log) -> pa.Array:
    """Returns integers in the unit of the event time in µs. A time that does not fit 64 bits is null."""
    event_time = log_table.event_time
    return time_rule(event_time).in_arrow(values) if event_time else values
