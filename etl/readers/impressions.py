"""Reads the log of the items that were shown to users on one day (`serving.impressions`).

Two jobs need this log. measure_recommendations compares it with the published lists of recommendations.
build_features adds its positions to the rows of the click log (etl/prepare/prepared_rows.py).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import ConfigError, DataError
from conf.raw_types import ColumnType, EventTime, RawTable
from conf.stage_types import Impressions
from conf.time_notation import ISO
from conf.types import Config
from etl.raw.file_splits import FileSplit
from etl.raw.files import RawFiles
from etl.raw.rejected_lines import RejectedLine
from etl.raw.row_rules import time_rule
from etl.raw.text_values import text_array
from etl.readers.base import RawBlock, TableReader, open_table
from etl.readers.table_heads import unusable
from spark.rows import Rows
from spark.workers import Workers
from storage.feature_spec import EVENT_TIME

log = logging.getLogger("nightrank.etl")

ERROR = "error"
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


def read_impressions(workers: Workers, config: Config, raw: RawFiles) -> Rows:
    """Returns the rows of a day's log with the columns of LOGGED, one row for each row of the files.

    An empty field is null. A value that does not have the type of its column, or a position below 1, is null
    too. `event_time` is in µs, and null if the log has no times or the field has no time. A part of a file
    that cannot be read is represented by one row, whose column `error` has the reason. In all other rows,
    `error` is null.

    Args:
        workers: the processes that run a task for each file split.
        config: the configuration, with the section `serving.impressions`.
        raw: the files of the day's log of impressions.

    Raises:
        DataError: a file lacks a column, or is damaged.
        ConfigError: a column is stored with a type that its declared type cannot hold.
    """
    layout = _layout(config, raw.paths)
    splits = tuple(layout.reader.splits())
    return workers.run(len(splits), partial(_read_split, layout, splits), LOGGED)


def unreadable(error: str) -> DataError:
    """Returns the error for a part of a file that could not be read.

    Args:
        error: a value of the column `error`: problem and remedy as JSON.
    """
    problem, remedy = json.loads(error)
    return DataError(problem, remedy)


def log_counts(settings: Impressions, dt: str, rows: int, invalid: int) -> None:
    """Logs the number of invalid impressions of a day, and warns if their share is above the limit.

    Args:
        settings: the section `serving.impressions`.
        dt: the day, as an ISO date.
        rows: number of impressions. Without impressions, nothing is logged.
        invalid: number of impressions without user, item, position or time.
    """
    if not rows:
        return
    log.info("impressions of %s: %d rows, of which %d are invalid", dt, rows, invalid)
    if invalid / rows > settings.max_unmatched_share:
        log.warning(
            "impressions: %d of %d rows of %s have no user, item, position or time, so rows of the click "
            "log get no position from them. This share is above serving.impressions.max_unmatched_share=%g",
            invalid,
            rows,
            dt,
            settings.max_unmatched_share,
        )


@dataclass(frozen=True)
class _Layout:
    """What tasks need to read a log of impressions.

    Attributes:
        reader: the reader of the log's files.
        columns: maps the columns of LOGGED to columns of the reader's table. Columns that the log does not
            have are missing.
        time: the column and the unit of the times; None if the log has no times.
    """

    reader: TableReader
    columns: Mapping[str, str]
    time: EventTime | None


def _layout(config: Config, paths: tuple[str, ...]) -> _Layout:
    """Opens the files of a day. Raises the errors of `TableReader.open`."""
    settings, log_times = config.serving.impressions, config.log.event_time
    if settings is None:
        raise ValueError("internal error, please report: there is no log of impressions")
    of_log = {name: config.log.type_of(name) for name in (config.keys.columns if config.keys else [])}
    user, item = (of_log[config.keys.user], of_log[config.keys.item]) if config.keys else ("string", "string")
    named: list[tuple[str, str | None, ColumnType]] = [
        ("user_key", settings.user, user),
        ("item_key", settings.item, item),
        ("position", settings.position, "int"),
        ("logged_variant", settings.variant, "string"),
        ("logged_version", settings.model_version, "string"),
        (EVENT_TIME, settings.time, "int"),
    ]
    table, names = settings.typed({name: kind for _, name, kind in named if name is not None})
    table = _with_times_of_log(table, settings, config)
    columns = {output: names[name] for output, name, _ in named if name is not None}
    time = None
    if EVENT_TIME in columns:
        time = EventTime(column=columns[EVENT_TIME], unit=log_times.unit if log_times else "us")
    return _Layout(open_table(table, paths, time), columns, time)


def _with_times_of_log(table: RawTable, settings: Impressions, config: Config) -> RawTable:
    """Returns `table` with the settings of the click log's times (type, format and zone).

    Settings that the section `serving.impressions` sets are not replaced.
    """
    log_time = config.log.event_time
    if settings.time is None or log_time is None:
        return table
    changes: dict[str, Any] = {}
    if "time_zone" not in settings.model_fields_set:
        changes["time_zone"] = config.log.time_zone
    of_log = next(column for column in config.log.columns if column.name == log_time.column)
    if of_log.type != "int" and settings.time not in settings.names:
        form = of_log.format if of_log.type == "timestamp" else ISO
        timed = {"type": "timestamp", "format": form}
        changes["columns"] = [
            column.model_copy(update=timed) if column.source_name == settings.time else column
            for column in table.columns
        ]
    return table.model_copy(update=changes)


def _read_split(layout: _Layout, splits: Sequence[FileSplit], index: int) -> Iterator[pa.RecordBatch]:
    """Runs one task: reads one file split."""
    lines = 0
    try:
        for block in layout.reader.blocks(splits[index], layout.reader.table.names):
            if block.broken:
                raise _broken(layout, splits, index, lines, block)
            yield _logged(block, layout)
            lines += block.lines
    except (DataError, ConfigError) as error:
        row = {**dict.fromkeys(LOGGED.names), ERROR: json.dumps([error.problem, error.remedy])}
        yield pa.RecordBatch.from_pylist([row], schema=LOGGED)


def _broken(
    layout: _Layout, splits: Sequence[FileSplit], index: int, lines: int, block: RawBlock
) -> DataError:
    """Returns the error for the first line of a block that is not a row.

    Args:
        layout, splits, index: as for `_read_split`.
        lines: number of lines of the split before the block.
        block: a block with a line that is not a row.
    """
    path = splits[index].path
    before = [one for one in splits[:index] if one.path == path]
    lines += sum(part.lines for one in before for part in layout.reader.blocks(one, ()))
    line = min(block.broken)
    rejected = RejectedLine(path, lines + line + 1, block.broken[line], block.texts([line])[0])
    return unusable(layout.reader.table, "serving.impressions", rejected)


def _logged(block: RawBlock, layout: _Layout) -> pa.RecordBatch:
    """Returns the rows of a block, with the columns of LOGGED."""
    rows = len(block.row_lines)

    def texts(name: str) -> pa.Array:
        if name not in layout.columns:
            return pa.nulls(rows, pa.string())
        encoded = block.columns[layout.columns[name]]
        return text_array(encoded.dictionary).take(encoded.indices)

    position = _plain(block.columns[layout.columns["position"]])
    columns = [
        texts("user_key"),
        texts("item_key"),
        pc.if_else(pc.greater(position, 0), position, pa.scalar(None, pa.int64())),
        texts("logged_variant"),
        texts("logged_version"),
        _times(block, layout),
        pa.nulls(rows, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LOGGED)


def _times(block: RawBlock, layout: _Layout) -> pa.Array:
    """Returns times in µs (int64). A time that does not fit into 64 bits is null."""
    if layout.time is None:
        return pa.nulls(len(block.row_lines), pa.int64())
    table = layout.reader.table
    rule = time_rule(layout.time, table.type_of(layout.time.column), table.time_zone)
    times = rule.compute(_plain(block.columns[layout.time.column]))
    return times if block.exact_time is None else pc.coalesce(block.exact_time, times)


def _plain(encoded: pa.DictionaryArray) -> pa.Array:
    return encoded.dictionary.take(encoded.indices)
