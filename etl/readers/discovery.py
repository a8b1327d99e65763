"""Finds the reader of a format."""

from __future__ import annotations

from conf.raw_types import EventTime, RawTable, reader_extension
from etl.readers.avro import AvroReader
from etl.readers.base import TableReader
from etl.readers.delta import DeltaReader
from etl.readers.jsonl import JsonLinesReader
from etl.readers.orc import OrcReader
from etl.readers.parquet import ParquetReader
from etl.readers.text import TextReader

_READERS: tuple[type[TableReader], ...] = (
    TextReader,
    JsonLinesReader,
    ParquetReader,
    OrcReader,
    DeltaReader,
    AvroReader,
)


def open_table(table: RawTable, paths: tuple[str, ...], event_time: EventTime | None = None) -> TableReader:
    """Opens the files of a table with the reader of its format.

    Raises:
        DataError, ConfigError: see TableReader.open. The module of a package's reader may be wrong.
    """
    return _reader(table.format).open(table, paths, event_time)


def _reader(form: str) -> type[TableReader]:
    """Returns the class that reads a format: one of the checkout, or `Reader` of a package's module."""
    for reader in _READERS:
        if form in reader.formats:
            return reader
    extension = reader_extension(form)
    if extension is None:
        raise ValueError(f"internal error, please report: no reader reads {form}")
    of_package: type[TableReader] = extension.member("Reader", TableReader)
    return of_package
