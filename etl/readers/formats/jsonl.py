"""The format `jsonl` (etl/readers/jsonl.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from conf.raw_types import FormatSettings

if TYPE_CHECKING:
    from etl.readers.base import TableReader


class Settings(FormatSettings):
    """A JSON object in each line; `source: a.b` is the field `b` of the object `a`.

    A field that a line lacks is null. A line that is not a JSON object is quarantined with the reason `json`.
    """

    is_text: ClassVar[bool] = True
    has_null_values: ClassVar[bool] = True


def reader() -> type[TableReader]:
    """Returns the class that reads the format."""
    from etl.readers.jsonl import JsonLinesReader

    return JsonLinesReader
