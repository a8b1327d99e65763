"""The reader of displays: each item of the last field of a line is one row."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conf.raw_types import RawTable
from etl.raw.rejected_lines import RejectedLine, description
from etl.readers.base import open_table

COLUMNS = [
    {"name": "display", "type": "int"},
    {"name": "user", "type": "string"},
    {"name": "before", "type": "list<string>", "separator": " "},
    {"name": "item", "type": "string"},
    {"name": "clicked", "type": "int"},
]


def _table(path: Path) -> RawTable:
    return RawTable.model_validate({"path": str(path), "format": "displays", "columns": COLUMNS})


def _read(path: Path, split_bytes: int | None = None) -> tuple[list[dict[str, Any]], list[RejectedLine], int]:
    """Returns the rows, the rejected lines, and the number of file splits."""
    table = _table(path)
    reader = open_table(table, (str(path),))
    rows: list[dict[str, Any]] = []
    rejected, before = [], 0
    splits = reader.splits(split_bytes)
    for split in splits:
        for block in reader.blocks(split, table.names):
            rows += pa.table(dict(block.columns)).to_pylist()
            rejected += [
                RejectedLine(str(path), before + line + 1, reason, block.texts([line])[0])
                for line, reason in block.broken.items()
            ]
            before += block.lines
    return rows, rejected, len(splits)


@pytest.mark.parametrize("name", ["log.tsv", "log.tsv.gz"])
def test_each_shown_item_is_a_row_with_the_other_fields_of_its_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    lines, expected = [], []
    for display in range(400):
        before = [f"N{display % 7}", "N-x"] if display % 3 else []
        shown = [(f"N{display % 11}-{number}", int(number == display % 4)) for number in range(display % 5)]
        lines.append(
            f"{display}\tU{display % 9}\t{' '.join(before)}\t"
            + " ".join(f"{item}-{click}" for item, click in shown)
        )
        expected += [
            {
                "display": display,
                "user": f"U{display % 9}",
                "before": before or None,
                "item": item,
                "clicked": click,
            }
            for item, click in shown
        ]
    text = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    rows, rejected, splits = _read(path, 2_000)
    assert rows == expected
    assert rejected == []
    assert splits == (1 if name.endswith("gz") else round(len(text) / 2_000))


def test_lines_and_items_that_are_not_displays_are_rejected_with_their_texts(tmp_path: Path) -> None:
    path = tmp_path / "log.tsv"
    path.write_text("1\tU1\tN1\tN2-1 N3\n2 U2 N1 N2-1\n3\tU3\t\tN5-0")
    rows, rejected, _ = _read(path)
    assert [(row["display"], row["item"], row["clicked"]) for row in rows] == [(1, "N2", 1), (3, "N5", 0)]
    assert [(one.reason, one.line) for one in rejected] == [
        ("field_count", "1\tU1\tN1\tN3"),
        ("field_count", "2 U2 N1 N2-1"),
    ]
    assert description(_table(path), rejected[0]).startswith("row 2 has 4 fields separated by")
