"""Parses blocks of text in a test, as the two passes do."""

from __future__ import annotations

from collections.abc import Sequence

from etl.raw.erased_users import ErasedUsers
from etl.readers.text import TextReader
from etl.text.parse_block import FileLayout, ParsedBlock, parse_block


def parse_text(
    block: bytes | memoryview,
    layout: FileLayout,
    wanted: Sequence[str],
    header: bool,
    erased: ErasedUsers | None = None,
) -> ParsedBlock:
    """Returns the rows of a block of whole lines."""
    assert isinstance(layout.reader, TextReader)
    return parse_block(layout.reader.parse(block, wanted, header), layout, erased)
