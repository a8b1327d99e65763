"""Chooses the engine: Spark expressions (`sql`) or Arrow batches in Python workers (`arrow`)."""

from __future__ import annotations

from typing import Literal

Engine = Literal["sql", "arrow"]


def choose_engine(wanted: Literal["auto", "sql", "arrow"], in_memory: bool = True) -> Engine:
    """Returns the engine `wanted`, or chooses an engine if `wanted` is `auto`.

    `auto` chooses `sql` if the tables of the workflow are too large for a Python worker (`in_memory` is
    false). Otherwise it chooses `arrow`, which is faster, also than `sql` on a GPU (docs/decisions/0075).
    """
    if wanted != "auto":
        return wanted
    return "arrow" if in_memory else "sql"
