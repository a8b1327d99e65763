"""The format `csv` (etl/readers/text.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from conf.raw_types import FormatSettings

if TYPE_CHECKING:
    from etl.readers.base import TableReader


class Settings(FormatSettings):
    """A header line, and quoted fields as in RFC 4180.

    Values must not contain line breaks, even in quotes. The first and the last line of such a value are
    quarantined with the reason `quote` or `field_count`. Each line between them is read as a separate row.
    """

    is_text: ClassVar[bool] = True
    is_separated: ClassVar[bool] = True
    has_null_values: ClassVar[bool] = True


def reader() -> type[TableReader]:
    """Returns the class that reads the format."""
    from etl.readers.text import TextReader

    return TextReader
