"""The format `avro` (etl/readers/avro.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conf.raw_types import FormatSettings

if TYPE_CHECKING:
    from etl.readers.base import TableReader


class Settings(FormatSettings):
    """Object container files with any codec; columns are matched by name."""


def reader() -> type[TableReader]:
    """Returns the class that reads the format."""
    from etl.readers.avro import AvroReader

    return AvroReader
