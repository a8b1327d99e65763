"""The format `orc` (etl/readers/orc.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conf.raw_types import FormatSettings

if TYPE_CHECKING:
    from etl.readers.base import TableReader


class Settings(FormatSettings):
    """Columns are matched by name; types are read by the same rules as in Parquet files."""


def reader() -> type[TableReader]:
    """Returns the class that reads the format."""
    from etl.readers.orc import OrcReader

    return OrcReader
