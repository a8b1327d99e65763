"""The format `delta` (etl/readers/delta.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conf.raw_types import FormatSettings

if TYPE_CHECKING:
    from etl.readers.base import TableReader


class Settings(FormatSettings):
    """The current version of a Delta table; `path` is its folder.

    The path may end with folders of partition columns, such as `/dt={date}` (docs/lakes.md).
    """


def reader() -> type[TableReader]:
    """Returns the class that reads the format."""
    from etl.readers.delta import DeltaReader

    return DeltaReader
