"""Finds the reader of a format."""

from __future__ import annotations

from conf.plugins import READER
from conf.raw_types import EventTime, RawTable
from etl.readers.base import TableReader


def open_table(table: RawTable, paths: tuple[str, ...], event_time: EventTime | None = None) -> TableReader:
    """Opens the files of a table with the reader of its format.

    Raises:
        DataError, ConfigError: see TableReader.open.
        ConfigError: the module of a package does not contain a reader (`reader_of`).
    """
    return reader_of(table.format).open(table, paths, event_time)


def reader_of(name: str) -> type[TableReader]:
    """Returns the class that reads a format. The format must exist.

    Raises:
        ConfigError: the module of a package has no class `Reader` and no function `reader`.
    """
    plugin = READER.get(name)
    if hasattr(plugin.load(), "reader"):
        of_function: type[TableReader] = plugin.member("reader")()
        return of_function
    of_class: type[TableReader] = plugin.member("Reader", TableReader)
    return of_class
