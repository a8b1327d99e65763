"""Finds the reader of a format."""

from __future__ import annotations

from conf.raw_types import EventTime, RawTable
from etl.readers.base import TableReader
from etl.readers.jsonl import JsonLinesReader
from etl.readers.orc import OrcReader
from etl.readers.parquet import ParquetReader
from etl.readers.text import TextReader

_READERS: tuple[type[TableReader], ...] = (TextReader, JsonLinesReader, ParquetReader, OrcReader)


def open_table(table: RawTable, paths: tuple[str, ...], event_time: EventTime | None = None) -> TableReader:
    """Opens the files of a table with the reader of its format.

    Raises:
        DataError, ConfigError: see TableReader.open.
    """
    for reader in _READERS:
        if table.format in reader.formats:
            return reader.open(table, paths, event_time)
    raise ValueError(f"internal error, please report: no reader reads {table.format}")
