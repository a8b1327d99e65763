"""Text files in Windows-1252 have the same rows as the same files in UTF-8."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from conf.errors import DataError
from conf.raw_types import RawTable
from etl.inference.sample import read_sample
from etl.inference.table_files import find_table
from etl.readers.base import open_table
from etl.readers.table_heads import check_heads

COLUMNS = [
    {"name": "name", "source": "Größe", "type": "string"},
    {"name": "price", "type": "float"},
]
ROWS = [("Müsli, groß", 1.5), ("Crème", 2.0), ("5 €", 3.25)] * 200
UNDEFINED = b"\x81"  # a byte without a meaning in Windows-1252


def _csv(encoding: str) -> bytes:
    lines = ["Größe;price", *(f"{name};{price}" for name, price in ROWS)]
    return "".join(f"{line}\r\n" for line in lines).encode(encoding)


def _json(encoding: str) -> bytes:
    lines = (json.dumps({"Größe": name, "price": price}, ensure_ascii=False) for name, price in ROWS)
    return "".join(f"{line}\n" for line in lines).encode(encoding)


def _table(path: Path, form: str, **settings: Any) -> RawTable:
    separator = {"separator": ";"} if form == "csv" else {}
    values = {"path": str(path), "format": form, "columns": COLUMNS, **separator, **settings}
    return RawTable.model_validate(values)


def _rows(table: RawTable) -> list[tuple[Any, ...]]:
    reader = open_table(table, (table.path,))
    blocks = [block for split in reader.splits(1_500) for block in reader.blocks(split, table.names)]
    assert not any(block.broken or block.malformed for block in blocks)
    rows = [row for block in blocks for row in pa.table(dict(block.columns)).to_pylist()]
    return [tuple(row[name] for name in table.names) for row in rows]


@pytest.mark.parametrize("form, text", [("csv", _csv), ("jsonl", _json)])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_rows_do_not_depend_on_the_encoding(
    tmp_path: Path, form: str, text: Callable[[str], bytes], ending: str
) -> None:
    path = tmp_path / f"items.{form}{ending}"
    written = text("cp1252")
    path.write_bytes(gzip.compress(written) if ending else written)
    assert _rows(_table(path, form, encoding="windows-1252")) == ROWS
    check_heads(_table(path, form, encoding="windows-1252"), [str(path)], "items", None)


def test_an_undefined_byte_is_a_control_character(tmp_path: Path) -> None:
    path = tmp_path / "items.csv"
    path.write_bytes("Größe;price\n".encode("cp1252") + b"a" + UNDEFINED + "ß;1\n".encode("cp1252"))
    assert _rows(_table(path, "csv", encoding="windows-1252")) == [("a\x81ß", 1.0)]


def test_the_error_of_another_encoding_names_the_setting(tmp_path: Path) -> None:
    path = tmp_path / "items.csv"
    path.write_bytes(_csv("cp1252"))
    with pytest.raises(DataError, match="the header is not UTF-8") as caught:
        open_table(_table(path, "csv"), (str(path),))
    assert "encoding: windows-1252" in caught.value.remedy


@pytest.mark.parametrize("form, text", [("csv", _csv), ("tsv", _csv), ("jsonl", _json)])
@pytest.mark.parametrize(
    "encoding, name",
    [("utf-16", "UTF-16"), ("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE"), ("utf-32", "UTF-32")],
)
def test_other_encodings_of_unicode_are_refused_with_a_command(
    tmp_path: Path, form: str, text: Callable[[str], bytes], encoding: str, name: str
) -> None:
    """By all readers of text files and by `init`, with or without a byte order mark."""
    path = tmp_path / f"items.{form}"
    path.write_bytes(text(encoding))
    with pytest.raises(DataError, match=f"items.{form} is in the encoding {name},") as caught:
        _rows(_table(path, form))
    assert caught.value.remedy == (
        f"convert the file: `iconv -f {name} -t UTF-8 items.{form} > utf8_items.{form}`"
    )
    path.with_suffix(f".{form}.gz").write_bytes(gzip.compress(text(encoding)))
    with pytest.raises(DataError, match=f"is in the encoding {name},"):
        read_sample(find_table(f"{path}.gz"))


def test_zero_bytes_in_utf8_are_no_other_encoding(tmp_path: Path) -> None:
    path = tmp_path / "items.tsv"
    path.write_bytes(b"a\x00b\x00\x00\t1.5\nab\t2.0\n")
    assert _rows(_table(path, "tsv")) == [("a\x00b\x00\x00", 1.5), ("ab", 2.0)]


def test_only_text_files_have_an_encoding(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="encoding is only for text files, but the format is parquet"):
        _table(tmp_path, "parquet", encoding="windows-1252")
    assert "encoding" not in _table(tmp_path, "csv").model_dump()
