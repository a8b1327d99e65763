"""Decodes generated files in plain Python: lines, fields and codes, by the documented layouts only."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from etl.synthetic.click_probability import FEATURES, KEYS, MISSING, GeneratedColumn
from etl.synthetic.lines import hex_multiplier

TIME, LABEL = "event_time", "clicked"
_IDS = 2**32


def split_lines(paths: Iterable[Path], separator: str, header: bool) -> list[list[str]]:
    """The fields of every line, without headers, in the order of the files."""
    rows = []
    for path in paths:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        assert data.endswith(b"\n")
        lines = data.decode("ascii").split("\n")[:-1]
        rows += [line.split(separator) for line in lines[1 if header else 0 :]]
    return rows


def criteo_rows(paths: Iterable[Path]) -> pd.DataFrame:
    """Undamaged rows of criteo files: clicked, and one int64 column per feature. Empty fields are MISSING."""
    names = [LABEL, *(column.name for column in FEATURES)]
    rows = pd.DataFrame(_whole(split_lines(paths, "\t", header=False), names), columns=names)
    rows[LABEL] = rows[LABEL].astype("int64")
    for column in FEATURES:
        decode: Callable[[str], int] = int if column.kind == "integer" else _HexCodes(column)
        rows[column.name] = _codes(rows[column.name], decode)
    return rows


def named_rows(paths: Iterable[Path]) -> pd.DataFrame:
    """Undamaged rows of named files, as `criteo_rows`, and event_time as an integer."""
    paths = list(paths)
    names = paths[0].read_text().split("\n", 1)[0].split(",")
    rows = pd.DataFrame(_whole(split_lines(paths, ",", header=True), names), columns=names)
    for name in (LABEL, TIME):
        rows[name] = rows[name].astype("int64")
    for column in FEATURES:
        rows[column.name] = _codes(rows[column.name], _NUMBERS[column.kind])
    return rows


def values_of(rows: pd.DataFrame) -> dict[str, NDArray[np.int64]]:
    """Column of FEATURES → (rows,) values."""
    return {column.name: rows[column.name].to_numpy() for column in FEATURES}


def average_rank_auc(scores: NDArray[np.int64], labels: NDArray[np.int64]) -> float:
    """AUC from the rank sum with averaged ties (Mann and Whitney 1947)."""
    ranks = pd.Series(scores).rank(method="average").to_numpy()
    positives = int(labels.sum())
    surplus = ranks[labels == 1].sum() - positives * (positives + 1) / 2
    return float(surplus / (positives * (len(labels) - positives)))


class _HexCodes:
    """Decodes 8 hex digits to a code, by the inverse of the column's multiplier modulo 2^32."""

    def __init__(self, column: GeneratedColumn) -> None:
        self.inverse = pow(hex_multiplier(column.criteo), -1, _IDS)

    def __call__(self, token: str) -> int:
        assert len(token) == 8
        return int(token, 16) * self.inverse % _IDS - 1


_NUMBERS: dict[str, Callable[[str], int]] = {
    "integer": int,
    "key": lambda text: int(text[1:]),
    "category": lambda text: int(text.rsplit("_", 1)[1]),
}


def _codes(texts: pd.Series, decode: Callable[[str], int]) -> pd.Series:
    codes = {text: decode(text) for text in texts.unique() if text}
    return texts.map({**codes, "": MISSING}).astype("int64")


def _whole(rows: list[list[str]], names: list[str]) -> list[list[str]]:
    """Rows with the right number of fields, a label of 0 or 1, valid integers and both keys."""
    label = names.index(LABEL)
    keys = [names.index(name) for name in KEYS]
    integers = [names.index(column.name) for column in FEATURES if column.kind == "integer"]
    return [
        row
        for row in rows
        if len(row) == len(names)
        and row[label] in ("0", "1")
        and all(row[key] for key in keys)
        and all(row[index] == "" or row[index].isdigit() for index in integers)
    ]
