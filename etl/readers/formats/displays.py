"""The format `displays` (etl/readers/text.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from conf.raw_types import FormatSettings

if TYPE_CHECKING:
    from etl.readers.base import TableReader


class Settings(FormatSettings):
    """Like `tsv`, but each line is a display of several items.

    The last field lists the items and whether the user clicked them, such as `N1-0 N2-1`. Each item is one
    row. The last two of `columns` are the item and the click.
    """

    is_text: ClassVar[bool] = True
    is_separated: ClassVar[bool] = True
    has_null_values: ClassVar[bool] = True
    is_positional: ClassVar[bool] = True
    is_row_per_line: ClassVar[bool] = False


def reader() -> type[TableReader]:
    """Returns the class that reads the format."""
    from etl.readers.text import DisplayReader

    return DisplayReader
