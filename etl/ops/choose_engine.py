"""Chooses the engine: Spark expressions (`sql`) or Arrow batches in Python workers (`arrow`)."""

from __future__ import annotations

from typing import Literal

Engine = Literal["sql", "arrow"]


def choose_engine(wanted: Literal["auto", "sql", "arrow"]) -> Engine:
    """Returns the engine `wanted`, or chooses an engine if `wanted` is `auto`.

    `auto` chooses `arrow`, which is faster than `sql`, even on a GPU (docs/decisions/operators.md#0075).
    The size of the tables does not matter, because workers map them into memory (etl/native/mapped_files.py).
    """
    return "arrow" if wanted == "auto" else wanted
