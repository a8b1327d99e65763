"""The format `tsv` (etl/readers/text.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from conf.raw_types import FormatSettings

if TYPE_CHECKING:
    from etl.readers.base import TableReader


class Settings(FormatSettings):
    """Lines without a header. A double quote is an ordinary character."""

    is_text: ClassVar[bool] = True
    is_separated: ClassVar[bool] = True
    has_null_values: ClassVar[bool] = True
    is_positional: ClassVar[bool] = True


def reader() -> type[TableReader]:
    """Returns the class that reads the format."""
    from etl.readers.text import TextReader

    return TextReader
