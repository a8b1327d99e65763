"""Decodes the dictionary-encoded pages of one Parquet column with pages.cpp."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from conf.errors import InfrastructureError
from etl.native.library import Handle, library
from etl.native.scan import column_of

# Number of bytes of a value in a page. A text has a variable size: its length is stored before its bytes.
_WIDTHS = {pa.string(): 0, pa.int32(): 4, pa.int64(): 8}
KINDS = frozenset(_WIDTHS)


class DamagedPageError(Exception):
    """A page ends too early, or refers to a value that does not exist."""


class PagedColumn:
    """Decodes the column chunks of a column. Each page is added to the chunk that was begun last."""

    def __init__(self, kind: pa.DataType, values: int, size: int, rows: int) -> None:
        """Prepares a column without rows.

        Args:
            kind: the type of the values, one of KINDS.
            values, size: number of values of all chunks together, and number of their bytes. Both may be
                estimates.
            rows: number of rows of all chunks together.
        """
        self._kind, self._rows = kind, 0
        self._pages = Handle(library().nightrank_pages(values, size, rows), "free")

    def begin_chunk(self, count: int, page: pa.Buffer) -> None:
        """Begins a chunk with its page of `count` distinct values, in the encoding PLAIN.

        Raises:
            DamagedPageError: the page has fewer values.
            InfrastructureError: memory ran out.
        """
        width = _WIDTHS[self._kind]
        _check(library().nightrank_begin_chunk(self._pages.address, count, width, page.address, page.size))

    def add_page(self, rows: int, levels: pa.Buffer | None, indices: pa.Buffer) -> None:
        """Adds the rows of a page to the last chunk that was begun.

        Args:
            rows: number of rows.
            levels: the definition level of each row (0 for null, 1 for a value), encoded as runs; None if no
                row is null.
            indices: one byte with the number of bits of an index, and then the index of each value, encoded
                as runs.

        Raises:
            DamagedPageError: the page has fewer rows, or an index refers to a value that does not exist.
            InfrastructureError: memory ran out.
        """
        level_bytes = (levels.address, levels.size) if levels is not None else (None, 0)
        address = self._pages.address
        _check(library().nightrank_add_page(address, rows, *level_bytes, indices.address, indices.size))
        self._rows += rows

    def result(self) -> tuple[pa.DictionaryArray, np.ndarray]:
        """Returns the n rows as an array with one dictionary, and the number of rows with each of its values.

        An empty text is null. The dictionary may have values without rows. After this call, no page may be
        added.
        """
        library().nightrank_end_pages(self._pages.address)
        return column_of(self._pages, 0, self._rows, self._kind)


def _check(outcome: int) -> None:
    if outcome == 0:
        raise InfrastructureError(
            "there is no memory to decode a page of a Parquet file",
            "increase the memory of the Python workers",
        )
    if outcome != 1:
        raise DamagedPageError
