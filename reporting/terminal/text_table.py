"""Formats aligned tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from conf.printable import printable


def text_table(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Returns an aligned table, indented by two spaces. Control characters in the cells are escaped.

    Args:
        headers: one header per column.
        rows: the cells of each row.
        right: indices of the columns that are aligned right.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[index]) for row in (headers, *rows)) for index in range(len(headers))]

    def aligned(row: Sequence[str]) -> str:
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return f"  {'  '.join(cells)}".rstrip()

    rule = f"  {'  '.join('-' * width for width in widths)}"
    return "\n".join([aligned(headers), rule, *(aligned(row) for row in rows)])
